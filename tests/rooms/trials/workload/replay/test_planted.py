"""Planted causes are named at their first place, in one process and on two ranks of gloo."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lab.compare.same.steps import gather, judge_steps  # noqa: E402
from lab.compare.same.steps_text import sentences  # noqa: E402
from tests.conftest import free_port  # noqa: E402
from tests.rooms.trials.workload.replay.trainee import PLANTS, expected, train  # noqa: E402

pytestmark = pytest.mark.torch
CASES = [
    (plant, {"where": (at + n) % 3, "step": 1 + (at + 2 * n) % 3, "seed": 100 * at + n})
    for n in range(2)
    for at, plant in enumerate(PLANTS)
]


def records(folder, runs=2):
    return gather((f"run-{run}", folder / f"run-{run}") for run in range(runs))[0]


def named(finding):
    first = finding.first_place
    place = (first.step, first.rank, first.module, first.direction, first.kind, first.op)
    return finding.outcome, *place


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("plant, given", CASES)
def test_a_planted_cause_is_named_at_its_first_place(plant, given, tmp_path):
    for run in range(2):
        train(tmp_path / f"run-{run}", plant, run=run, repeats=given["seed"] % 2, **given)
    assert named(judge_steps(records(tmp_path))) == expected(plant, where=given["where"], step=given["step"])


def test_a_job_without_a_plant_is_bitwise_and_its_repeats_too(tmp_path):
    for run in range(3):
        train(tmp_path / f"run-{run}", "none", where=0, step=1, seed=7, run=run, repeats=2)
    finding = judge_steps(records(tmp_path, 3))
    assert finding.outcome == "bitwise" and finding.first_place is None and finding.repeats_agree
    assert (
        finding.steps == 3
        and finding.repeats == 3 * 3 * 2
        and finding.groups == [["run-0", "run-1", "run-2"]]
    )


def test_nothing_stays_behind_and_the_numbers_are_those_without_a_recorder(tmp_path):
    from torch import nn

    from lab.rooms.trials.workload.replay.training import Training

    before = nn.Module.__call__, torch.autograd.backward, torch.autograd.grad

    def trained(recorder):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if recorder:
            recorder.start()
        for _ in range(5):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(2):  # two micro-batches
                model(torch.randn(8, 4)).square().sum().backward()
            optimizer.step()
        return [one.detach().clone() for one in (*model.parameters(), *model.buffers())], model

    plain, _ = trained(None)
    recorder = Training(tmp_path, steps=3, repeats=2, level="op", leave=False)
    seen, model = trained(recorder)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert (nn.Module.__call__, torch.autograd.backward, torch.autograd.grad) == before
    assert not any(one._post_accumulate_grad_hooks for one in model.parameters())
    (record,), _ = gather([("run-0", tmp_path)])
    assert record.recording.end["steps"] == 3 and not record.recording.end["notes"]
    assert judge_steps([record]).repeats_agree


@pytest.mark.parametrize("plant", ["atomic", "flip", "rank"])
def test_without_operators_the_module_is_named(plant, tmp_path):
    for run in range(2):
        train(tmp_path / f"run-{run}", plant, where=1, step=2, seed=5, run=run, level="module", repeats=0)
    _, step, rank, module, direction, _, _ = expected(plant, where=1, step=2)
    assert named(judge_steps(records(tmp_path)))[1:5] == (step, rank, module, direction)


@pytest.mark.parametrize("level", ["op", "module"])
def test_a_gradient_that_is_changed_before_the_update_is_named_there_and_not_a_step_later(level, tmp_path):
    """Between backward and update nothing is recorded: a collective by hand, clipping, the program itself."""
    from torch import nn

    from lab.rooms.trials.workload.replay.training import Training

    for run in range(2):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        recorder = Training(tmp_path / f"run-{run}", steps=3, repeats=1, level=level, leave=False)
        recorder.start()
        for step in range(1, 5):
            optimizer.zero_grad()
            model(torch.ones(8, 4) * step).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if step == 2:  # by so little that AdamW's weights may not show it
                with torch.no_grad():
                    model[1].weight.grad[0, 2] *= 1 + run * 2**-23
            optimizer.step()
    finding = judge_steps(records(tmp_path))
    assert named(finding) == ("run-to-run", 2, 0, "1", "update", "used", "1.weight") and finding.repeats_agree


def _rank(rank, port, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    for number, (plant, given) in enumerate(CASES):
        for run in range(2):
            out = folder / str(number) / f"run-{run}"
            more = {"rank": rank, "odd_rank": number % 2, "world": 2, "repeats": int(number < len(PLANTS))}
            train(out, plant, run=run, **more, **given)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_planted_causes_on_two_ranks_of_gloo(tmp_path):
    torch.multiprocessing.spawn(_rank, args=(free_port(), tmp_path), nprocs=2)
    wrong = []
    for number, (plant, given) in enumerate(CASES):
        finding = judge_steps(records(tmp_path / str(number)))
        wanted = expected(plant, where=given["where"], step=given["step"], odd_rank=number % 2, world=2)
        if named(finding) != wanted:
            wrong.append((plant, given, number % 2, named(finding), wanted))
    assert not wrong, wrong


def _by_hand(rank, port, folder, world=2):
    """Data parallel as a stranger writes it: an all_reduce per gradient after the backward."""
    from torch import distributed, nn

    from lab.rooms.trials.workload.replay.training import Training

    torch.set_num_threads(1)
    where = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
    plain = distributed.all_reduce
    for plant in PLANTS_BY_HAND:
        for run in range(2):
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            out = folder / plant / f"run-{run}"
            recorder = Training(out, steps=3, repeats=1, level="op", leave=False)
            recorder.start()
            for step in range(1, 4):
                bad = run == 1 and step == 2 and rank == 1
                optimizer.zero_grad()
                model(torch.ones(8, 4) * (step + rank)).square().sum().backward()
                for weight in model.parameters():
                    if plant == "before" and bad and weight.shape == (1, 4):
                        weight.grad.numpy()[0, 2] *= 1 + 2**-20  # one ulp may be rounded off in the sum
                    distributed.all_reduce(weight.grad)
                    if plant == "after" and bad and weight.shape == (1, 4):
                        weight.grad.numpy()[0, 2] *= 1 + 2**-23
                    weight.grad /= world
                optimizer.step()
            recorder.stop(ended=True)
            assert distributed.all_reduce is plain
    distributed.destroy_process_group()


PLANTS_BY_HAND = ("none", "before", "after")


def test_of_an_all_reduce_by_hand_the_rank_is_named_on_which_the_difference_began(tmp_path):
    torch.multiprocessing.spawn(_by_hand, args=(free_port(), tmp_path), nprocs=2)
    assert judge_steps(records(tmp_path / "none")).outcome == "bitwise"
    for name, place in (
        ("before", (2, 1, "", "update", "comm", "c10d.allreduce_.default")),
        ("after", (2, 1, "1", "update", "used", "1.weight")),
    ):
        found = judge_steps(records(tmp_path / name))
        assert named(found)[1:] == place, named(found)
        text = " ".join(sentences(found))
        wanted = {"before": "inputs differed on rank 1 alone", "after": "It differs on rank 1 alone"}[name]
        assert wanted in text
        assert ("allreduce" in str(found.first_place)) == (name == "before")
