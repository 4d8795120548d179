"""The verdict over records made by hand: places, machines, ranks, damaged files."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.compare.same.sources import source_of
from lab.compare.same.steps import Record, folders_of, gather, judge_steps
from lab.compare.same.steps_text import answer, missing, sentences
from lab.workload.recorder.format import read

OPS = ("aten.mm.default", "aten.index_add_.default", "aten.add.Tensor")


def line(step, attempt, phase, kind, op, ck, module="", in_ck=()):
    row = {"step": step, "attempt": attempt, "phase": phase, "kind": kind, "op": op, "ck": ck}
    return {**row, "module": module, "in_ck": list(in_ck)}


def write(
    path, *, rank=0, world=1, host="a", uuid="", change=(), repeats=(), replicated=False, more=(), end=True
):
    """Two steps of three operators; `change`: (step, attempt, place) whose bits differ."""
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = {"format": 2, "rank": rank, "world": world, "host": host, "uuid": uuid, "replicated": replicated}
    lines = [{"meta": meta}]
    spread = False
    for step in (1, 2):
        for attempt in (0, *repeats):
            if attempt == 0:
                lines.append(line(step, 0, "start", "input", "batch", f"b{step}"))
            last = f"b{step}"
            for at, op in enumerate(OPS):
                spread |= (step, attempt, at) in change
                out = f"{step}{at}{'x' + host + str(rank) if spread else ''}"
                lines.append(line(step, attempt, "fwd", "op", op, out, "blocks.0", [last]))
                last = out
            if attempt:
                spread = False
        lines.append(line(step, 0, "update", "weight", "w", last))
    lines += more
    if end:
        lines.append({"end": {"rows": len(lines) - 1, "steps": 2}})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def record(path, run):
    return Record.of(run, read(path))


def of(tmp_path, *runs):
    names = [given.pop("run", f"run-{n}") for n, given in enumerate(runs)]
    return [record(write(tmp_path / f"{n}.jsonl", **given), names[n]) for n, given in enumerate(runs)]


def changed(records, number, position, **columns):
    """The same records with one row of the program's own first step changed."""
    rows = records[number].attempts[1, 0]
    key = list(rows)[position]
    rows[key] = msgspec.structs.replace(rows[key], **columns)


def test_equal_records_are_bitwise(tmp_path):
    verdict = judge_steps(of(tmp_path, {}, {}, {}))
    assert verdict.outcome == "bitwise" and verdict.groups == [["run-0", "run-1", "run-2"]]


def test_the_operator_that_differs_on_equal_inputs_is_named_with_its_switch(tmp_path):
    records = of(tmp_path, {}, {"change": [(2, 0, 1)]})
    verdict = judge_steps(records)
    assert verdict.outcome == "run-to-run" and verdict.first_place.equal_inputs is True
    assert (verdict.first_place.step, verdict.first_place.module) == (2, "blocks.0")
    assert any("use_deterministic_algorithms" in text for text in sentences(verdict))


def test_an_operator_that_was_given_other_numbers_is_not_blamed_for_them(tmp_path):
    """What came from numpy, a clock or unwritten memory is met first by an innocent index_add."""
    records = of(tmp_path, {}, {})
    changed(records, 1, 2, in_ck=("other",), ck="other")
    verdict = judge_steps(records)
    text = " ".join(sentences(verdict))
    assert verdict.first_place.op == OPS[1] and verdict.first_place.equal_inputs is False
    assert "made in code before it that is not seen" in text and "Known:" not in text
    assert answer(verdict)["first"]["switch"] is None
    drawn = of(tmp_path, *({"more": [line(1, 0, "start", "random", "python", str(n))]} for n in range(2)))
    changed(drawn, 1, 2, in_ck=("other",), ck="other")
    text = " ".join(sentences(judge_steps(drawn)))
    assert "Random numbers of python differed when that step began, not seeded: perhaps one of them" in text


def test_what_repeats_do_not_run_again_is_not_said_to_need_another_process(tmp_path):
    """The loss lies outside of the model, and so do data and update: only forward and backward run again."""
    for (phase, kind, op, in_ck), again in (
        (("bwd", "op", "aten.mul.Tensor", ["N"]), False),
        (("fwd", "op", "aten.mul.Tensor", ["N"]), True),
        (("bwd", "op", "aten.mul.Tensor", ["1"]), True),
        (("start", "input", "batch", []), False),
        (("update", "weight", "v", []), False),
    ):
        text = json.dumps(line(1, 0, phase, kind, op, "N", in_ck=in_ck))
        runs = [{"repeats": (1,), "more": [json.loads(text.replace('"N"', f'"{n}"'))]} for n in range(2)]
        records = of(tmp_path, *runs)
        told = " ".join(sentences(judge_steps(records)))
        assert ("needs another process" in told) == again and ("does not run again" in told) != again
    assert "The gradients of this update had equal bits" in told


def test_a_generator_that_nothing_drew_from_and_nobody_seeded_is_said(tmp_path):
    records = of(tmp_path, *({"more": [line(1, 0, "start", "random", "numpy", str(n))]} for n in range(2)))
    verdict = judge_steps(records)
    assert verdict.outcome == "bitwise" and "numpy are not seeded" in " ".join(sentences(verdict))


def test_machines_that_differ_while_each_repeats_itself(tmp_path):
    other = {"host": "b", "change": [(1, 0, 0)]}
    assert judge_steps(of(tmp_path, {}, {}, dict(other), dict(other))).outcome == "machine-to-machine"
    # One machine that differs from itself is no difference of machines.
    assert judge_steps(of(tmp_path, {}, {"change": [(1, 0, 0)]}, dict(other))).outcome == "run-to-run"


def test_a_repeat_that_differs_on_one_machine_is_run_to_run_though_machines_differ(tmp_path):
    records = of(tmp_path, {"repeats": (1, 2)}, {"host": "b", "repeats": (1, 2), "change": [(1, 1, 2)]})
    verdict = judge_steps(records)
    assert verdict.outcome == "run-to-run" and verdict.repeats_agree is False
    assert verdict.first_place.comparison == "repeats" and verdict.first_place.op == "aten.add.Tensor"


def test_a_replica_whose_weights_differ_is_named_without_a_second_run(tmp_path):
    ranks = [{"rank": r, "world": 3, "replicated": True, "run": "run-0"} for r in range(3)]
    ranks[2]["change"] = [(2, 0, 2)]
    verdict = judge_steps(of(tmp_path, *ranks))
    assert (verdict.outcome, verdict.first_place.comparison, verdict.first_place.rank) == (
        "machine-to-machine",
        "ranks",
        2,
    )


def test_another_operator_in_one_run_is_a_difference(tmp_path):
    extra = line(2, 0, "fwd", "op", "aten.mul.Tensor", "1")
    for order in ((0, 1), (1, 0)):
        runs = [{}, {"more": [extra]}]
        verdict = judge_steps(of(tmp_path, *(dict(runs[at]) for at in order)))
        assert verdict.first_place.op == "aten.mul.Tensor" and verdict.first_place.absent


def test_the_same_batches_in_another_order_are_told_from_other_batches(tmp_path):
    a = write(tmp_path / "a.jsonl")
    b = tmp_path / "b.jsonl"
    b.write_text(a.read_text().replace('"b1"', '"B"').replace('"b2"', '"b1"').replace('"B"', '"b2"'))
    verdict = judge_steps([record(a, "run-0"), record(b, "run-1")])
    assert verdict.outcome == "input pipeline" and verdict.same_batches
    b.write_text(a.read_text().replace('"b2"', '"other"'))
    verdict = judge_steps([record(a, "run-0"), record(b, "run-1")])
    assert verdict.outcome == "input pipeline" and verdict.first_place.step == 2 and not verdict.same_batches


def test_records_without_a_value_are_nothing_seen_and_no_all_clear(tmp_path):
    path = tmp_path / "bits_rank0.jsonl"
    path.write_text('{"meta":{"format":2,"rank":0}}\n{"end":{"rows":0,"steps":0}}\n')
    records = [record(path, "run-0")]
    verdict = judge_steps(records)
    assert verdict.outcome == "nothing seen"
    assert "nothing was seen: no training step of a model was recorded" in missing(verdict)


def test_a_record_that_is_cut_off_or_lacks_a_rank_is_said(tmp_path):
    whole = write(tmp_path / "steps/run-0/bits_rank0.jsonl", world=2)
    cut = tmp_path / "steps/run-1/bits_rank0.jsonl"
    cut.parent.mkdir()
    cut.write_text(whole.read_text()[:-60])
    _, problems = gather(folders_of(tmp_path))
    assert any("no record of 1 rank: 1" in text for text in problems)
    assert any("run-1" in text and "cut off" in text for text in problems)


def test_a_run_that_ended_early_is_said(tmp_path):
    whole = write(tmp_path / "a.jsonl")
    short = [text for text in whole.read_text().splitlines() if '"step": 2' not in text]
    end = json.dumps({"end": {"rows": len(short) - 2, "steps": 1}})
    (tmp_path / "b.jsonl").write_text("\n".join([*short[:-1], end, ""]))
    records = [record(tmp_path / f"{name}.jsonl", name) for name in "ab"]
    verdict = judge_steps(records)
    assert verdict.outcome == "bitwise"
    assert "from 1 to 2 steps recorded" in " ".join(missing(verdict))


def reduced(tmp_path, given, out, ranks=(0, 1), world=2):
    """Two runs of ranks that end with an all_reduce; given, out: of (run, rank), if not `same`."""
    runs = []
    for run in range(2):
        for rank in ranks:
            in_ck, ck = given.get((run, rank), "same"), out.get((run, rank), "same")
            event = line(1, 0, "update", "comm", "c10d.allreduce_.default", ck, in_ck=[in_ck])
            runs.append({"rank": rank, "world": world, "run": f"run-{run}", "more": [event]})
    records = of(tmp_path, *runs)
    verdict = judge_steps(records)
    return verdict.first_place, " ".join(sentences(verdict)), answer(verdict)["first"]


def test_a_collective_that_gets_other_numbers_from_one_rank_is_not_blamed_on_the_others(tmp_path):
    """The other rank's inputs are equal and its output differs: it would pass for the one that made it."""
    first, text, told = reduced(tmp_path, {(1, 1): "other"}, {(1, 0): "x", (1, 1): "x"})
    assert first.rank == 1 and first.equal_inputs is False and told["inputs_differ_on"] == (1,)
    assert "inputs differed on rank 1 alone" in text and "Known:" not in text


@pytest.mark.parametrize("ranks, says", [((0, 1), "all 2 ranks"), ((1,), "rank 1 alone")])
def test_a_collective_whose_inputs_are_equal_on_all_ranks_made_the_difference(tmp_path, ranks, says):
    first, text, told = reduced(tmp_path, {}, {(1, rank): "x" for rank in ranks})
    assert first.rank == ranks[0] and first.equal_inputs is True
    assert told["outputs_differ_on"] == ranks
    assert f"output differs on {says}: the difference is made in the collective" in text
    assert "Known: the order of a sum over ranks" in text


def test_of_a_collective_without_the_record_of_a_rank_the_inputs_are_not_known(tmp_path):
    first, text, _ = reduced(tmp_path, {}, {(1, 0): "x"}, ranks=(0,))
    assert first.equal_inputs is None and "some ranks have no record of it" in text


@pytest.mark.parametrize(
    "op, word",
    [
        ("aten.index_add_.default", "atomic"),
        ("aten.scatter_add.default", "atomic"),
        ("aten._scaled_dot_product_flash_attention_backward.default", "atomics over blocks"),
        ("aten.addmm.default", "split-K"),
        ("aten.native_dropout.default", "random"),
        ("aten.bernoulli_.float", "random"),
        ("c10d.allreduce_.default", "over ranks"),
        ("aten.cumsum.default", "scan"),
        ("aten.convolution_backward.default", "algorithms"),
        ("triton_kernels.my_op.default", "custom"),
    ],
)
def test_known_sources_are_matched(op, word):
    assert word in source_of(op).reason


@pytest.mark.parametrize("op", ["aten.add.Tensor", "mylib.atomic_add.default", "aten.relu.default", ""])
def test_what_is_no_known_source_gets_no_switch(op):
    assert source_of(op) is None


def test_a_replica_that_ended_a_step_before_the_others_is_held_to_the_steps_that_all_have(tmp_path):
    records = of(tmp_path, *({"rank": r, "world": 2, "replicated": True, "run": "run-0"} for r in range(2)))
    del records[1].attempts[2, 0]
    assert judge_steps(records).outcome == "bitwise"
