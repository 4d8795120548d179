"""A change is split exactly, named alone, and never claimed between equal runs."""

from __future__ import annotations

import json
import random
import re
import shutil

import pytest
from click.testing import CliRunner

from lab.compare.cli import diff as command
from lab.compare.diff import around, timelines
from lab.compare.diff import split as splitting
from lab.compare.diff import text as terminal
from lab.compare.diff.comparison import compare, compare_pair, compare_sides
from lab.compare.diff.split import PARTS
from lab.compare.side import read_works, recordings_at
from lab.errors import BadDataError, MissingError, UsageError
from lab.recordings.load import load_capture
from lab.recordings.projection import project
from tests.compare.made import edited, layer, trace, with_loader, with_work_between
from tests.conftest import SHARED

SERVE = SHARED / "serve"
shared = pytest.mark.skipif(not SERVE.exists(), reason="the shared recordings are not here")
BASE = [layer() + layer()] * 4


def of(tmp_path, a=BASE, b=BASE, **more):
    return compare(trace(tmp_path / "a.json", a), trace(tmp_path / "b.json", b, **more)).shown


def adds_up(found):
    assert sum(found.parts.values()) == pytest.approx(found.delta_kernel_ns, abs=1e-6)
    assert sum(row.ns for row in found.rows) == pytest.approx(found.delta_kernel_ns, abs=1e-3)
    assert found.residual_ns == pytest.approx(0, abs=1e-3)
    span = found.compute_ns + found.exposed_comm_ns + found.exposed_copy_ns + found.idle_ns
    assert span == pytest.approx(found.span_ns, abs=1e-3)
    causes = found.idle_late_ns + found.idle_wait_ns + found.idle_queued_ns + found.idle_unknown_ns
    assert causes == pytest.approx(found.idle_ns, abs=1e-3)


def test_equal_recordings_differ_in_nothing(tmp_path):
    found = of(tmp_path)
    adds_up(found)
    assert found.comparable and found.findings == [] and set(found.parts.values()) == {0.0}
    assert (found.span_ns, found.idle_ns, found.units_a) == (0, 0, 4)


def slower(scale):
    """BASE with other times of its products."""
    return [[(op, d, k, us * (scale if op == "aten::mm" else 1)) for op, d, k, us in step] for step in BASE]


def test_one_op_five_percent_slower_is_named_alone_with_its_size(tmp_path):
    found = of(tmp_path, b=slower(1.05))
    adds_up(found)
    assert [one.kind for one in found.findings] == ["same_kernel_duration"]
    assert found.findings[0].ns == pytest.approx(2 * 2000) and "aten::mm" in found.findings[0].text
    assert found.parts["same_kernel_duration"] == pytest.approx(4000)
    assert found.rows[0].confidence == "one pair only"


def test_another_kernel_for_an_op_is_one_exchange(tmp_path):
    other = [[(op, d, k.replace("128", "256"), us) for op, d, k, us in step] for step in slower(1.05)]
    found = of(tmp_path, b=other)
    adds_up(found)
    row = next(row for row in found.rows if row.ns)
    kernels = (row.kernel_a, row.kernel_b, row.n_a, row.n_b)
    assert kernels == ("gemm_128", "gemm_256", 2, 2) and row.kind == "other_kernel"
    assert row.ns == found.parts["other_kernel"] == pytest.approx(4000) and len(found.findings) == 1


def test_several_kernels_of_an_op_that_took_the_place_of_others_are_one_change(tmp_path):
    """A product by split K: two kernels where there was one, of another vendor's library two others."""
    mm = [[64, 64], [64, 64]]
    others = [(op, dims, k, dur) for op, dims, k, dur in layer() if op != "aten::mm"]

    def by(*kernels):
        return [[*(("aten::mm", mm, kernel, us) for kernel, us in kernels), *others]] * 3

    found = of(tmp_path, a=by(("gemm", 30.0), ("reduce", 4.0)), b=by(("Cijk_a", 36.0), ("Cijk_b", 5.0)))
    adds_up(found)
    (one,) = found.findings
    assert (one.kind, one.ns, len(one.rows)) == ("other_kernel", pytest.approx(7000), 4)
    assert "gemm, reduce -> Cijk_a, Cijk_b (+7.0 µs)" in one.text
    assert [row.ns for row in found.rows if row.kind == "other_kernel"] == [36e3, -30e3, 5e3, -4e3]


def test_a_launch_more_is_a_count_and_a_layer_more_is_all_counts(tmp_path):
    once = [[*step, layer()[3]] for step in BASE]
    found = of(tmp_path, b=once)
    adds_up(found)
    assert found.parts["count"] == pytest.approx(3000) == found.delta_kernel_ns
    assert {one.kind for one in found.findings} == {"count", "api"}
    deeper = of(tmp_path, b=[step + layer() for step in BASE])
    adds_up(deeper)
    assert deeper.parts["count"] == pytest.approx(55_000)
    assert {row.op: row.n_b - row.n_a for row in deeper.rows if row.kind == "count"} == dict.fromkeys(
        ("aten::mm", "aten::add", "aten::mul", "aten::relu"), 1.0
    )


def test_an_op_that_moved_is_named_alone_and_takes_no_time(tmp_path):
    mm, add, mul, relu = layer()
    a = [[mm, add, mul, relu]] * 4
    found = of(tmp_path, a=a, b=[[add, mm, mul, relu]] * 4)
    adds_up(found)
    assert [one.kind for one in found.findings] == ["moved"] and found.findings[0].ns is None
    assert "launched in another order" in found.findings[0].text


def test_kernels_whose_ops_are_not_known_are_ordered_by_their_names(tmp_path):
    gemm, norm, fill, relu = (
        ("", [], name, us) for name, us in (("gemm", 40.0), ("norm", 9.0), ("fill", 2.0), ("relu", 3.0))
    )
    whole = [[gemm, norm, fill, relu]] * 4
    without = of(tmp_path, a=whole, b=[[gemm, norm, relu]] * 4)
    assert {one.kind for one in without.findings} == {"other_kernel", "api"}
    moved = of(tmp_path, a=whole, b=[[norm, gemm, fill, relu]] * 4)
    assert [one.text for one in moved.findings] == ["norm launched in another order, 1 time per unit"]
    assert timelines.timelines(*compare_sides(tmp_path / "a.json", tmp_path / "b.json").shown.placed)


def test_ops_that_took_the_place_of_others_are_one_block_for_all_layers(tmp_path):
    parts = {"aten::relu": [("aten::exp", "exp", 4.0), ("aten::sum", "sum", 5.0)]}
    swapped = [
        [(new, d, *rest) for op, d, k, us in step for new, *rest in parts.get(op, [(op, k, us)])]
        for step in BASE
    ]
    found = of(tmp_path, b=swapped)
    adds_up(found)
    block = found.blocks[0]
    assert (block.ops_a, block.ops_b, block.times) == (["aten::relu"], ["aten::exp", "aten::sum"], 2)
    assert block.ns == pytest.approx(2 * (9 - 3) * 1000) and len(found.blocks) == 1
    assert [one.kind for one in found.findings][:1] == ["replaced_block"]


def test_a_difference_turned_around_is_its_negative(tmp_path):
    random.seed(4)
    other = [[(op, dims, k, dur * random.uniform(0.5, 2)) for op, dims, k, dur in step[:-1]] for step in BASE]
    a, b = trace(tmp_path / "a.json", BASE), trace(tmp_path / "b.json", other)
    there, back = compare(a, b).shown, compare(b, a).shown
    for part in ("count", "other_kernel", "same_kernel_duration"):
        assert there.parts[part] == pytest.approx(-back.parts[part])
    assert there.parts["op_gone"] == pytest.approx(-back.parts["op_new"])
    assert there.span_ns == pytest.approx(-back.span_ns)


@pytest.mark.parametrize("prefix", ["ProfilerStep#", "train_step "])
def test_a_shifted_clock_and_another_name_of_steps_change_nothing(tmp_path, prefix):
    a = trace(tmp_path / "a.json", BASE, prefix=prefix)
    b = trace(tmp_path / "b.json", BASE, prefix=prefix, shift_us=123_456)
    found = compare(a, b).shown
    assert found.unit == "step" and found.units_b == 4 and found.findings == [] and found.span_ns == 0


def test_the_steps_of_a_diff_are_those_of_the_summary(tmp_path):
    """One list: what `lab nsys summary` takes for a measured step is a unit of `lab diff`."""
    for prefix in ("train step: ", "dataloader_iter ", "forward_step_", "micro_step "):
        path = trace(tmp_path / "a.json", BASE, prefix=prefix)
        (work,) = read_works(path)
        steps = project(load_capture(path)).steps
        assert len(work.steps_ns) == len(steps) == (4 if prefix in ("train step: ", "forward_step_") else 0)


def test_without_steps_a_call_of_the_longest_kernel_is_the_unit_and_windows_may_differ(tmp_path):
    a = trace(tmp_path / "a.json", BASE, prefix="nothing ")
    b = trace(tmp_path / "b.json", [layer() + layer()] * 6, prefix="nothing ")
    found = compare(a, b).shown
    assert found.unit == "call of gemm_128" and (found.units_a, found.units_b) == (8, 12)
    assert found.delta_kernel_ns == pytest.approx(0) and any("edges" in note for note in found.notes)


def test_empty_steps_and_a_single_one_are_said(tmp_path):
    found = of(tmp_path, b=[*BASE[:3], BASE[0] + layer(), []])
    assert any(note.startswith("B: 1 of 5 steps launched no GPU operation") for note in found.notes)
    assert not any("no GPU operation" in note for note in of(tmp_path).notes)
    assert any(
        note.startswith("A and B: one step only") for note in of(tmp_path, a=BASE[:1], b=BASE[:1]).notes
    )


def test_what_a_windows_edges_cut_off_is_not_named_and_what_they_cannot_is(tmp_path):
    whole = [one for _ in range(10) for one in layer() + layer()]
    a = trace(tmp_path / "a.json", [whole], prefix="nothing ")
    cut = trace(tmp_path / "b.json", [whole[3:-2]], prefix="nothing ")
    found = compare(a, cut).shown
    assert found.unit == "call of gemm_128" and [one for one in found.findings if one.kind == "count"] == []
    twice = [one for index in range(20) for one in (*layer(), *layer()[3:])]
    more = compare(a, trace(tmp_path / "c.json", [twice], prefix="nothing ")).shown
    assert [one.text.split(": ")[0] for one in more.findings if one.kind == "count"] == [
        "aten::relu [[64,64]]"
    ]


def test_programs_without_common_work_are_not_comparable_and_end_with_1(tmp_path):
    other = [[("aten::conv2d", [[1, 3, 8, 8]], "conv", 50.0)]] * 4
    a, b = trace(tmp_path / "a.json", BASE), trace(tmp_path / "b.json", other)
    assert "different programs" in compare(a, b).shown.reason
    wider = [[(op, [[128, 64], [64, 64]], k, dur) for op, _, k, dur in step] for step in BASE]
    assert "another batch" in compare(a, trace(tmp_path / "c.json", wider)).shown.reason
    done = CliRunner().invoke(command, [str(a), str(b), "--json"], standalone_mode=False)
    assert done.exception is not None and json.loads(done.stdout)["comparable"] is False


def test_ranks_are_compared_with_their_own_kind_and_a_missing_one_is_said(tmp_path):
    slow = [[(op, dims, k, dur * 1.2) for op, dims, k, dur in step] for step in BASE]
    for rank in range(3):
        trace(tmp_path / "a" / f"rank{rank}.json", BASE, rank=rank)
    for rank, steps in ((0, BASE), (1, slow)):
        trace(tmp_path / "b" / f"rank{rank}.json", steps, rank=rank)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert [one.rank for one in found.ranks] == [0, 1] and found.shown.rank == 1
    assert found.ranks[0].findings == [] and [one.kind for one in found.ranks[1].findings] == ["factor"]
    assert found.missing == [f"rank 2 is only in {tmp_path / 'a'}"]
    with pytest.raises(MissingError, match="no rank is on both sides"):
        compare(trace(tmp_path / "c" / "rank7.json", BASE, rank=7).parent, tmp_path / "b")


def test_a_pair_that_scatters_has_a_higher_floor_and_says_it(tmp_path):
    draw = random.Random(3)
    a = [[(f"aten::op{at}", [[64]], f"k{at}", 50.0) for at in range(40)]] * 4
    b = [[(op, d, k, us * draw.gauss(1, 0.012)) for op, d, k, us in a[0]]] * 4
    found = of(tmp_path, a=a, b=b)
    assert 0.04 < found.floor_share < 0.09 and found.findings == []
    faster = [[(op, d, k, us * (0.8 if op == "aten::op7" else 1)) for op, d, k, us in step] for step in b]
    assert ["aten::op7" in one.text for one in of(tmp_path, a=a, b=faster).findings] == [True]
    slower = of(tmp_path, a=a, b=[[(op, d, k, us * 1.04) for op, d, k, us in step] for step in a])
    (factor,) = slower.findings
    assert slower.floor_share == 0.03 and factor.kind == "factor"
    assert factor.text.startswith("one factor on all kernels: +4.0%, in 40 of 40 kernels alike")


def test_a_step_too_long_to_align_is_compared_and_said(tmp_path, monkeypatch):
    other = [[("aten::exp", *one[1:]) if one[0] == "aten::relu" else one for one in step] for step in BASE]
    for module in (splitting, around, timelines):
        monkeypatch.setattr(module, "MOST", 7)
    done = CliRunner().invoke(
        command,
        [
            str(trace(tmp_path / "a.json", BASE)),
            str(trace(tmp_path / "b.json", other)),
            "-o",
            str(tmp_path / "o"),
        ],
    )
    assert done.exit_code == 0 and "more than 7" in done.output and "aten::exp" in done.output
    assert "No timelines" in (tmp_path / "o" / "diff.html").read_text()


def test_a_sweep_is_compared_configuration_by_configuration(tmp_path):
    for side in "ab":
        for channels in (28, 42):
            steps = slower(1.5) if (side, channels) == ("b", 42) else BASE
            for rank in range(2):
                folder = tmp_path / side / f"{channels}ch" / "torch_profiler" / f"rank_{rank}"
                trace(folder / "trace.json", steps, rank=rank)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert [(one.configuration, one.rank) for one in found.ranks] == [
        ("28ch", 0),
        ("28ch", 1),
        ("42ch", 0),
        ("42ch", 1),
    ]
    assert [len(one.findings) for one in found.ranks] == [0, 0, 1, 1] and found.shown.configuration == "42ch"
    trace(tmp_path / "a" / "28ch" / "rank_0.json", BASE, rank=0)
    with pytest.raises(BadDataError, match="two recordings of rank 0"):
        compare(tmp_path / "a", tmp_path / "b")


def test_what_lab_itself_wrote_into_a_run_is_no_recording_that_failed(tmp_path):
    for side in "ab":
        trace(tmp_path / side / "steps" / "rank_0" / "trace.json", BASE, rank=0)
        (tmp_path / side / "manifest.json").write_text("{}")
        (tmp_path / side / "steps" / "environment.json").write_text('{"smi_before": {"clock": "1"}}')
    assert compare(tmp_path / "a", tmp_path / "b").problems == []
    (tmp_path / "a" / "manifest.json").unlink()
    assert len(compare(tmp_path / "a", tmp_path / "b").problems) == 1


def test_further_recordings_are_each_compared_with_the_first(tmp_path):
    a = trace(tmp_path / "a.json", BASE)
    slow = trace(tmp_path / "c.json", [[(*one[:3], one[3] * 1.2) for one in step] for step in BASE])
    done = CliRunner().invoke(command, [str(a), str(a), str(slow), "--json", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.stdout)
    assert first["findings"] == [] and [one["kind"] for one in second["findings"]] == ["factor"]
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"1_a.json", "2_c.json"}
    alone = trace(tmp_path / "d.json", [[("aten::conv2d", [[1, 3, 8, 8]], "conv", 50.0)]] * 4)
    done = CliRunner().invoke(command, [str(a), str(alone), str(slow)])
    assert done.exit_code == 1 and "c.json" in done.output and "not comparable" in str(done.exception)


def test_one_rank_that_is_not_comparable_ends_with_1_whichever_is_shown(tmp_path):
    other = [[("aten::conv2d", [[1, 3, 8, 8]], "conv", 110.0)]] * 4
    slow = [[(op, d, k, us * 3) for op, d, k, us in step] for step in BASE]
    for side, steps in (("a", (BASE, BASE)), ("b", (other, slow))):
        for rank, one in enumerate(steps):
            trace(tmp_path / side / f"rank{rank}.json", one, rank=rank)
    done = CliRunner().invoke(command, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert "not comparable (1 of 2 ranks)" in str(done.exception) and "Rank 1" in done.output


@pytest.mark.skipif(not (SHARED / "ranks").exists(), reason="the shared recordings are not here")
@pytest.mark.parametrize(("planted", "rank"), [("slow_gemm", 5), ("slow_link", 6)])
def test_the_rank_that_changed_is_shown_not_one_that_waits_for_it(planted, rank):
    found = compare(SHARED / "ranks" / "planted" / "base", SHARED / "ranks" / "planted" / planted)
    assert found.shown.rank == rank and (found.shown.findings or found.shown.unnamed)


def test_what_stands_between_some_of_the_steps_is_said_and_between_two_alone_is_not(tmp_path):
    """A data loader that stalls before every third step, an optimizer after every other one; and one pause,
    one step that is not marked."""

    def against_equal(edit):
        a, b = (trace(tmp_path / f"{name}.json", [BASE[0]] * 9) for name in "ab")
        return compare(a, edited(b, edit)).shown

    (text,) = against_equal(lambda events: with_loader(events, 700.0, every=3)).unnamed
    assert "1,000.0 µs -> 1,200.0 µs, because of the time between them" in text
    (found,) = against_equal(lambda events: with_work_between(events, (1, 3, 5))).findings
    assert "0 -> 1.43 GPU operations between two (0.0 µs -> 71.4 µs)" in found.text
    done = CliRunner().invoke(command, [str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert done.exit_code == 0 and "Nothing differs by more" not in done.output
    once = against_equal(lambda events: with_loader(events, 900.0, every=5))
    assert once.unnamed == [] and once.findings == []
    assert against_equal(lambda events: with_work_between(events, (4,))).findings == []


def test_gpu_work_between_steps_is_a_finding_and_that_at_the_edges_of_the_window_is_none(tmp_path):
    """The same work before the first step and after the last is what another window cut off."""
    a, b = (trace(tmp_path / f"{name}.json", [BASE[0]] * 5) for name in "ab")
    edited(b, lambda events: with_work_between(events, range(4)))
    (found,) = compare(a, b).shown.findings
    assert (found.kind, found.ns) == ("work_between_steps", 250_000.0)
    assert "0 -> 5 GPU operations between two (0.0 µs -> 250.0 µs)" in found.text
    edge = edited(
        trace(tmp_path / "c.json", [BASE[0]] * 5), lambda events: with_work_between(events, (-1, 4))
    )
    assert compare(a, edge).shown.findings == []


@pytest.mark.parametrize(
    ("steps", "words"), [(2, "too few steps tell how much it varies"), (3, "its steps vary as much")]
)
def test_idle_time_that_cannot_be_told_from_noise_is_said_and_no_all_clear(tmp_path, steps, words):
    late = [(*launch, 200.0 * steps) if at == 3 else launch for at, launch in enumerate(BASE[0])]
    gap = [BASE[0]] * (steps - 1) + [late]
    a, b = trace(tmp_path / "a.json", BASE[:steps]), trace(tmp_path / "b.json", gap)
    found = compare(a, b).shown
    assert found.findings == [] and found.unnamed == [f"idle time: 0.0 µs -> 200.0 µs per unit, and {words}"]
    done = CliRunner().invoke(command, [str(a), str(b)])
    assert words in done.output
    assert "Nothing differs by more" not in done.output


def test_repeats_prove_what_one_pair_suggests_and_take_back_what_is_noise(tmp_path):
    def process(name, scale, noise):
        random.seed(name)
        steps = [
            [(*op, us * random.uniform(1 - noise, 1 + noise)) for *op, us in step] for step in slower(scale)
        ]
        return trace(tmp_path / f"{name}.json", steps)

    a, *more_a = (process(f"a{n}", 1.0, 0.01) for n in range(6))
    b, *more_b = (process(f"b{n}", 1.1, 0.01) for n in range(6))
    found = compare(a, b, repeats_a=more_a, repeats_b=more_b).shown
    product = next(row for row in found.rows if row.op == "aten::mm")
    assert product.confidence == "proven by repeats"
    low, high = product.interval
    assert low < 8000 < high and low > 0
    wild_a, *wild_more = (process(f"c{n}", 1.0, 0.5) for n in range(6))
    wild_b, *wild_more_b = (process(f"d{n}", 1.0, 0.5) for n in range(6))
    difference = compare(wild_a, wild_b, repeats_a=wild_more, repeats_b=wild_more_b)
    noisy = difference.shown
    (said,) = re.findall(
        r"4 rows within the noise .* shows changes beyond (\d+) %", terminal.text(difference)
    )
    assert 10 < int(said) < 90
    assert not any(row.confidence == "proven by repeats" for row in noisy.rows)


def test_of_a_unit_of_some_microseconds_a_slower_kernel_is_named_too(tmp_path):
    """Without steps the unit is one call of the longest kernel: a small part of the work."""
    whole = [one for _ in range(40) for one in layer(0.2)]
    slow = [(op, dims, k, us * (1.06 if op == "aten::mul" else 1)) for op, dims, k, us in whole]
    a, b = (trace(tmp_path / f"{n}.json", [one], prefix="nothing ") for n, one in (("a", whole), ("b", slow)))
    found = compare(a, b).shown
    assert found.unit == "call of gemm_128" and found.floor_ns == pytest.approx(11, rel=0.01)
    (named,) = found.findings
    assert "aten::mul" in named.text and named.ns == pytest.approx(84, rel=0.01)
    for more_us, count in ((0.045, 0), (0.055, 1)):  # clock ticks, and more than those
        ticks = [(op, dims, k, us + more_us * (op == "aten::relu")) for op, dims, k, us in whole]
        c = trace(tmp_path / "c.json", [ticks], prefix="nothing ")
        assert len(compare(a, c).shown.findings) == count


@pytest.mark.parametrize(("timed", "other"), [(True, False), (False, True), (False, False)])
def test_recordings_without_durations_have_counts_compared_and_no_time(tmp_path, timed, other):
    flat = [[(op, dims, k, 0.0) for op, dims, k, _ in step] for step in BASE]
    more = [[*step, step[3]] for step in (BASE if other else flat)]
    a, b = trace(tmp_path / "a.json", BASE if timed else flat), trace(tmp_path / "b.json", more)
    found = compare(a, b).shown
    bare = " and ".join(name for name, has in (("A", timed), ("B", other)) if not has)
    assert found.reason == (f"no GPU operation of {bare} has a duration: counts are compared, times are not")
    assert {one.kind for one in found.findings} == {"count", "api"}
    done = CliRunner().invoke(command, [str(a), str(b)])
    assert done.exit_code == 1 and "has a duration" in str(done.exception)
    assert "Nothing differs" not in done.output


def test_other_programs_whose_ops_are_not_known_are_not_comparable(tmp_path):
    """One small kernel that both have, as every program fills and copies, is no common work."""
    mine = [[("", [], "gemm_a", 40.0), ("", [], "norm_a", 20.0), ("", [], "fill", 2.0)]] * 4
    other = [[("", [], "conv_b", 50.0), ("", [], "pool_b", 10.0), ("", [], "fill", 2.0)]] * 4
    found = of(tmp_path, a=mine, b=other)
    assert not found.comparable and found.reason.startswith(
        "only 3 % of the GPU time is in kernels of a name"
    )


def test_that_nothing_differs_says_what_it_rests_on(tmp_path):
    whole = [one for _ in range(10) for one in layer() + layer()]
    a = trace(tmp_path / "a.json", [whole], prefix="nothing ")
    b = trace(tmp_path / "b.json", [whole[3:-2]], prefix="nothing ")
    said = CliRunner().invoke(command, [str(a), str(b)]).output
    assert "counts differ by no more than the edges of a window explain, same API calls." in said
    events = json.loads(b.read_text())
    events["traceEvents"] = [one for one in events["traceEvents"] if one["cat"] != "cuda_runtime"]
    b.write_text(json.dumps(events))
    assert "API calls were not compared." in CliRunner().invoke(command, [str(a), str(b)]).output


def test_steps_of_two_processes_at_once_are_said_to_overlap(tmp_path):
    a = trace(tmp_path / "a.json", BASE)
    both = json.loads(a.read_text())
    both["traceEvents"] += [
        {**one, "pid": 2} for one in both["traceEvents"] if one["cat"] == "user_annotation"
    ]
    (tmp_path / "b.json").write_text(json.dumps(both))
    (note,) = [one for one in compare(a, tmp_path / "b.json").shown.notes if "steps" in one]
    assert note.startswith("B marks steps that overlap, as several processes or threads do: none is a unit; ")


def test_a_repeat_without_the_ranks_that_are_compared_is_said(tmp_path):
    for side in "abcd":
        for rank in (0, 1):
            steps = [layer(1 + random.random() / 1e3) for _ in range(3)]
            trace(tmp_path / side / f"rank{rank}.json", steps, rank=rank)
    (tmp_path / "c" / "rank1.json").unlink()
    (tmp_path / "d" / "rank0.json").write_text("{")
    sides = [tmp_path / side for side in "abcd"]
    found = compare(*sides[:2], repeats_a=sides[2:3], repeats_b=sides[3:])
    assert found.missing == [f"rank 1 is not in {sides[2]}", f"rank 0 is not in {sides[3]}"]
    assert [one.split(" is left out")[0] for one in found.problems] == ["rank0.json"]


def test_two_processes_per_side_prove_nothing(tmp_path):
    files = [trace(tmp_path / f"{n}.json", [layer(1 + n / 1e3) + layer(1.1)] * 4) for n in range(4)]
    found = compare(files[0], files[1], repeats_a=files[2:3], repeats_b=files[3:]).shown
    assert all(one.interval is None for one in found.rows)
    assert "2 and 2 processes prove nothing: 3 per side are the least" in " ".join(found.notes)


def test_a_copy_and_a_recording_without_the_unit_are_no_repeats(tmp_path):
    a, b = trace(tmp_path / "a.json", BASE), trace(tmp_path / "b.json", [layer(1.5) + layer(1.5)] * 4)
    copied, bare = shutil.copy(a, tmp_path / "again.json"), trace(tmp_path / "c.json", BASE, prefix="part ")
    with pytest.raises(UsageError, match="is a copy of"):
        compare(a, b, repeats_a=[copied], repeats_b=[b])
    with pytest.raises(BadDataError, match="no step is marked"):
        compare(a, b, repeats_a=[bare])
    other = trace(tmp_path / "d.json", [[("op", [], "k", 50.0)]] * 4, prefix="part ")
    with pytest.raises(BadDataError, match="no call of gemm_128"):
        compare(bare, bare, repeats_a=[other])


def test_of_a_hundred_equal_pairs_of_processes_at_most_one_names_anything(tmp_path):
    """Kernels of equal processes scatter by 1.5 % at most, copies below a microsecond by 5 %."""
    draw = random.Random(8)
    shapes = [[[2**at, 64], [64, 2**at]] for at in range(12)]
    works = []
    for number in range(16):
        own = {(at, k): draw.gauss(1, 0.015) for at in range(12) for k in range(4)}
        step = [
            (op, shapes[at], kernel, us * own[at, k])
            for at in range(12)
            for k, (op, _, kernel, us) in enumerate(layer(1 + at))
        ]
        step.append(("aten::copy_", [[8]], "copy", 0.6 * draw.gauss(1, 0.05)))
        steps = [[(op, d, k, us * draw.gauss(1, 0.01)) for op, d, k, us in step] for _ in range(4)]
        (work,) = read_works(trace(tmp_path / f"{number}.json", steps))
        works.append(work)
    pairs = draw.sample([(a, b) for a in range(16) for b in range(16) if a != b], 100)
    named = [pair for pair in pairs if compare_pair(works[pair[0]], works[pair[1]]).comparison.findings]
    assert len(named) <= 1


@shared
@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(("a_base01", one) for one in ("a_base02", "a_slow01", "a_swap01", "a_idle01")),
        ("falconsai_h100", "falconsai_mi300"),
        ("qwen_h100", "qwen_mi300"),
    ],
)
def test_the_golden_pairs_are_split_to_the_nanosecond(a, b):
    pair = f"{a}_{b.removeprefix(a.partition('_')[0] + '_')}" if not a.startswith("a_") else f"{a}_{b}"
    golden = next(one for one in json.loads((SERVE / "golden.json").read_text()) if one["pair"] == pair)
    found = compare(SERVE / f"{a}.json.gz", SERVE / f"{b}.json.gz").shown
    adds_up(found)
    names = {"op_gone": "op_only_in_A", "op_new": "op_only_in_B"}
    expected = {
        part: golden["split_by_op_dims_types_ns_per_step"].get(names.get(part, part), 0.0) for part in PARTS
    }
    assert found.parts == pytest.approx(expected, abs=0.1)
    assert found.delta_kernel_ns == pytest.approx(golden["delta_sum_ns_per_step"], abs=0.1)
    for side, own in (("a", found.a), ("b", found.b)):
        steps = golden[side]["steps"]
        for name in (
            "span_ns",
            "busy_ns",
            "idle_ns",
            "overlap_ns",
            "compute_ns",
            "exposed_comm_ns",
            "exposed_copy_ns",
        ):
            assert own[name] == pytest.approx(sum(step[name] for step in steps) / len(steps)), name


@shared
def test_of_real_runs_the_planted_change_is_named_alone_and_equal_runs_name_nothing():
    def named(b):
        return compare(SERVE / "a_base01.json.gz", SERVE / f"{b}.json.gz").shown.findings

    assert named("a_base02") == []
    (slow,) = named("a_slow01")
    assert "spin_kernel" in slow.text and slow.ns == pytest.approx(7617, rel=0.01)
    (idle,) = named("a_idle01")
    assert idle.text == "cudaDeviceSynchronize: 1.125 -> 2.125 calls per unit"
    swap = named("a_swap01")
    assert [one.kind for one in swap[:2]] == ["replaced_block"] * 2


@shared
def test_two_windows_of_nsys_are_compared_per_call_of_their_longest_kernel():
    golden = json.loads((SERVE / "golden_nsys.json").read_text())
    pair = [SERVE / f"{golden['pair']}_{when}.sqlite.gz" for when in ("before", "after")]
    found = compare(*pair).shown
    adds_up(found)
    assert "flash_fwd_kernel" in (found.unit or "")
    for side, own, count in (("a", found.a, found.units_a), ("b", found.b, found.units_b)):
        one = golden[side]
        assert count == one["flash_fwd_calls"]
        assert own["span_ns"] == pytest.approx(one["span_per_flash_call_ns"], abs=0.1)
        assert own["busy_ns"] == pytest.approx(one["busy_per_flash_call_ns"], abs=0.1)
        assert own["idle_ns"] == pytest.approx(one["idle_ns"] / count, abs=0.1)
        assert own["exposed_comm_ns"] == pytest.approx(one["exposed_comm_ns"] / count, abs=0.1)
        assert own["compute_ns"] == pytest.approx(one["compute_ns"] / count, abs=0.1)


@pytest.mark.parametrize("torn", ["a", "b"])
def test_a_recording_with_a_hole_is_compared_said_to_be_torn_and_ends_with_1(tmp_path, torn):
    sides = {name: trace(tmp_path / f"{name}.json", BASE) for name in "ab"}
    whole = json.loads(sides[torn].read_text())
    kernels = [one for one in whole["traceEvents"] if one.get("cat") == "kernel"]
    whole["traceEvents"].remove(kernels[len(kernels) // 2])
    sides[torn].write_text(json.dumps(whole))
    done = CliRunner().invoke(command, [str(sides["a"]), str(sides["b"]), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1 and "the recordings are incomplete" in str(done.exception)
    assert f"{torn}.json" in done.output and "GPU work is missing" in done.output
    assert "GPU work is missing" in (tmp_path / "out" / "diff.html").read_text()


@pytest.mark.data
def test_an_export_to_parquet_is_one_recording_alone_and_among_ranks(tmp_path):
    home = SHARED / "captures" / "h200_decoder"
    if not home.exists():
        pytest.skip("the shared captures are not here")
    export, database = home / "nsys_graph_nodes_parquetdir", home / "nsys_graph_nodes.sqlite.gz"
    alone = compare(export, database).shown
    assert alone.comparable and alone.units_a == 40 and alone.a == alone.b and alone.a["span_ns"] > 0
    shutil.copytree(export, tmp_path / "rank0_pqtdir")
    assert compare(tmp_path, database).shown.a == alone.a


@pytest.mark.parametrize("name", ["a.db.gz", "a.rpd.gz", "a.xplane.pb.gz"])
def test_recordings_of_every_ending_count_in_a_folder(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")
    assert recordings_at(tmp_path) == [tmp_path / name]
