"""The log domain's kernels without a GPU: interpreted against the plain forms, and compiled for the race
lint.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.rooms.semicrf.model.triton import log as log_kernels
from lab.rooms.semicrf.model.triton import log_by_duration, log_terms
from tests.conftest import ROOT
from tests.rooms.semicrf.model.triton import lint_ptx

pytestmark = pytest.mark.torch

LASTING = {"by_duration": True}
EQUAL = {
    "segments of several frames": {"shape": (2, 6, 5, 3)},
    "durations longer than the sequence": {"shape": (2, 3, 7, 2)},
    "one frame, one label": {"shape": (1, 1, 1, 1)},
    "a linear chain": {"shape": (1, 5, 1, 3)},
    "forbidden transitions": {"shape": (2, 6, 3, 3), "options": {"masked": 0.5}},
    "transitions by duration": {"shape": (1, 5, 4, 2), "options": LASTING},
    "transitions by duration, durations longer than the sequence": {
        "shape": (1, 3, 6, 2),
        "options": LASTING,
    },
    "transitions by duration, one frame, one label": {"shape": (1, 1, 1, 1), "options": LASTING},
    "transitions by duration under a grammar": {"shape": (2, 4, 2, 2), "options": {**LASTING, "masked": 0.4}},
}
HOSTILE = {
    "scores of 1e30": {"shape": (1, 5, 3, 2), "options": {"scale": 1e30}, "naive": False},
    "scores of 1e30, transitions by duration": {
        "shape": (1, 4, 3, 2),
        "options": {**LASTING, "scale": 1e30},
        "naive": False,
    },
    "labels forbidden here and there": {"shape": (2, 6, 3, 2), "hostile": "labels forbidden here and there"},
    "messages far apart": {"shape": (1, 5, 3, 2), "hostile": "messages far apart"},
    "messages far apart, transitions by duration": {
        "shape": (1, 4, 3, 2),
        "options": LASTING,
        "hostile": "messages far apart",
    },
}
NOTHING = {
    "a frame that nothing fits": {"shape": (2, 5, 3, 2), "hostile": "a frame that nothing fits"},
    "an end that nothing reaches": {
        "shape": (1, 4, 3, 2),
        "options": LASTING,
        "hostile": "an end that nothing reaches",
    },
    "NaN": {"shape": (2, 5, 3, 2), "hostile": "NaN", "naive": False},
    "NaN, transitions by duration": {
        "shape": (2, 3, 2, 2),
        "options": LASTING,
        "hostile": "NaN",
        "naive": False,
    },
}
BITS = {
    "bits": {"shape": (2, 6, 3, 2)},
    "bits, transitions by duration": {"shape": (2, 4, 2, 2), "options": LASTING},
}
OTHERS = {
    "gradients": {"claim": "gradients", "shape": (2, 3, 2, 2), "options": {**LASTING, "masked": 0.3}},
    "flagged": {"claim": "flagged", "shape": (1, 4, 2, 2), "options": {"scale": 60.0}},
    "viterbi": {"claim": "viterbi", "shape": (2, 5, 3, 2), "options": LASTING},
}
PLAIN, BY = {"shape": (1, 5, 3, 2)}, {"shape": (1, 3, 2, 2), "options": LASTING}
LONG = {"shape": (1, 5, 5, 2), "options": LASTING}
FAR = {"shape": (1, 4, 3, 2), "options": LASTING, "hostile": "messages far apart"}
NEAR = {**FAR, "shape": (1, 4, 1, 2)}
MUTANTS = {
    "a duration beyond the longest": (PLAIN, "there = (age <= t) & (age < longest)", "there = age <= t"),
    "the end score dropped": (
        PLAIN,
        "tl.load(end + cols), 0) + offset",
        "0 * tl.load(end + cols), 0) + offset",
    ),
    "a shift forgotten": (PLAIN, "offset += shift + top", "offset += top"),
    "terms in another unit": (PLAIN, "total * less + 1.0, total + less)", "total + 1.0, total + less)"),
    "mass left behind": (PLAIN, "covered += leaving - starts", "covered -= starts"),
    "the first segment pays a transition": (
        BY,
        "tl.where((s == 0)[:, None], tl",
        "tl.where((s < 0)[:, None], tl",
    ),
    "the shift of a block forgotten": (BY, "scores - shift, scores)", "scores, scores)"),
    "a block's edge lost": (BY, "there = inside & (s <= begin)", "there = inside & (s < begin)"),
    "a block's edge counted twice": (BY, "(rows >= 1) & (age >= 0)", "(rows >= 0) & (age >= 0)"),
    "the frames of a block between lost": (LONG, "known + whole[None, :]", "known"),
    "frames of the wrong side": (LONG, "0, reverse=True)", "0)"),
    "a crossing in another label's place": (BY, "crossed *= tl.load(weight", "crossed *= tl.load(turned"),
    "mass that crosses the wrong way": (BY, "gone = summed(own, turned", "gone = summed(own, weight"),
    "mass beyond the block that crosses the wrong way": (
        BY,
        "multiplied(own, turned",
        "multiplied(own, weight",
    ),
    "what underflows is lost": (FAR, "~(sums >= TINY)", "(sums < 0.0)"),
    "the mass of what underflows is lost": (NEAR, "tl.sum(tl.sum(share * of_lost, 1), 0), 0.0)", "0.0, 0.0)"),
    "the mass of what underflows beyond the block is lost": (FAR, "from_c[:, None], 0.0)", "0.0, 0.0)"),
    "the count of what underflows is lost": (
        FAR,
        "known + tl.sum(weight_of(into, top, lost) * crossing, 0)",
        "known",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    jobs = {name: {"claim": "equal", **job} for name, job in {**EQUAL, **HOSTILE, **NOTHING}.items()}
    jobs.update({name: {"claim": "bits", **job} for name, job in BITS.items()}, **OTHERS)
    for name, (job, *pair) in MUTANTS.items():
        jobs[name] = {"claim": "equal", "mutant": pair, "naive": False, **job}
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.rooms.semicrf.model.triton.interpreted_logs",
            str(tmp_path_factory.mktemp("logs")),
        ],
        input=json.dumps(list(jobs.values())),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=True,
    )
    return dict(zip(jobs, [json.loads(line) for line in done.stdout.splitlines()], strict=True))


@pytest.mark.parametrize("name", {**EQUAL, **HOSTILE})
def test_the_kernels_equal_the_plain_forms(results, name):
    found = results[name]
    assert found.get("error") is None
    assert found["log_z"] <= 1e-10 and found["counts"] <= 1e-10
    assert found["alone"] == 0 and not found["broken"]


@pytest.mark.parametrize("name", NOTHING)
def test_a_sequence_that_nothing_fits_or_with_nan_has_no_counts(results, name):
    found = results[name]
    assert found.get("error") is None
    assert found["log_z_B"][0] == ("nan" if "NaN" in name else "-inf")
    assert found["mass_of_0"] == 0
    assert found["log_z"] <= 1e-10 and found["counts"] <= 1e-10


@pytest.mark.parametrize("name", BITS)
def test_neither_batch_nor_padding_nor_pieces_change_a_bit(results, name):
    assert results[name] == {"differing": []}


def test_every_gradient_by_duration_is_the_naive_forms(results):
    assert results["gradients"]["counts"] <= 1e-10


def test_a_flagged_sequence_gets_its_answer_from_these_kernels(results):
    found = results["flagged"]
    assert found["again"] and found["same"]
    assert found["log_z"] <= 1e-9 and found["counts"] <= 1e-10


def test_decoding_by_duration_is_right_on_this_backend_too(results):
    assert results["viterbi"]["log_z"] <= 1e-12 and results["viterbi"]["counts"] == 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_log_kernels_is_killed(results, name):
    found = results[name]
    assert found.get("error") is None, "a mutant that cannot run proves nothing"
    assert not max(found["log_z"], found["counts"]) <= 1e-6


POINTERS = {"score": "*fp32", "lengths": "*i64"}
SCALARS = ("frames", "labels", "longest", "ring_rows", "begin", "parts", "chunk", "chunks", "size")


def compiled(kernel):
    """PTX for sm_90 at small tiles, and the names of its arguments."""
    constants = {"ROWS": 16, "CP": 16, "WIDTH": 16, "PART": 16, "KEEP": True, "BLOCK": 256}
    names = [p.name for p in kernel.params if not p.is_constexpr]
    kinds = {n: "i32" if n in SCALARS else POINTERS.get(n, "*fp64") for n in names}
    fixed = {p.name: "constexpr" for p in kernel.params if p.is_constexpr}
    signature = {p.name: {**kinds, **fixed}[p.name] for p in kernel.params}
    ptx = lint_ptx.compile_ptx(kernel, signature, {n: constants[n] for n in fixed})
    return ptx, names


KERNELS = [
    *((log_kernels, name) for name in ("messages", "maxima", "masses", "durations")),
    *((log_by_duration, name) for name in ("arriving", "block_messages", "maxima", "last_masses")),
    *((log_by_duration, name) for name in ("departing", "block_masses", "durations")),
    (log_terms, "add_chunks"),
]


@pytest.mark.parametrize(("module", "name"), KERNELS)
def test_the_compiled_kernels_have_no_unordered_pair(module, name):
    assert lint_ptx.lint(*compiled(getattr(module, name))) == []


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [(log_kernels, "masses", {"ring", "ready"}), (log_by_duration, "block_messages", {"lifted", "peak"})],
)
def test_kernels_without_their_barriers_are_flagged(module, name, arguments, tmp_path, monkeypatch):
    path = tmp_path / "bare.py"
    text = Path(module.__file__).read_text()
    path.write_text(re.sub(r" +tl\.debug_barrier\(\).*\n", "", text))
    assert path.read_text() != text
    spec = importlib.util.spec_from_file_location("bare", path)
    bare = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bare", bare)
    spec.loader.exec_module(bare)
    found = lint_ptx.lint(*compiled(getattr(bare, name)))
    assert arguments <= {hazard.argument for hazard in found if hazard.kind == "RAW"}
