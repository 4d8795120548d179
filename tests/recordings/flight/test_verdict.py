"""Which rank is waited for, in which call: recorded hangs of gloo and NCCL, and made ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lab.recordings.flight import read_dumps, verdict_of
from lab.recordings.flight.verdict import Verdict
from tests.simulator import hangs

RECORDED = [
    ("flight_recorder_gloo", "ok", "none", (), -1, ""),
    ("flight_recorder_gloo", "notjoined", "not_joined", (1,), 4, "all_reduce"),
    ("flight_recorder_gloo", "mismatch_op", "mismatched", (0, 1), 4, "all_reduce"),
    ("flight_recorder_nccl", "healthy", "none", (), -1, ""),
    ("flight_recorder_nccl", "not_joined", "not_joined", (1,), 4, "all_reduce"),
    ("flight_recorder_nccl", "op_mismatch", "mismatched", (0, 1), 4, "all_reduce"),
    ("flight_recorder_nccl", "stuck_kernel", "stuck_kernel", (1,), 4, "all_reduce"),
]


@pytest.mark.data
@pytest.mark.parametrize("ending", ["pkl", "json"])
@pytest.mark.parametrize(("folder", "case", "kind", "ranks", "seq", "collective"), RECORDED)
def test_recorded_hangs_are_named(shared_data, tmp_path, folder, case, kind, ranks, seq, collective, ending):
    for rank, name in enumerate(("mine_0", "node7-rank_1")):
        shutil.copy(shared_data / "ranks" / folder / f"{case}_rank{rank}.{ending}", tmp_path / "x")
        (tmp_path / "x").rename(
            tmp_path / f"dump_{name.replace('node7-', '').replace('mine', 'rank')}.{ending}"
        )
    dumps = read_dumps(tmp_path)
    found = verdict_of(dumps)
    assert (found.kind, found.ranks, found.seq, found.collective) == (kind, ranks, seq, collective)
    if ranks and ending == "pkl":
        assert ".py:" in found.frame and "torch/distributed" not in found.frame
    assert found.missing == ()


CASES = ("pipeline", "pp_dp", "subgroup_first", "subgroup_last", "subgroup_gloo", "tp_dp", "none")


@pytest.mark.data
@pytest.mark.parametrize("case", [f"cases/ranks/hang_{case}" for case in CASES])
def test_planted_hangs_accuse_who_waits_for_nobody(shared_data, case):
    truth = json.loads((shared_data / "cases/ranks/truth.json").read_text())[case.rpartition("/")[2]]
    dumps = read_dumps(shared_data / case)
    found = verdict_of(dumps)
    assert (found.kind, list(found.ranks)) == (truth["class"], truth["culprits"])


@pytest.mark.data
@pytest.mark.parametrize("case", ["never_sent", "both_recv"])
def test_a_receive_without_its_send_accuses_the_sender(shared_data, case):
    dumps = read_dumps(shared_data / "ranks/pipeline_h200/hangs" / case)
    found = verdict_of(dumps)
    assert (found.kind, found.ranks, found.collective) == ("not_joined", (0,), "recv 1<-0")
    assert "p2p_hang.py" in found.frame


def transfer(seq: int, name: str, **more: Any) -> dict[str, Any]:
    return entry(seq, f"nccl:{name}", is_p2p=True, p2p_seq_id=seq, **more)


def test_receives_from_each_other_are_a_deadlock_and_both_sides_of_one_transfer_are_not(tmp_path):
    groups = {"0": [0, 1, 2], "1": [0, 2]}  # numbers are those within the group: 1 is rank 2 in group 1
    crossed = {0: [transfer(1, "recv 0<-1", group="1", **STARTED)], 1: []}
    crossed[2] = [transfer(1, "recv 1<-0", group="1", **STARTED)]
    found = made(tmp_path, crossed, groups)
    assert (found.kind, found.ranks) == ("order_deadlock", (0, 2))
    assert "rank 0 waits in group 1, recv 0<-1, for rank 2" in found.text
    crossed[2] = [transfer(1, "send 1->0", group="1", **STARTED)]
    found = made(tmp_path, crossed, groups)
    assert (found.kind, found.ranks) == ("stuck_kernel", (0, 2)) and "started recv 0<-1" in found.text


def test_a_batch_of_transfers_accuses_nobody(tmp_path):
    entries = [transfer(1, "recv 0<-1", **SCHEDULED), transfer(2, "coalesced", **STARTED)]
    found = made(tmp_path, {0: entries, 1: []}, {"0": [0, 1]})
    assert (found.kind, found.ranks) == ("unknown", ()) and "partners are not recorded" in found.text


def batch(p2p_seq: int, *names: str, collective_seq: int) -> list[dict[str, Any]]:
    """A batch that has ended, as ProcessGroupNCCL leaves it: its members stay scheduled."""
    members = [transfer(p2p_seq, name, **SCHEDULED) for name in names]
    return [*members, entry(collective_seq, "nccl:coalesced", p2p_seq_id=p2p_seq, input_sizes=[])]


def test_a_batch_of_transfers_has_no_number_among_the_collectives_and_ends_its_members(tmp_path):
    groups = {"0": [0, 1, 2]}
    ranks = {
        0: [entry(1), *batch(1, "send 0->1", "recv 0<-1", collective_seq=1), entry(2)],
        1: [entry(1), *batch(1, "send 1->0", "recv 1<-0", collective_seq=1), entry(2)],
        2: [entry(1), entry(2)],
    }
    assert made(tmp_path, ranks, groups).kind == "none"
    ranks[2][-1] = entry(2, **STARTED)
    ranks[0].pop()
    found = made(tmp_path, ranks, groups)
    assert (found.kind, found.ranks, found.seq) == ("not_joined", (0,), 2)


def test_a_batch_whose_members_the_ring_has_overwritten_is_no_collective(tmp_path):
    """Without them nothing says that it is one of transfers, and it has the number of a collective."""
    ranks = {
        0: [*batch(1, "send 0->1", collective_seq=5)[1:], entry(6)],
        1: [entry(5), entry(6)],
        2: [entry(5), entry(6)],
    }
    found = made(tmp_path, ranks, {"0": [0, 1, 2]})
    assert (found.kind, found.ranks) == ("none", ())
    ranks[0][-1] = entry(6, **STARTED)
    found = made(tmp_path, ranks, {"0": [0, 1, 2]})
    assert (found.kind, found.ranks) == ("stuck_kernel", (0,))


@pytest.mark.parametrize("record_id", [0, 5])
def test_a_batch_of_collectives_is_one_also_after_a_plain_send_and_in_a_cut_ring(tmp_path, record_id):
    def calls(*names, p2p_seq):
        collectives = entry(2, "nccl:coalesced", p2p_seq_id=p2p_seq, record_id=record_id, **STARTED)
        return [*(transfer(1, name) for name in names), collectives]

    ranks = {0: calls("send 0->1", p2p_seq=1), 1: calls("recv 1<-0", p2p_seq=1), 2: calls(p2p_seq=0)}
    found = made(tmp_path, ranks, {"0": [0, 1, 2]})
    assert (found.kind, found.ranks, found.seq) == ("stuck_kernel", (0, 1, 2), 2)


@pytest.mark.parametrize(
    "inside, kind, ranks", [((1,), "not_joined", (0,)), ((1, 2), "not_joined", (0,)), ((), "none", ())]
)
def test_a_first_receive_that_is_not_recorded_accuses_the_one_host_outside(tmp_path, inside, kind, ranks):
    """NCCL makes the communicator of a pair in its first call, which is recorded only after that."""
    world = (0, *(inside or (1,)))
    for rank in world:
        place = "/x/torch/distributed/distributed_c10d.py" if rank in inside else "/app/train.py"
        stack = f'Thread MainThread (most recent call first):\n  File "{place}", line 9 in irecv\n'
        (tmp_path / f"rank{rank}.stack.txt").write_text(stack)
    peer = {0: 1, 1: 0, 2: 0}
    transfers = {rank: batch(1, f"send {rank}->{peer[rank]}", collective_seq=0) for rank in world}
    found = made(tmp_path, transfers, {"0": list(world)})
    assert (found.kind, found.ranks) == (kind, ranks)


def test_two_hosts_outside_an_unrecorded_call_are_not_told_apart(tmp_path):
    for rank, place in enumerate(
        ("/app/train.py", "/app/train.py", "/torch/distributed/distributed_c10d.py")
    ):
        (tmp_path / f"rank{rank}.stack.txt").write_text(f'  File "{place}", line 9 in recv\n')
    found = made(tmp_path, {rank: [entry(1)] for rank in range(3)}, {"0": [0, 1, 2]})
    assert (found.kind, found.ranks) == ("unknown", ())


def entry(seq: int, name: str = "nccl:all_reduce", *, group: str = "0", **more: Any) -> dict[str, Any]:
    usual = {
        "process_group": [group, "default"],
        "collective_seq_id": seq,
        "profiling_name": name,
        "input_sizes": [[1024]],
        "output_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "record_id": seq,
        "time_created_ns": seq,
        "frames": [{"name": "step", "filename": "/app/train.py", "line": 10 + seq}],
    }
    return {**usual, **more}


def made(folder: Path, ranks: dict[int, list[dict[str, Any]]], groups: dict[str, list[int]]) -> Verdict:
    config = {name: {"name": name, "desc": "", "ranks": str(members)} for name, members in groups.items()}
    for rank, entries in ranks.items():
        document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        (folder / f"trace_{rank}").write_text(json.dumps(document))
    dumps = read_dumps(folder)
    return verdict_of(dumps)


STARTED = {"state": "started", "retired": False}
SCHEDULED = {"state": "scheduled", "retired": False}


def test_of_many_ranks_the_minority_mismatches(tmp_path):
    usual = [entry(1), entry(2, **STARTED)]
    odd = [entry(1), entry(2, input_sizes=[[512]], **STARTED)]
    found = made(tmp_path, {0: usual, 1: usual, 2: odd, 3: usual}, {"0": [0, 1, 2, 3]})
    assert (found.kind, found.ranks, found.seq) == ("mismatched", (2,), 2)
    assert "[512]" in found.text and found.frame == "/app/train.py:12 in step"


def test_dtypes_must_agree_too_and_gathers_by_their_inputs_only(tmp_path):
    gather = {"name": "nccl:_all_gather_base"}
    ranks = {rank: [entry(1, **gather, output_sizes=[[8 + rank]], **STARTED)] for rank in (0, 1)}
    assert made(tmp_path, ranks, {"0": [0, 1]}).kind == "stuck_kernel"
    ranks[1][0]["input_dtypes"] = ["BFloat16"]
    assert made(tmp_path, ranks, {"0": [0, 1]}).kind == "mismatched"


def test_a_backend_without_states_cannot_tell_a_kernel_from_a_host(tmp_path):
    ranks = {rank: [entry(1, "gloo:all_reduce", **SCHEDULED)] for rank in (0, 1)}
    found = made(tmp_path, ranks, {"0": [0, 1]})
    assert found.kind == "unknown" and "cannot be told" in found.text


@pytest.mark.parametrize(
    ("name", "state", "kind"),
    [
        ("gloo:all_reduce", "scheduled", "none"),  # gloo never writes another state
        ("nccl:all_reduce", "completed", "none"),
        ("nccl:all_reduce", "started", "stuck_kernel"),  # NCCL's watchdog retires what it gave up, too
    ],
)
def test_a_retired_call_has_ended_where_the_backend_has_no_states(tmp_path, name, state, kind):
    ranks = {rank: [entry(1, name), entry(2, name, state=state, retired=True)] for rank in (0, 1)}
    assert made(tmp_path, ranks, {"0": [0, 1]}).kind == kind


def test_overwritten_entries_of_a_ring_count_as_entered(tmp_path):
    config = {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}
    for rank, first in ((0, 90), (1, 96)):
        entries = [entry(seq) for seq in range(first, 100)] + [entry(100, **STARTED)][: 1 - rank]
        status = {"0": {"last_enqueued_collective": str(100 - rank), "last_completed_collective": "99"}}
        document = {"pg_config": config, "pg_status": status, "entries": entries}
        (tmp_path / f"r{rank}.json").write_text(json.dumps(document))
    dumps = read_dumps(tmp_path)
    found = verdict_of(dumps)
    assert (found.kind, found.ranks, found.seq) == ("not_joined", (1,), 100)


@pytest.mark.data
@pytest.mark.parametrize("case", ["stuck_kernel", "op_mismatch", "not_joined"])
def test_a_dump_that_cannot_be_read_is_no_evidence_that_its_rank_never_came(shared_data, tmp_path, case):
    shutil.copy(shared_data / f"ranks/flight_recorder_nccl/{case}_rank0.pkl", tmp_path / "rank_0.pkl")
    whole = (shared_data / f"ranks/flight_recorder_nccl/{case}_rank1.pkl").read_bytes()
    (tmp_path / "rank_1.pkl").write_bytes(whole[: len(whole) // 2])
    unread: dict[int, Any] = {}
    dumps = read_dumps(tmp_path, unread)
    found = verdict_of(dumps, unread)
    assert (found.kind, found.ranks, found.seq) == ("unknown", (1,), 4)
    assert found.text.startswith("it is not known whether rank 1 entered call 4")
    assert "the dump of rank 1 cannot be read" in found.text and "left no dump" not in found.text
    gone = verdict_of(dumps)
    assert gone.kind == "not_joined" and gone.text.startswith("nothing shows rank 1 in call 4")


@pytest.mark.data
@pytest.mark.parametrize(
    ("case", "words"), [("ok", "has ended on rank 0"), ("notjoined", "rank 0 entered call 4")]
)
def test_one_dump_of_gloo_says_nothing_of_ranks_that_nobody_names(shared_data, tmp_path, case, words):
    shutil.copy(shared_data / f"ranks/flight_recorder_gloo/{case}_rank0.pkl", tmp_path / "rank0.pkl")
    dumps = read_dumps(tmp_path)
    found = verdict_of(dumps)
    assert found.kind == "unknown" and words in found.text and "how many ranks the job has" in found.text


@pytest.mark.data
def test_a_gap_between_the_dumps_of_gloo_is_a_missing_rank(shared_data, tmp_path):
    for rank, name in ((0, "rank0"), (1, "rank2")):
        shutil.copy(shared_data / f"ranks/flight_recorder_gloo/ok_rank{rank}.pkl", tmp_path / f"{name}.pkl")
    dumps = read_dumps(tmp_path)
    found = verdict_of(dumps)
    assert (found.kind, found.missing) == ("unknown", (1,)) and "rank 1 left no dump" in found.text


@pytest.mark.parametrize("state", [STARTED, {}])
def test_calls_without_numbers_are_no_all_clear_and_accuse_nobody(tmp_path, state):
    numbered = [entry(1), entry(2, **state)]
    bare = [entry(1, collective_seq_id="x"), entry(2, collective_seq_id=None)]
    found = made(tmp_path, {0: bare, 1: numbered, 2: numbered}, {"0": [0, 1, 2]})
    assert found.kind == "unknown" and found.missing == (0,)
    assert "cannot be read" in found.text or "no dump that can be read" in found.text
    (tmp_path / "trace_1").unlink()
    (tmp_path / "trace_2").unlink()
    alone = made(tmp_path, {0: bare}, {"0": [0]})
    assert alone.kind == "unknown" and "have no numbers" in alone.text


@pytest.mark.parametrize("sizes", [None, [["a"]]])
def test_sizes_that_were_not_recorded_are_no_mismatch(tmp_path, sizes):
    ranks = {0: [entry(1, input_sizes=sizes), entry(2, **STARTED)], 1: [entry(1)]}
    found = made(tmp_path, ranks, {"0": [0, 1]})
    assert (found.kind, found.ranks, found.seq) == ("not_joined", (1,), 2)
    other = made(tmp_path, {0: [entry(1, "nccl:broadcast", input_sizes=sizes)], 1: [entry(1)]}, {"0": [0, 1]})
    assert other.kind == "mismatched"


@pytest.mark.parametrize("seed", range(60))
def test_simulated_hangs_accuse_nobody_who_is_a_victim(tmp_path, seed):
    """Pipelines x data x tensor parallelism: a dead rank, swapped orders, other sizes, missing dumps."""
    hang = hangs.draw(seed)
    if not hangs.write_dumps(hang, tmp_path):
        return  # the orders that were swapped meet no one
    dumps = read_dumps(tmp_path)
    found = verdict_of(dumps)
    if hang.kind in (hangs.SIZES, hangs.SWAPPED):
        kind = "mismatched" if hang.kind == hangs.SIZES else "order_deadlock"
        assert found.kind == kind and hang.culprit in found.ranks
    elif hang.kind == hangs.INNOCENT_GONE and found.kind == "unknown":
        assert "cannot be told" in found.text
    else:
        assert (found.kind, found.ranks) == ("not_joined", (hang.culprit,))


@pytest.mark.data
def test_a_host_inside_a_call_that_is_not_recorded_is_no_all_clear(shared_data, tmp_path):
    """gloo records no sends and receives: a stack inside one is all that tells of it."""
    for rank in (0, 1):
        source = shared_data / f"ranks/flight_recorder_gloo/ok_rank{rank}.json"
        shutil.copy(source, tmp_path / f"rank{rank}.json")
    frames = (
        'File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2621 in recv',
        'File "train.py", line 7 in run',
    )
    (tmp_path / "rank1.stack.txt").write_text(
        "Thread 0x1 (most recent call first):\n  " + "\n  ".join(frames) + "\n"
    )
    dumps = read_dumps(tmp_path)
    found = verdict_of(dumps)
    assert found.kind == "unknown" and 'rank 1 at File "train.py", line 7 in run' in found.text
