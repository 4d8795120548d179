"""Run in its own process with TRITON_INTERPRET=1: the log domain's kernels, or mutants, against plain forms.

Reads a list of jobs from stdin as JSON, each with the claim it is for, and prints one result per job.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import fields, replace
from pathlib import Path

import torch

from lab.rooms.semicrf.model import api, ledger, log_domain, naive
from lab.rooms.semicrf.model.problem import Posteriors
from lab.rooms.semicrf.model.triton import backend as triton_backend
from lab.rooms.semicrf.model.triton import log as log_kernels
from lab.rooms.semicrf.model.triton import log_by_duration, log_terms
from tests.rooms.semicrf.problems import random_problem, worst

log_terms.TILE = 2
log_by_duration.PART = 2
triton_backend.N = 2
triton_backend.COUNT_FRAMES = 4


def mutated(old: str, new: str):
    """The kernels' modules in a package of their own, one piece of their text replaced."""
    folder = Path(sys.argv[1]) / f"mutant{len(list(Path(sys.argv[1]).iterdir()))}"
    folder.mkdir()
    found = 0
    for module in (log_terms, log_by_duration, log_kernels):
        text = Path(module.__file__).read_text()
        found += text.count(old)
        package = "lab.rooms.semicrf.model.triton"
        text = text.replace(old, new).replace(f"{package}.log_", f"{folder.name}.log_")
        text = text.replace(f"from {package} import log_", f"from {folder.name} import log_")
        (folder / Path(module.__file__).name).write_text(text)
    assert found == 1, f"{old!r} is there {found} times"
    sys.path.insert(0, sys.argv[1])
    importlib.import_module(f"{folder.name}.log_terms").TILE = log_terms.TILE
    importlib.import_module(f"{folder.name}.log_by_duration").PART = log_by_duration.PART
    return importlib.import_module(f"{folder.name}.log")


def hostile(problem, how: str | None):
    """Sequence 0 with what is hard; the others as they are."""
    score_BTC = problem.score_BTC.clone()
    if how == "a frame that nothing fits":
        score_BTC[0, 1] = -math.inf
    elif how == "labels forbidden here and there":
        score_BTC[0, ::2, 0] = -math.inf
        score_BTC[0, 1, 1] = -1e30
    elif how == "NaN":
        score_BTC[0, 2, 1] = math.nan
    elif how == "an end that nothing reaches":
        return replace(problem, end_C=torch.full_like(problem.end_C, -math.inf))
    elif how == "messages far apart":  # the only way on is by a label 2000 below the best
        apart = torch.full_like(problem.transition, -math.inf)
        apart[..., 1, :] = 0
        score_BTC[:, :, 1] -= 2000
        return replace(problem, score_BTC=score_BTC, transition=apart)
    return replace(problem, score_BTC=score_BTC)


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    same = (one == other) | (torch.isnan(one) & torch.isnan(other))
    return float(torch.where(same, torch.zeros_like(one), (one - other).abs()).max())


def rows(found: Posteriors, chosen_B: torch.Tensor) -> Posteriors:
    return Posteriors(*(getattr(found, field.name)[chosen_B] for field in fields(Posteriors)))


def equal(job: dict, module) -> dict:
    problem = hostile(random_problem(*job["shape"], **job.get("options", {})), job.get("hostile"))
    found, state = module.posteriors(problem), log_domain.posteriors(problem)
    expected = naive.posteriors(problem) if job.get("naive", True) else state
    counted = torch.isfinite(state.log_z_B) | torch.isneginf(state.log_z_B)  # plain counts of NaN are NaN
    lines = ledger.broken(ledger.ledger(problem, found), torch.float64)
    scale = max(1.0, float(torch.nan_to_num(state.log_z_B, neginf=0.0).abs().max()))
    return {
        "log_z": max(gap(found.log_z_B, state.log_z_B), gap(found.log_z_B, expected.log_z_B)) / scale,
        "counts": max(
            worst(rows(state, counted), rows(found, counted)),
            worst(rows(expected, counted), rows(found, counted)),
        ),
        "alone": 0.0 if "mutant" in job else gap(module.forward(problem, keep=False).log_z_B, found.log_z_B),
        "log_z_B": [repr(value) for value in found.log_z_B.tolist()],
        "mass_of_0": float(sum(getattr(found, f.name)[0].abs().sum() for f in fields(Posteriors)[1:6])),
        "broken": [line.name for line in lines],
    }


def same_bits(job: dict, module) -> dict:
    """Each sequence alone and cut to its length, and partial sums in pieces, against the whole batch."""
    problem = random_problem(*job["shape"], **job.get("options", {}))
    frames = problem.shape[1]
    inside = torch.arange(frames + 3) < problem.lengths_B[:, None]
    score_BTC = torch.nn.functional.pad(problem.score_BTC, (0, 0, 0, 3))
    padded = replace(
        problem, score_BTC=torch.where(inside[..., None], score_BTC, score_BTC.new_full((), math.nan))
    )
    whole, names = module.posteriors(padded), [field.name for field in fields(Posteriors)]
    differing = []
    for b, length in enumerate(problem.lengths_B.tolist()):
        single = replace(
            problem, score_BTC=problem.score_BTC[b : b + 1, :length], lengths_B=problem.lengths_B[b : b + 1]
        )
        found = module.posteriors(single)
        for name in names:
            value = getattr(whole, name)[b]
            differing += [name] * (
                not torch.equal(getattr(found, name)[0], value[:length] if name.endswith("BTC") else value)
            )
            differing += [f"{name} in the padding"] * (name.endswith("BTC") and bool(value[length:].any()))
    before, log_terms.PARTIAL_BYTES = log_terms.PARTIAL_BYTES, 1
    again = module.posteriors(padded)
    log_terms.PARTIAL_BYTES = before
    differing += [f"{n} in pieces" for n in names if not torch.equal(getattr(again, n), getattr(whole, n))]
    return {"differing": differing}


def gradients(job: dict, module) -> dict:
    """Every gradient of a weighted sum of log Z, through the call a person makes."""
    problem = random_problem(*job["shape"], **job.get("options", {}))
    weight_B = torch.arange(1.0, len(problem.lengths_B) + 1, dtype=torch.float64)
    grads = []
    for backend in ("naive", "triton"):
        leaves = [value.clone().requires_grad_() for value in problem.floats()]
        score_BTC, transition, duration_KC, start_C, end_C = leaves
        log_z_B = api.log_partition(
            score_BTC,
            transition,
            duration_KC,
            problem.lengths_B,
            start_C=start_C,
            end_C=end_C,
            backend=backend,
        )
        grads.append(torch.autograd.grad((log_z_B * weight_B).sum(), leaves))
    return {"counts": max(float((a - b).abs().max()) for a, b in zip(*grads, strict=True))}


def flagged(job: dict, module) -> dict:
    """A float32 sequence that the linear kernels flag, against this module's own answer for it."""
    problem = random_problem(*job["shape"], dtype=torch.float32, **job["options"])
    state = triton_backend.forward(problem)
    found = triton_backend.backward(state)
    rows = problem.rows(state.again)
    own, plain = module.posteriors(rows), log_domain.posteriors(rows)
    return {
        "again": state.again.tolist(),
        "same": torch.equal(found.log_z_B[state.again], own.log_z_B)
        and torch.equal(found.label_BTC[state.again], own.label_BTC.float()),
        "log_z": gap(own.log_z_B, plain.log_z_B),
        "counts": worst(own, plain),
    }


def viterbi(job: dict, module) -> dict:
    """Where transitions depend on the duration, decoding is torch's, and asking Triton for it is no error."""
    problem = random_problem(*job["shape"], **job["options"])
    score_BTC, transition, duration_KC, start_C, end_C = problem.floats()
    score_B, paths = api.viterbi(
        score_BTC, transition, duration_KC, problem.lengths_B, start_C=start_C, end_C=end_C, backend="triton"
    )
    right_B, right = naive.viterbi(problem)
    return {"log_z": gap(score_B, right_B), "counts": float(paths != right)}


CLAIMS = {"equal": equal, "bits": same_bits, "gradients": gradients, "flagged": flagged, "viterbi": viterbi}


def poison_empty() -> None:
    """New memory holds NaN, so that reading what nobody wrote shows."""
    new_empty, empty_like = torch.Tensor.new_empty, torch.empty_like

    def poisoned(value: torch.Tensor) -> torch.Tensor:
        return value.fill_(math.nan) if value.is_floating_point() else value

    torch.Tensor.new_empty = lambda *given, **more: poisoned(new_empty(*given, **more))
    torch.empty_like = lambda *given, **more: poisoned(empty_like(*given, **more))


def main() -> None:
    torch.set_num_threads(1)
    poison_empty()
    for job in json.load(sys.stdin):
        try:
            module = mutated(*job["mutant"]) if "mutant" in job else log_kernels
            result = CLAIMS[job["claim"]](job, module)
        except Exception as error:  # noqa: BLE001 - a mutant may break in any way, which is a result
            result = {"error": repr(error)[:300]}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
