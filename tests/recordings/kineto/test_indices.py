"""Rule C: the numbers that torch.profiler gives its events."""

from __future__ import annotations

import json

from lab.recordings.kineto import read_kineto


def trace(tmp_path, events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return {one.place: one for one in read_kineto(path).lacks}


def event(index, cat="cpu_op", ph="X", **args):
    return {"ph": ph, "cat": cat, "name": "x", "pid": 1, "tid": 1, "ts": index, "dur": 1, "args": args}


def numbered(*indices, cat="cpu_op", ph="X"):
    return [event(i, cat, ph, **{"Ev Idx": i}) for i in indices]


def test_contiguous_numbers_are_complete_whatever_the_phase_and_the_order(tmp_path):
    events = [
        *numbered(3, 1, 0),
        *numbered(2, ph="i", cat="cpu_instant_event"),
        *numbered(5, 4, cat="python_function"),
        event(9, "cuda_runtime", correlation=1),
    ]
    assert trace(tmp_path, events) == {}


def test_a_trace_thinned_down_to_the_owners_of_its_kernels_is_marked_and_has_no_hole(tmp_path):
    def thinned(*owners: int):
        kernels = [event(50 + i, "kernel", correlation=i, **{"External id": i}) for i in owners]
        ops = [event(i, **{"Ev Idx": i, "External id": i}) for i in (1, 4, 9)]
        return trace(tmp_path, [*ops, *kernels])

    assert {place: one.n for place, one in thinned(1, 4).items()} == {"head": 1, "tail": 6}
    assert {place: one.n for place, one in thinned(1, 5).items()} == {"head": 1, "hole": 6}


def test_rows_that_name_an_operator_that_is_not_here_lack_it(tmp_path):
    def lack(*owners: int, ts: int = 50):
        ids = {i: {"correlation": 100 + i, "External id": i} for i in owners}
        kernels = [event(ts + i, "kernel", **args) for i, args in ids.items()]
        ops = [event(10 + i, **{"External id": i}) for i in (1, 4, 9)]
        own = event(90, "kernel", correlation=200, **{"External id": 200})
        return {
            place: (one.axis, one.n, one.of) for place, one in trace(tmp_path, [*ops, *kernels, own]).items()
        }

    assert lack(1, 4, 9) == {}
    assert lack(1, 5, 9) == {"hole": ("ops", 1, 4)}
    assert lack(5, 6, ts=0) == {"head": ("ops", 2, 3)}


def test_a_trace_without_numbers_says_nothing(tmp_path):
    assert trace(tmp_path, [event(0), event(1)]) == {}


def test_missing_operators_are_a_hole_of_their_share(tmp_path):
    one = trace(tmp_path, numbered(0, 1, 4, 5, 7, 9))["hole"]
    assert (one.axis, one.rule, one.n, one.of, one.share) == ("ops", "C", 4, 10, 0.4)


def test_a_window_cut_out_of_a_longer_trace_is_an_edge(tmp_path):
    events = [*numbered(100, 101), *numbered(900, 902, cat="python_function")]
    found = trace(tmp_path, events)
    assert {place: one.n for place, one in found.items()} == {"head": 100, "tail": 798 + 1}
    assert all(one.of == 903 for one in found.values())


def test_numbers_that_are_none_are_left_alone(tmp_path):
    events = [*numbered(0, 1), event(5, **{"Ev Idx": "many"}), event(6, **{"Ev Idx": -4})]
    assert trace(tmp_path, events) == {}


def test_an_instant_that_was_taken_out_is_missing(tmp_path):
    assert trace(tmp_path, numbered(0, 1, 3))["hole"].n == 1


def test_pieces_of_nothing_but_python_functions_give_the_same_numbers_as_mixed_ones(tmp_path):
    kept = [i for i in range(400) if not 150 <= i < 170]
    events = [*numbered(0, 1), *numbered(*kept[2:], cat="python_function")]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    whole, pieces = read_kineto(path), read_kineto(path, piece_bytes=2000)
    assert [(one.place, one.n, one.of) for one in pieces.lacks] == [("tail", 20, 400)]
    assert pieces.lacks == whole.lacks and pieces.problems == whole.problems == []
    assert len(pieces.operators) == 2


def test_an_odd_python_function_is_said_and_costs_only_itself(tmp_path):
    functions = numbered(*range(40), cat="python_function")
    functions[20]["dur"] = "soon"
    text = json.dumps({"traceEvents": functions}).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(text.replace(b'"name": "x"', b'"name": "\xff"', 1))
    trace = read_kineto(path, salvage=True)
    assert trace.lacks == ()
    assert trace.problems == [
        "odd events were read with replaced characters or without their odd fields (2 times)",
        "odd 'dur' values were left out",
    ]


HEALTHY = (
    "Record counts: Out-of-range = 3829, Blocklisted runtime = 0, CUPTI stopped early? = 0",
    "gpuGetDeviceCount failed with code 35",
    "Dropped 0 records",
    7,
    None,
)


def test_what_torch_says_of_a_loss_is_unknown_and_what_it_says_else_is_not(tmp_path):
    def read(**logs):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": numbered(0, 1), **logs}))
        return [(one.rule, one.unknown, one.text) for one in read_kineto(path).lacks]

    for odd in ({"INFO": HEALTHY, "WARNING": "terminating tracing"}, {"ERROR": {"a": 1}}, {"ERROR": [["x"]]}):
        assert read(**odd) == []
    for line in (
        "Exceeded max GPU buffer count (33 >= 33) - terminating tracing",
        "Record counts: Out-of-range = 0, CUPTI stopped early? = 1",
        "Dropped 12 activity records",
    ):
        for level in ("INFO", "WARNING", "ERROR"):
            log = [*HEALTHY, line, line, f"\x1b[2J{line}"]
            escaped = "torch.profiler says: \\x1b[2J" + line
            assert read(**{level: log}) == [
                ("N", True, f"torch.profiler says: {line}"),
                ("N", True, escaped),
            ]
