"""What the semi-CRF's bench says of its figures."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bench import semicrf, semicrf_long  # noqa: E402
from bench.semicrf import Contender  # noqa: E402
from bench.table import taken  # noqa: E402

pytestmark = pytest.mark.torch


def contender(name, forward=(), train=(), limit_s=float("inf")):
    made = Contender(name, lambda: None, lambda: (None, None), [], limit_s)
    made.ms["forward"] += forward
    made.ms["train"] += train
    made.bytes = {"forward": 2_000_000, "train": 3_000_000}
    return made


def test_a_bar_is_met_or_missed_by_the_medians_and_says_when_the_peer_has_no_float32():
    lab = contender("lab float32", [1.0, 1.0, 9.0], [10.0])
    semicrf.bars(lab, [contender("flash-semicrf float64", [61.0], [1499.0])], "cuda", (1, 2, 3, 4))
    forward, both = taken()
    assert (forward.ratio, forward.limit, forward.met) == (61.0, "≥ 60x", True)
    assert (both.ratio, both.limit, both.met) == (149.9, "≥ 150x", False)
    assert all(row.peer.startswith("flash-semicrf float64 (it has no float32) ") for row in (forward, both))
    assert (forward.memory_mb, both.memory_mb) == (2, 3)
    assert forward.cost == "1.000 (1.000 to 5.000) ms" and forward.size == "B,T,K,C = 1,2,3,4"


def test_the_peers_float32_is_the_rival_where_there_is_one():
    both = [
        contender("flash-semicrf float64", [99.0], [99.0]),
        contender("flash-semicrf float32", [60.0], [150.0]),
    ]
    semicrf.bars(contender("lab float32", [1.0], [1.0]), both, "cuda", (1, 2, 3, 4))
    assert [row.ratio for row in taken()] == [60.0, 150.0]


def test_without_a_peer_the_figures_stand_alone_and_say_so():
    semicrf.bars(contender("lab float32", [1.0], [2.0]), [], "cpu", (1, 2, 3, 4))
    rows = taken()
    assert [row.cost for row in rows] == ["1.000 (1.000 to 1.000) ms", "2.000 (2.000 to 2.000) ms"]
    assert all(row.met is None and "no peer" in row.cells()[6] for row in rows)


def test_a_peer_that_has_used_up_its_seconds_is_called_once_of_each_kind(monkeypatch):
    monkeypatch.setattr(semicrf, "elapsed_ms", lambda call, device: (call(), 61e3)[1])
    monkeypatch.setattr(semicrf, "off", lambda found, *exact: (0.0, 0.0))
    slow, quick = contender("peer", limit_s=60), contender("lab")
    for _ in range(3):
        semicrf.take_turn(slow, "cpu", 1, (None, None))
        semicrf.take_turn(quick, "cpu", 2, (None, None))
    assert {kind: len(values) for kind, values in slow.ms.items()} == {"forward": 1, "train": 1}
    assert {kind: len(values) for kind, values in quick.ms.items()} == {"forward": 6, "train": 6}


def test_a_peer_that_does_not_run_is_a_line_with_its_reason_and_lab_that_does_not_is_an_error(capsys):
    def broken():
        raise RuntimeError("out of memory\nand more")

    assert not semicrf.works(Contender("peer", broken, broken, [], 60))
    assert capsys.readouterr().out == "  peer does not run: RuntimeError: out of memory\n"
    with pytest.raises(RuntimeError):
        semicrf.works(Contender("lab", broken, broken, []))


def test_every_contender_of_a_problem_has_gradients_of_its_own():
    problem = semicrf.problem_of((1, 9, 4, 3), "cpu")
    found = [semicrf.ours(problem, dtype, "torch") for dtype in (torch.float32, torch.float64)]
    gradients = [one.train()[1] for one in found]
    assert [value.dtype for value in gradients] == [torch.float32, torch.float64]
    assert torch.allclose(gradients[0].double(), gradients[1], atol=1e-6)


def test_shapes_come_from_the_variable_or_are_the_usual(monkeypatch):
    monkeypatch.delenv("LAB_BENCH_SHAPES", raising=False)
    assert semicrf.shapes([(1, 2, 3, 4)]) == [(1, 2, 3, 4)]
    monkeypatch.setenv("LAB_BENCH_SHAPES", "64,1000,100,24;1,2,3,4")
    assert semicrf.shapes([]) == [(64, 1000, 100, 24), (1, 2, 3, 4)]
    monkeypatch.setenv("LAB_BENCH_SHAPES", "64,1000,100")
    with pytest.raises(SystemExit, match="give B,T,K,C of each shape"):
        semicrf.shapes([])


def test_the_limit_of_a_long_sequence_is_its_largest_part():
    rates = semicrf_long.Rates(bytes=4e12, adds=3e13)
    words = semicrf_long.limit((1, 400_000, 3000, 24), "train", 5e-7, rates, 1.0)
    assert words == (
        "limit 0.2000 s (0.115 GB = 2.9e-05 s, 8.7e+10 multiply-adds = 0.0029 s, "
        "400000 steps x 0.500 us = 0.2 s); reached 20 %"
    )


def test_long_runs_on_a_small_shape_and_tells_its_accuracy(monkeypatch, capsys):
    monkeypatch.setenv("LAB_BENCH_SHAPES", "1,60,7,3")
    semicrf_long.main()
    told = capsys.readouterr().out
    assert "(1, 60, 7, 3)" in told and "steps x" in told and "worst mass error float32" in told
