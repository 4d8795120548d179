"""The first producer over ranks, and what a missing, cut off or hostile record does to the verdict."""

from __future__ import annotations

import json

import numpy
import pytest

from lab.rooms.nan.guarded.page import guarded_page, sentences_of
from lab.rooms.nan.guarded.read import Event, Mark, Record, read, verdict_of


def event(step=1, stage="forward", module="a", **more):
    return {"step": step, "stage": stage, "place": f"in {stage} of {module}", "module": module, **more}


def record(rank, first=None, world=2, status=None, **more):
    status = status or ("bad" if first else "clean")
    base = {
        "format": 1,
        "rank": rank,
        "world": world,
        "status": status,
        "updates": 6,
        "sentence": "",
        "ended": True,
    }
    steps = [{"step": first["step"], "events": [first]}] if first else []
    return {**base, "first": first, "steps": steps, **more}


def written(folder, *records):
    for one in records:
        (folder / f"guard_rank{one['rank']}.json").write_text(json.dumps(one))
    return read([folder])


def joined(folder, *records):
    return verdict_of([one for _, one in written(folder, *records).records])


def test_the_earlier_step_wins_and_then_the_earlier_stage(tmp_path):
    v = joined(tmp_path, record(0, event(2, "weights_before")), record(1, event(1, "weights_after")))
    assert (v.rank, v.first.step) == (1, 1)
    v = joined(tmp_path, record(0, event(1, "act_grads")), record(1, event(1, "forward")))
    assert (v.rank, v.first.stage) == (1, "forward")


def test_updates_after_which_nothing_was_read_are_said(tmp_path):
    found = written(tmp_path, record(0, world=1, unread_updates=4))
    records = [one for _, one in found.records]
    said = sentences_of(verdict_of(records), records)
    assert any("not read after 4 of 6 updates" in text for text in said)
    whole = [one for _, one in written(tmp_path, record(0, world=1)).records]
    assert not any("not read" in text for text in sentences_of(verdict_of(whole), whole))


def test_what_came_by_a_reduction_is_never_first_in_its_step(tmp_path):
    v = joined(tmp_path, record(0, event(1, "after_reduce")), record(1, event(1, "weights_after")))
    assert v.rank == 1


def test_a_place_that_is_known_comes_before_one_that_is_not(tmp_path):
    v = joined(tmp_path, record(0, event(unsure="sharded")), record(1, event()))
    assert v.rank == 1


def test_a_rank_without_a_record_is_not_clean(tmp_path):
    v = joined(tmp_path, record(0, world=4), record(2, world=4))
    assert v.status == "partly-seen" and v.missing_ranks == [1, 3]
    assert joined(tmp_path, record(0), record(1)).status == "partly-seen", (
        "rank 2 of 4 is still there, 3 is not"
    )


def test_a_process_that_did_not_end_in_order_is_not_clean(tmp_path):
    assert joined(tmp_path, record(0), record(1, ended=False)).status == "partly-seen"
    assert joined(tmp_path, record(0), record(1)).status == "clean"


def test_no_record_at_all_is_nothing_seen():
    assert verdict_of([]).status == "nothing-seen"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format":1,"rank":"x"}', "\x00"])
def test_a_broken_record_is_a_problem_and_never_a_hole(tmp_path, text):
    (tmp_path / "guard_rank1.json").write_text(text)
    found = written(tmp_path, record(0, world=2))
    assert len(found.records) == 1 and "guard_rank1.json" in found.problems[0]
    page = guarded_page(found, tmp_path / "out", "t", {})
    assert any("no record of 1 rank: 1" in one for one in page.lacking) and page.status == "warn"


def test_control_sequences_and_formulas_of_a_record_reach_neither_terminal_nor_sheet(tmp_path):
    hostile = event(module="a", name="=cmd|' /C calc'!A0")
    hostile["place"] = "\x1b[2Jin \u009b31m<script>alert(1)</script>"
    found = written(tmp_path, record(0, hostile, world=1, notes=["\x07bell"]))
    page = guarded_page(found, tmp_path / "out", "t", {})
    assert not any((ord(one) < 32 and one != "\n") or 127 <= ord(one) < 160 for one in page.terminal)
    assert "<script>alert" not in (tmp_path / "out" / "report.html").read_text()
    assert ",=cmd" not in (tmp_path / "out" / "tables" / "events.csv").read_text()


def test_a_bad_number_is_a_failure_and_its_sentence_names_step_operator_and_rank(tmp_path):
    op = {
        "name": "aten.div.Tensor",
        "node": "SqrtBackward0",
        "line": "train.py:41",
        "shapes": ["4x8"],
        "dtypes": ["float32"],
    }
    found = written(tmp_path, record(0), record(1, event(3, "act_grads", "b.1.n2", op=op)))
    page = guarded_page(found, tmp_path / "out", "t", {})
    assert page.verdict[0] == (
        "Step 3: first bad number in act_grads of b.1.n2 (aten.div.Tensor in SqrtBackward0, train.py:41), "
        "rank 1 of 2."
    )
    assert page.status == "fail"


def test_what_was_no_utf_8_and_numbers_of_numpys_are_written_so_that_they_are_read(tmp_path):
    pytest.importorskip("torch")
    from lab.rooms.nan.watch.guard.guard import write_record

    first = Event(2, "loss", "in the loss (caf\udce9.py:3)", nan=numpy.float64(1))
    values = {"rank": 0, "world": 1, "status": "bad", "updates": 3, "sentence": "", "first": first}
    write_record(tmp_path / "guard_a.json", Record(**values))
    write_record(tmp_path / "process_a.json", Mark(pid=1, command="\udcff.py"))
    found = read([tmp_path])
    assert not found.problems and found.marks["a"].command == "?.py"
    assert found.records[0][1].first == Event(2, "loss", "in the loss (caf?.py:3)", nan=1.0)
