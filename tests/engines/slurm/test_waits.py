"""Why jobs wait: when it is said, in which words, and when it ends. Texts are those of a real Slurm 22.05."""

from __future__ import annotations

import pytest

from lab.core.run import Run
from lab.engines.slurm.follow import FollowedStep
from lab.engines.slurm.queue import Job, NodeState
from lab.engines.slurm.waits import Waits
from tests.core.test_manifest import a_manifest
from tests.core.test_run import a_step

GONE = "ReqNodeNotAvail, UnavailableNodes:n2"
ALL_GONE = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
STEPS = {f"7_{n}": f"none-000{n}" for n in range(6)}
NODES = [NodeState("n1", "idle", "none"), NodeState("n2", "drained", "fan; ticket 7")]


def pending(reason: str, nodes: str = "n2", jobs: int = 1) -> dict[str, Job]:
    return {f"7_{n}": Job("PENDING", nodes, "gpu", reason) for n in range(jobs)}


class Waiting:
    """A queue that is looked at every 3 s; `said` is what a person read, with the second."""

    def __init__(self, nodes=NODES, **limits_s: float):
        self.now, self.limits_s = 0.0, {f"7_{n}": limits_s["limit_s"] for n in range(6)} if limits_s else {}
        self.said: list[tuple[float, str]] = []
        self.given_up: dict[str, tuple[float, str]] = {}
        self.waits = Waits(
            lambda text: self.said.append((self.now, text)),
            lambda names, partition: [one for one in nodes if not names or one.name in names],
        )

    def until(self, second: float, jobs: dict[str, Job]) -> None:
        while self.now < second:
            for job, why in self.waits.look(jobs, STEPS, self.limits_s, self.now).items():
                self.given_up.setdefault(job, (self.now, why))
            self.now += 3


def test_a_drained_node_is_named_with_its_reason_at_once_and_then_seldom():
    queue = Waiting()
    queue.until(4000, pending(GONE, jobs=5))
    texts = [(second, text) for second, text in queue.said if not text.startswith("  ")]
    assert texts[0] == (
        3,
        "5 steps wait in the queue (none-0000, none-0001, none-0002 and 2 more): node n2 is drained "
        f'("fan; ticket 7") (Slurm: {GONE})',
    )
    assert [second for second, _ in texts] == [3, 603, 1803] and "after 10 min still wait" in texts[1][1]
    assert [text.split()[0] for _, text in queue.said if text.startswith("  ")] == ["--stall-timeout"]
    assert not queue.given_up


def test_a_busy_queue_is_ordinary_and_said_late_and_never_given_up():
    queue = Waiting(limit_s=10)
    queue.until(301, pending("Priority", nodes=""))
    assert [second for second, _ in queue.said] == [300] and not queue.given_up
    assert queue.said[0][1] == "1 step waits in the queue (none-0000): Slurm: Priority"


def test_a_reason_that_comes_back_after_minutes_counts_anew_and_is_not_said_twice_in_ten():
    queue = Waiting(limit_s=30)
    queue.until(27, pending(GONE))
    queue.until(150, pending("Resources"))
    assert not queue.given_up  # the node is back: only the queue is in the way
    queue.until(210, pending(GONE))
    assert [second for second, _ in queue.said] == [3]
    ((second, why),) = queue.given_up.values()
    assert second == 180 and why.startswith(
        "waited in the queue for 30 s, longer than --stall-timeout allows: node"
    )


def test_a_reason_that_slurm_names_every_other_time_is_one_wait():
    """Its scheduler calls a job that it did not look at this time a matter of priority."""
    queue = Waiting(limit_s=45)
    for second in range(3, 120, 3):
        queue.until(second, pending(GONE if second % 2 else "Priority"))
    assert [second for second, _ in queue.said] == [3]
    assert [second for second, _ in queue.given_up.values()] in ([45], [48])


def test_tasks_behind_the_first_of_an_array_wait_for_what_it_waits_for():
    behind = {f"7_{n}": Job("PENDING", "n2", "gpu", "JobArrayTaskLimit") for n in range(1, 5)}
    queue = Waiting(limit_s=30)
    queue.until(60, {**pending(GONE), **behind})
    assert queue.said[0][1].startswith("5 steps wait in the queue (none-0000,")
    assert {second for second, _ in queue.given_up.values()} == {30} and len(queue.given_up) == 5
    busy = Waiting(limit_s=30)
    busy.until(60, {"7_0": Job("RUNNING", "n2", "gpu", "None"), **behind})
    assert not busy.said and not busy.given_up


@pytest.mark.parametrize(
    "reason",
    ["PartitionNodeLimit", "BadConstraints", "DependencyNeverSatisfied", "QOSMaxWallDurationPerJobLimit"],
)
def test_what_no_node_will_ever_run_ends_without_a_limit(reason):
    queue = Waiting()
    queue.until(60, pending(reason, nodes="", jobs=2))
    assert {second for second, _ in queue.given_up.values()} == {30}
    assert all("no node will ever run it" in why for _, why in queue.given_up.values())
    assert len(queue.said) == 1  # no advice to wait


def test_a_held_job_may_be_released_and_is_only_said():
    queue = Waiting()
    queue.until(600, pending("JobHeldUser", nodes=""))
    assert queue.said[0][0] == 3 and "JobHeldUser" in queue.said[0][1] and not queue.given_up


def test_where_no_node_is_named_those_of_the_partition_are():
    queue = Waiting([NodeState(f"n{n}", "down*", "not responding") for n in range(5)])
    queue.until(6, pending(ALL_GONE, nodes=""))
    assert 'node n0 is down and does not respond ("not responding")' in queue.said[0][1]
    assert "and 2 more" in queue.said[0][1]


def test_running_jobs_wait_for_nothing():
    queue = Waiting()
    queue.until(700, {"7_0": Job("RUNNING", "n2", "gpu", "None")})
    assert not queue.said


def test_a_nodes_reason_commands_no_terminal():
    assert "\x1b" not in NodeState("n1", "down", "\x1b[31mred").text


@pytest.mark.parametrize(
    ("began", "reason"), [(False, "job 7 waited in vain"), (True, "left the queue without a word")]
)
def test_a_step_that_began_after_it_was_given_up_is_lost_for_another_reason(
    tmp_path, monkeypatch, began, reason
):
    monkeypatch.setattr("lab.engines.slurm.queue.describe_end", lambda job: "left the queue without a word")
    one = FollowedStep(Run(tmp_path, a_manifest()), a_step("a"), "7", 0, lambda line: None)
    one.given_up = "waited in vain"
    if began:
        one.update_queue_state("RUNNING", cancelled=False)
    monkeypatch.setattr("lab.engines.slurm.follow.SETTLE_S", -1.0)
    monkeypatch.setattr("time.monotonic", iter(range(0, 100, 10)).__next__)
    one.update_queue_state(None, cancelled=False)
    assert reason in one.poll(set()).reason
