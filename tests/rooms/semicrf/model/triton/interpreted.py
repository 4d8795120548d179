"""Run in its own process with TRITON_INTERPRET=1: the kernels, or mutants of them, against the naive form.

Reads a list of jobs from stdin as JSON and prints one result per job: the errors of log Z and counts, or the
exception's text.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from lab.rooms.semicrf import SemiCRF
from lab.rooms.semicrf.model import api, ledger, naive, paths
from lab.rooms.semicrf.model.triton import backend as triton_backend
from lab.rooms.semicrf.model.triton import best_path
from lab.rooms.semicrf.model.triton import linear as kernels
from tests.rooms.semicrf.problems import random_problem, worst

triton_backend.N = 2
best_path.BEST_N = 2
triton_backend.COUNT_FRAMES = 4
triton_backend.COUNT_BLOCKS = 2


def mutated(old: str, new: str):
    """The kernels' module with one piece of its text replaced."""
    text = Path(kernels.__file__).read_text()
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    path = Path(sys.argv[1]) / "mutant.py"
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location("mutant", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def solve(job: dict) -> dict:
    triton_backend.kernels = best_path.kernels = mutated(*job["mutant"]) if "mutant" in job else kernels
    triton_backend.STAGE = job.get("stage", 16)
    dtype = getattr(torch, job.get("dtype", "float64"))
    problem = random_problem(*job["shape"], dtype=dtype, **job.get("options", {}))
    if "best" in job:
        return best(problem)
    if "alarm" in job:
        return alarm(problem, job.get("stale"))
    expected = naive.posteriors(problem)
    state = triton_backend.forward(problem)
    if "z_times" in job:
        return mass_of(state, job["z_times"])
    found = triton_backend.backward(state)
    if "alone" in job:  # without the counts, the pass from the left runs by itself
        assert torch.equal(triton_backend.forward(problem, keep=False).log_z_B, found.log_z_B)
    lines = ledger.broken(ledger.ledger(problem, found), dtype)
    return {
        "log_z": float(torch.nan_to_num(found.log_z_B - expected.log_z_B).abs().max()),
        "infeasible": torch.isinf(expected.log_z_B).tolist() == torch.isinf(found.log_z_B).tolist(),
        "counts": worst(expected, found),
        "again": [] if state.again is None else state.again.tolist(),
        "broken": [line.name for line in lines],
    }


def mass_of(state, factor: float) -> dict:
    """What the ledger says where log Z of the second sequence is off."""
    state.kept["z_value"][2:] *= factor
    found = triton_backend.backward(state)
    sums = found.label_BTC.sum(-1)
    rows = torch.arange(len(sums))
    return {
        "mass_error": found.mass_error_B.tolist(),
        "mass_frame": found.mass_frame_B.tolist(),
        "label_sums": sums[rows, found.mass_frame_B].tolist(),
    }


def best(problem) -> dict:
    """Viterbi against torch's, in the same terms as the counts."""
    score, path = best_path.viterbi(problem)
    expected, expected_path = paths.viterbi(problem)
    gap = float(torch.nan_to_num(score - expected).abs().max())
    return {
        "log_z": gap,
        "counts": float(path != expected_path),
        "infeasible": True,
        "again": [],
        "broken": [],
    }


def alarm(problem, stale: dict | None) -> dict:
    """What the validation points say of one training step on the problem's scores, NaN in their padding.

    `stale` plants a fault of the second sequence's pass from the left, in the rows `frames`: what `tables`
    hold is multiplied by `times`, or powers are moved by `more`. `finite`: whether a guard against NaN would
    be silent.
    """
    torch.manual_seed(0)
    forward = triton_backend.forward

    def planted(problem, keep=True):
        state = forward(problem, keep)
        for name in stale["tables"]:
            rows = state.kept[name].view(2 * len(problem.lengths_B), -1, *state.kept[name].shape[1:])[2]
            rows[slice(*stale["frames"])] *= stale.get("times", 1)
            rows[slice(*stale["frames"])] += stale.get("more", 0)
        return state

    engine = SimpleNamespace(forward=planted if stale else forward, backward=triton_backend.backward)
    api.engine_of = lambda backend: engine
    head = SemiCRF(problem.shape[3], problem.shape[2], backend="triton", validate=True)
    head.poison_padding = True
    score_BTC = problem.score_BTC.requires_grad_()
    messages = []
    watch = head.validator.watch

    def told(*point):
        try:
            watch(*point)
        except RuntimeError as error:
            messages.append(str(error))

    head.validator.watch = told  # the step goes on: what would the guards have seen?
    labels = torch.zeros(problem.shape[:2], dtype=torch.int64)
    head.loss(score_BTC, problem.lengths_B, labels).backward()
    grads = [score_BTC.grad, *(value.grad for value in head.parameters())]
    return {"messages": messages[:1], "finite": all(bool(torch.isfinite(value).all()) for value in grads)}


def main() -> None:
    torch.set_num_threads(1)
    for job in json.load(sys.stdin):
        try:
            result = solve(job)
        except Exception as error:  # noqa: BLE001 - a mutant may break in any way, which is a result
            result = {"error": repr(error)[:300]}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
