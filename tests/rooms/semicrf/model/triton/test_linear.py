"""The Triton kernels without a GPU: interpreted against the naive form; and how they are launched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from lab.rooms.semicrf.model.triton import linear as kernels  # noqa: E402
from lab.rooms.semicrf.model.triton.launch import launch  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.rooms.semicrf.model.triton import lint_ptx  # noqa: E402

pytestmark = pytest.mark.torch

CASES = {
    "float64": {"shape": (2, 9, 5, 2), "alone": True},
    "durations longer than the sequence": {"shape": (2, 3, 7, 2)},
    "one frame, one label": {"shape": (1, 1, 1, 1)},
    "a linear chain": {"shape": (1, 5, 1, 3)},
    "forbidden transitions": {"shape": (2, 8, 4, 3), "options": {"masked": 0.5}},
    "stages": {"shape": (2, 17, 11, 2), "stage": 2, "alone": True},
    "stages, forbidden transitions": {
        "shape": (2, 15, 9, 3),
        "stage": 2,
        "options": {"masked": 0.5, "seed": 3},
    },
    "stages that the sequences do not fill": {"shape": (2, 3, 12, 2), "stage": 3},
    "stages in float32": {"shape": (1, 13, 9, 2), "stage": 2, "dtype": "float32"},
    "Viterbi": {"shape": (2, 7, 5, 2), "best": True},
    "Viterbi under a grammar": {"shape": (2, 6, 3, 3), "best": True, "options": {"masked": 0.5}},
    "Viterbi in stages": {"shape": (2, 17, 13, 2), "best": True, "stage": 2, "options": {"tilt": 0.3}},
    "Viterbi in stages under a grammar": {
        "shape": (2, 15, 11, 3),
        "best": True,
        "stage": 2,
        "options": {"masked": 0.5, "tilt": 0.3},
    },
    "Viterbi where nothing fits": {"shape": (2, 6, 2, 2), "best": True, "options": {"masked": 1.0}},
    "Viterbi, all equal": {"shape": (2, 6, 3, 3), "best": True, "options": {"scale": 0.0}},
    "float32": {"shape": (1, 9, 5, 2), "dtype": "float32"},
    "beyond float32, again in the log domain": {
        "shape": (2, 6, 3, 2),
        "dtype": "float32",
        "options": {"scale": 60.0},
    },
}
# Viterbi's kernels hold some lines of the others word for word: a mutant of these names a neighbour line too.
NONE_BETWEEN = "between = tl.full([CP], 1.0, DTYPE)\n    "
REACH = "\n        farthest = tl.minimum(tl.minimum(nearest + STAGE - 1, far_blocks), q)\n        "
MUTANTS = {
    "durations shifted by one": (
        "near = load_tile(table, N, N, CP)  # row d - 1",
        "near = load_tile(table, N + 1, N, CP)  # row d - 1",
    ),
    "the nearest block's taps lost": (
        f"{NONE_BETWEEN}for delta in range(nearest, farthest + 1)",
        f"{NONE_BETWEEN}for delta in range(nearest + 1, farthest + 1)",
    ),
    "a block between not counted": ("between *= tl.load(product + p * CP + cols)", "between *= 1.0"),
    "an earlier stage lost": (
        f"nearest = i + 1 + part * STAGE{REACH}sums",
        f"nearest = i + 1 + part * (STAGE + 1){REACH}sums",
    ),
    "the blocks between stages not counted": (
        "total *= tl.load(betweens",
        "total *= 0.5 + 0.0 * tl.load(betweens",
    ),
    "what the stage has passed not counted": (
        "far += since[None, :] * load_tile(outside",
        "far += load_tile(outside",
    ),
    "a register not carried": ("tl.store(carried_int + 2 * CP, power)", "tl.store(carried_int + 2 * CP, 0)"),
    "a frame beyond the mask": (
        "limit = tl.where((u >= 0) & (u < length)",
        "limit = tl.where((u >= 0) & (u <= length)",
    ),
    "an exponent forgotten": (
        "                power += step\n",
        "                power += tl.where(q == 1, 0, step)\n",
    ),
    "the end score dropped": ("z = tl.sum(final * leave, 0)", "z = tl.sum(final, 0)"),
    "Viterbi's far durations off by one": ("delta * N + i + back + 2 - N", "delta * N + i + back + 1 - N"),
    "Viterbi's way back without the transition": (
        "        value += tl.load(onward + cols * CP + label)\n",
        "",
    ),
    "Viterbi's stages not added up": (
        "coming = between[None, :] + load_tile(partial",
        "coming = load_tile(partial",
    ),
    "Viterbi's passed blocks not counted": (
        "coming = since[None, :] + load_tile(outside",
        "coming = load_tile(outside",
    ),
    "a transition count lost": ("tl.maximum(chunk * F, 1)", "tl.maximum(chunk * F, 2)"),
}
STAGED_MUTANTS = (
    "an earlier stage lost",
    "the blocks between stages not counted",
    "what the stage has passed not counted",
    "a register not carried",
)


def interpreted(jobs, folder):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.rooms.semicrf.model.triton.interpreted", str(folder)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    mutants = {name: {"shape": (1, 7, 5, 2), "mutant": pair} for name, pair in MUTANTS.items()}
    mutants["a frame beyond the mask"]["shape"] = (2, 7, 5, 2)
    mutants["Viterbi's way back without the transition"].update(best=True)
    for name in ("Viterbi's stages not added up", "Viterbi's passed blocks not counted"):
        mutants[name].update(best=True, shape=(2, 17, 13, 2), stage=2, options={"tilt": 0.3})
    for name in STAGED_MUTANTS:
        mutants[name].update(shape=(1, 17, 13, 2), stage=2, options={"scale": 0.3})
    mutants["Viterbi's far durations off by one"].update(best=True, options={"seed": 23})
    planted = {
        "z of the second sequence halved": {"shape": (2, 9, 4, 2), "z_times": 0.5},
        "z of the second sequence off by 1e-5": {"shape": (2, 9, 4, 2), "z_times": 1 / (1 + 1e-5)},
    }
    jobs = {**CASES, **mutants, **planted}
    found = interpreted(list(jobs.values()), tmp_path_factory.mktemp("mutants"))
    return dict(zip(jobs, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_equal_the_naive_form(results, name):
    found = results[name]
    limit = 1e-10 if CASES[name].get("dtype") != "float32" else 2e-5
    assert found.get("error") is None
    assert found["log_z"] <= limit and found["counts"] <= limit
    assert found["infeasible"] and not found["broken"]
    assert bool(found["again"]) == ("log domain" in name)


def test_the_kernel_tells_mass_that_is_not_1_and_divides_out_only_what_rounding_makes(results):
    wrong, rounded = (
        results["z of the second sequence halved"],
        results["z of the second sequence off by 1e-5"],
    )
    assert wrong["mass_error"] == pytest.approx([0, 1], abs=1e-12) and wrong["mass_frame"][1] >= 0
    assert wrong["label_sums"] == pytest.approx([1, 2], abs=1e-12)
    assert rounded["mass_error"] == pytest.approx([0, 1e-5], rel=1e-4, abs=1e-12)
    assert rounded["label_sums"] == pytest.approx([1, 1], abs=1e-12)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_kernels_is_killed(results, name):
    found = results[name]
    assert found.get("error") is None, "a mutant that cannot run proves nothing"
    assert found["log_z"] > 1e-6 or found["counts"] > 1e-6


def test_rows_of_a_tile_stay_in_a_lanes_registers():
    # One wide load would spread a tile over lanes, and every row would cost shuffles: 7632 instructions for
    # 3496.
    pointers = dict.fromkeys(("gathered", "product", "z_value", "partial"), "*fp32")
    types = {**pointers, "exponent": "*i32", "z_power": "*i32", "lengths": "*i64"}
    constants = {"N": 4, "CP": 32, "DTYPE": tl.float32}
    names = [parameter.name for parameter in kernels.far_durations.params]
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    assert "shfl" not in lint_ptx.compile_ptx(kernels.far_durations, signature, constants, 1)


class Compiled:
    def __init__(self):
        self.ran = []

    def __getitem__(self, grid):
        return lambda *args: self.ran.append((grid, args))


class Kernel:
    """What `launch` needs of a kernel: parameters by name, and a compiled one for every launch."""

    params = [SimpleNamespace(name=name) for name in ("x", "n", "A", "B")]

    def __init__(self):
        self.asked = []

    def __getitem__(self, grid):
        def run(*args, num_warps, **constants):
            self.asked.append((grid, args, constants, num_warps))
            self.compiled = Compiled()
            return self.compiled

        return run


def test_a_launch_like_an_earlier_one_goes_to_its_machine_code_with_constants_in_their_order():
    kernel, x = Kernel(), torch.zeros(2)
    launch(kernel, (3, 2), x, 5, B=7, A=6, num_warps=1)
    assert kernel.asked == [((3, 2), (x, 5), {"A": 6, "B": 7}, 1)] and not kernel.compiled.ran
    launch(kernel, (4,), x, 8, B=7, A=6, num_warps=1)
    assert len(kernel.asked) == 1 and kernel.compiled.ran == [((4, 1, 1), (x, 8, 6, 7))]


@pytest.mark.parametrize("other", ["a type", "a constant", "the warps", "an unused pointer"])
def test_a_launch_that_differs_in_type_constant_or_warps_is_compiled(other):
    kernel = Kernel()
    launch(kernel, (1,), torch.zeros(2), 5, A=6, B=7, num_warps=1)
    x = {"a type": torch.zeros(2).double(), "an unused pointer": 0}.get(other, torch.zeros(2))
    constant, warps = 8 if other == "a constant" else 6, 2 if other == "the warps" else 1
    launch(kernel, (1,), x, 5, A=constant, B=7, num_warps=warps)
    assert len(kernel.asked) == 2
