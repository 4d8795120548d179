"""The Triton kernels without a GPU: interpreted against the naive form, and compiled for the race lint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.rooms.semicrf.model import kernels, lint_ptx, triton_backend
from tests.conftest import ROOT

pytestmark = pytest.mark.torch

CASES = {
    "float64": {"shape": (2, 9, 5, 2), "alone": True},
    "durations longer than the sequence": {"shape": (2, 3, 7, 2)},
    "one frame, one label": {"shape": (1, 1, 1, 1)},
    "a linear chain": {"shape": (1, 5, 1, 3)},
    "forbidden transitions": {"shape": (2, 8, 4, 3), "options": {"masked": 0.5}},
    "stages": {"shape": (2, 17, 11, 2), "stage": 2, "alone": True},
    "stages, forbidden transitions": {"shape": (2, 15, 9, 3), "stage": 2, "options": {"masked": 0.5, "seed": 3}},
    "stages that the sequences do not fill": {"shape": (2, 3, 12, 2), "stage": 3},
    "stages in float32": {"shape": (1, 13, 9, 2), "stage": 2, "dtype": "float32"},
    "Viterbi": {"shape": (2, 7, 5, 2), "best": True},
    "Viterbi under a grammar": {"shape": (2, 6, 3, 3), "best": True, "options": {"masked": 0.5}},
    "float32": {"shape": (1, 9, 5, 2), "dtype": "float32"},
    "beyond float32, again in the log domain": {
        "shape": (2, 6, 3, 2), "dtype": "float32", "options": {"scale": 60.0},
    },
}  # fmt: skip
MUTANTS = {
    "durations shifted by one": ("near = load_tile(table, N, N, CP)", "near = load_tile(table, N + 1, N, CP)"),
    "the nearest block's taps lost": (
        "for delta in range(nearest, farthest + 1)", "for delta in range(nearest + 1, farthest + 1)",
    ),
    "a block between not counted": ("between *= tl.load(product + p * CP + cols)", "between *= 1.0"),
    "an earlier stage lost": ("nearest = i + 1 + part * STAGE", "nearest = i + 1 + part * (STAGE + 1)"),
    "the blocks between stages not counted": ("total *= tl.load(betweens", "total *= 0.5 + 0.0 * tl.load(betweens"),
    "what the stage has passed not counted": ("far += since[None, :] * load_tile(outside", "far += load_tile(outside"),
    "a register not carried": ("tl.store(carried_int + 2 * CP, power)", "tl.store(carried_int + 2 * CP, 0)"),
    "a frame beyond the mask": ("limit = tl.where((u >= 0) & (u < length)", "limit = tl.where((u >= 0) & (u <= length)"),
    "an exponent forgotten": ("                power += step\n", "                power += tl.where(q == 1, 0, step)\n"),
    "the end score dropped": ("z = tl.sum(final * leave, 0)", "z = tl.sum(final, 0)"),
    "Viterbi's far durations off by one": ("delta * N + i + back + 2 - N", "delta * N + i + back + 1 - N"),
    "a transition count lost": ("tl.maximum(chunk * F, 1)", "tl.maximum(chunk * F, 2)"),
}  # fmt: skip
STAGED_MUTANTS = (
    "an earlier stage lost",
    "the blocks between stages not counted",
    "what the stage has passed not counted",
    "a register not carried",
)


def interpreted(jobs, folder):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.semicrf.interpreted", str(folder)],
        input=json.dumps(jobs), capture_output=True, text=True, cwd=ROOT, env=environment, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    mutants = {name: {"shape": (1, 7, 5, 2), "mutant": pair} for name, pair in MUTANTS.items()}
    mutants["a frame beyond the mask"]["shape"] = (2, 7, 5, 2)
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
    assert "error" in found or found["log_z"] > 1e-6 or found["counts"] > 1e-6


def signature(kernel, pointers):
    """Types of a kernel's arguments: `pointers` by name, constants left out, all else an int."""
    names = [p.name for p in kernel.params]
    constants = [p.name for p in kernel.params if p.is_constexpr]
    return {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}


FLOATS = ("score", "onward", "table", "first", "last", "slack", "gathered", "product", "source", "arrived",
          "z_value", "partial", "label_out", "starts_out", "ends_out", "betweens", "outside", "carried")  # fmt: skip
POINTERS = {
    **dict.fromkeys(FLOATS, "*fp32"), "shift": "*fp64", "lengths": "*i64", "exponent": "*i32", "z_power": "*i32",
    "carried_int": "*i32", "carried_tops": "*fp64", "log_z": "*fp64", "flags": "*i32", "count": "*i32", "totals": "*fp64", "mass_error": "*fp64", "mass_frame": "*i64",
}  # fmt: skip
COMPILED = {
    "messages": {
        "N": 4,
        "CP": 32,
        "SP": 4,
        "STAGE": 0,
        "DTYPE": "fp32",
        "KEEP": True,
        "SATURATE": False,
        "TINY": 2.0**-126,
    },
    "outside_parts": {"N": 4, "CP": 32, "STAGE": 4, "DTYPE": "fp32"},
    "outside_sums": {"N": 4, "CP": 32, "STAGE": 4, "DTYPE": "fp32"},
    "far_durations": {"N": 4, "CP": 32, "DTYPE": "fp32"},
    "near_durations": {"N": 4, "CP": 32, "DTYPE": "fp32"},
    "label_counts": {"N": 4, "CP": 32, "F": 16, "ALL": True, "ROUNDING": 2.0**-10},
    "transitions": {"N": 4, "CP": 32, "DTYPE": "fp32", "F": 16},
    "best_messages": {"N": 2, "CP": 32},
}


def compiled(kernel, constants, warps):
    import triton.language as tl

    constants = {k: tl.float32 if v == "fp32" else v for k, v in constants.items()}
    logs = dict.fromkeys(("onward", "table", "first", "gathered", "product", "arrived"), "*fp64")
    best = {**POINTERS, **logs, "durations": "*i32"}
    types = signature(kernel, best if kernel.__name__ == "best_messages" else POINTERS)
    names = [n for n, kind in types.items() if kind != "constexpr"]
    return lint_ptx.compile_ptx(kernel, types, constants, warps), names


@pytest.mark.parametrize("name", COMPILED)
def test_the_compiled_kernels_have_no_unordered_pair(name):
    warps = 4 if name == "label_counts" else triton_backend.warps(32)
    ptx, names = compiled(getattr(kernels, name), COMPILED[name], warps)
    assert lint_ptx.lint(ptx, names) == []


def test_rows_of_a_tile_stay_in_a_lanes_registers():
    # One wide load would spread a tile over lanes, and every row would cost shuffles: 7632 instructions for 3496.
    ptx, _ = compiled(kernels.far_durations, COMPILED["far_durations"], 1)
    assert "shfl" not in ptx


def test_a_kernel_without_its_barrier_is_flagged(tmp_path):
    path = tmp_path / "mutant.py"
    text = Path(kernels.__file__).read_text()
    path.write_text(re.sub(r"        tl\.debug_barrier\(\).*\n", "", text))
    assert path.read_text() != text
    import importlib.util

    spec = importlib.util.spec_from_file_location("mutant", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ptx, names = compiled(module.messages, COMPILED["messages"], 1)
    assert ("RAW", "gathered") in {(h.kind, h.argument) for h in lint_ptx.lint(ptx, names)}
