"""One part of a diagnosis: the cells of the matrix for one backend, or the probes. Runs where the GPU is.

    python -m lab.rooms.semicrf.workload.diagnose --config diagnose.json --part cells --backend auto \\
        --out DIR

`cells` trains {variable, fixed length} x {regularisation off, on} x repeats x batch orders for a few steps
each, with NaN in all padding and in free memory, and notes the first tensor that is not finite. `reference`
does so once per cell on a plainer backend, as something to compare with. `probes` tests for each cause. Where
the user's own kernel is given, `partition` probes it, and nothing else is run. Each writes one JSON file; a
reproducer goes into reproducer/ if a backend is found wrong.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from lab.core.words import first_few
from lab.errors import BadDataError, LabError
from lab.rooms.semicrf.config import PLAINER, DiagnoseConfig
from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.model.problem import inside
from lab.rooms.semicrf.workload.cases import (
    Case,
    Row,
    difference,
    finite_number,
    poison_free_memory,
    random_case,
    save_reproducer,
    shrunk,
    words_of,
)
from lab.rooms.semicrf.workload.common import begin, log, log_drift
from lab.rooms.semicrf.workload.corpus.load import load_corpus
from lab.rooms.semicrf.workload.corpus.utterances import Corpus, batches, cropped
from lab.rooms.semicrf.workload.probes.kernel import PADDING, Kernel, kernel_probes, row
from lab.rooms.semicrf.workload.probes.linter import objective_probes
from lab.rooms.semicrf.workload.probes.named import kernel_named
from lab.rooms.semicrf.workload.training import (
    Tagger,
    epoch_order,
    make_tagger,
    over_long_segments,
    plant_objective,
    to_batch,
    train_step,
)
from lab.workload.start import write_json

PROBED = 4  # sequences of the probed batch
FRAMES = 60  # and frames of each: float64 from the definition takes a while
REG = 0.01
POISON_BYTES = 16 << 20  # several times what a step of the smoke preset allocates


def main(argv: Sequence[str] | None = None) -> None:
    args, config, device = begin("diagnose", DiagnoseConfig, argv, "--part", "--backend")
    tested = api.resolve_backend(args.backend, torch.zeros(1, 1, 1, device=device))
    config = replace(config, train=replace(config.train, backends=[tested]))
    ran = {"tested": tested, "reference": PLAINER[tested], "device": device.type}
    if config.partition:
        sys.path.insert(0, config.import_path)
        ran |= {"tested": config.partition, "reference": ""}
    write_json(args.out / f"{args.part}.json", {**ran, **PARTS[args.part](config, tested, device, args.out)})


# The matrix: short trainings of one backend, each with its outcome.


def cells(config: DiagnoseConfig, backend: str, device: torch.device, out: Path) -> dict[str, Any]:
    corpus = load_corpus(config.train)
    typical = int(np.median([len(u.features) for u in corpus.train]))
    fixed = cropped(corpus, config.train.fixed_length or max(1, min(200, typical)))
    cases = itertools.product(
        (("variable", corpus), ("fixed", fixed)), (0.0, REG), range(config.repeats), range(config.orders)
    )
    rows = []
    for (lengths, data), reg, repeat, order in cases:
        cell = {"backend": backend, "lengths": lengths, "reg": reg, "repeat": repeat, "order": order}
        rows.append({**cell, **training(config, data, backend, device, reg, order)})
        names = ("outcome", "backend", "lengths", "reg", "repeat", "order")
        text = "%-6s %-6s lengths %-8s reg %-4g repeat %d order %d  %s"
        log.info(text, *(rows[-1][name] for name in names), rows[-1]["message"] or "")
    return {"cells": rows, "fixed_length": len(fixed.train[0].features) if fixed.train else None}


def reference_cells(config: DiagnoseConfig, tested: str, device: torch.device, out: Path) -> dict[str, Any]:
    """The matrix on the plainer backend. Repeats would look for a race in it, which is not the question."""
    return cells(replace(config, repeats=1), PLAINER[tested], device, out)


def training(
    config: DiagnoseConfig, corpus: Corpus, backend: str, device: torch.device, reg: float, order: int
) -> dict[str, Any]:
    """Train for `config.steps` steps, in batches by an order; -> outcome, the first message of a validation
    point, a digest of the exact bits of all weights.
    """
    if not corpus.train:
        return {"outcome": "skipped", "message": "no utterance is as long", "step": 0}
    settings, tagger = config.train, prepared(config, corpus, backend, device, reg)
    optimizer = torch.optim.AdamW(tagger.parameters(), lr=settings.lr)
    trail: list[dict[str, float]] = []
    message = None
    endless = itertools.chain.from_iterable(
        batches(
            corpus.train, settings.batch_size, epoch_order(len(corpus.train), settings.seed + order, epoch)
        )
        for epoch in itertools.count()
    )
    for chosen in itertools.islice(endless, config.steps):
        poison_free_memory(device, POISON_BYTES)
        try:
            loss, norm = map(float, train_step(tagger, optimizer, to_batch(chosen, device), settings.clip))
            tagger.head.validator.settle(wait=True)
        except (ValueError, RuntimeError, LabError) as error:
            message = words_of(error)  # of a validation point
            break
        finite = math.isfinite(loss) and math.isfinite(norm)
        trail.append({"loss": loss, "grad_norm": norm} if finite else {})
        if not finite:
            message = f"loss {loss}, gradient norm {norm}"
            break
    magnitudes = tagger.head.magnitudes()
    log_drift(order, *magnitudes)
    if message is None and not all(map(math.isfinite, magnitudes)):
        message = "a parameter is not finite after the last step"
    hashed = hashlib.sha256()
    for value in tagger.state_dict().values():
        hashed.update(value.detach().cpu().contiguous().numpy().tobytes())
    return {
        "outcome": "failed" if message else "passed",
        "message": message,
        "step": len(trail),
        "weights": hashed.hexdigest()[:16],
        "lr": settings.lr,
        "transition_max": finite_number(magnitudes[0]),
        "duration_max": finite_number(magnitudes[1]),
        "trail": trail,
    }


def prepared(
    config: DiagnoseConfig, corpus: Corpus, backend: str, device: torch.device, reg: float
) -> Tagger:
    """The model under test; padding holds NaN where no kernel may look."""
    train = replace(config.train, crf_reg=reg, validate=True, dropout=0.0)
    tagger = make_tagger(train, corpus, "semicrf", backend).to(device)
    tagger.head.poison_padding = True
    return tagger


# The probes: of the input, the objective, and the kernels.


def probes(config: DiagnoseConfig, backend: str, device: torch.device, out: Path) -> dict[str, Any]:
    """All probes, the input's first; if the input is broken the kernels are probed with sound input."""
    rows: list[Row] = []
    torch.manual_seed(config.train.seed)
    head = SemiCRF(4, 6, backend=backend)
    if config.train.objective == "guide":
        plant_objective(head)
    case = given_case(str(config.case)) if config.case else corpus_case(config, device, rows)
    case = sound(case, rows)
    rows += objective_probes(head)
    kernel = lab_kernel(backend, device, case)
    rows += kernel_probes(kernel)
    if PLAINER[backend] != backend:
        rows += kernel_probes(lab_kernel(PLAINER[backend], device, case))
    log_rows(rows)
    return {"probes": rows, "reproducer": reproduce(kernel, rows, out)}


def partition_probes(config: DiagnoseConfig, backend: str, device: torch.device, out: Path) -> dict[str, Any]:
    """The probes of the user's own kernel."""
    rows = list(kernel_probes(kernel_named(str(config.partition), device)))
    log_rows(rows)
    return {"probes": rows, "reproducer": None}


def lab_kernel(backend: str, device: torch.device, case: Case) -> Kernel:
    return Kernel(backend, partial(api.log_partition, backend=backend), device, case)


def log_rows(rows: list[Row]) -> None:
    for probe in rows:
        log.info("%-7s %-32s %s", "clean" if probe["clean"] else "DIRTY", probe["probe"], probe["text"])


def corpus_case(config: DiagnoseConfig, device: torch.device, rows: list[Row]) -> Case:
    """The network's scores for its first batch, cut to a size that float64 can compute."""
    corpus = load_corpus(config.train)
    rows += data_probes(corpus, config.train.max_duration)
    tagger = prepared(config, corpus, "torch", device, 0.0)
    head = tagger.head
    head.validator, head.poison_padding = None, False
    batch = to_batch([u for u in corpus.train[: 4 * PROBED] if len(u.features)][:PROBED], device)
    with torch.no_grad():
        score_BTC = head.scores(*tagger.hidden(batch))[:, :FRAMES].float()
    model = {name: value.detach().cpu() for name, value in {"score_BTC": score_BTC, **head.model()}.items()}
    return Case(**model, lengths_B=batch["lengths"].clamp(max=FRAMES))


def given_case(path: str) -> Case:
    case = Case.load(Path(path))
    if case.score_BTC.dim() != 3 or len(case.lengths_B) != len(case.score_BTC):
        raise BadDataError("the shapes of this case's arrays do not match", location=path)
    return case.only(list(range(min(PROBED, len(case.lengths_B))))).cut(FRAMES)


def sound(case: Case, rows: list[Row]) -> Case:
    """The case itself, or one of its shape where its scores are broken: those would blame the kernels."""
    probes = list(score_probes(case))
    rows += probes
    clean = all(probe["clean"] for probe in probes)
    return case if clean else random_case(1, case.shape, dtype=torch.float32)


def data_probes(corpus: Corpus, longest: int) -> Iterator[Row]:
    """What the reader noted of the corpus; it refuses what cannot be trained on."""
    suspects = [note.text for note in corpus.notes if note.suspect]
    text = first_few(suspects, 3, between="; ") or "no utterance and no speaker is in both"
    yield row("test data is apart from training data", "input", not suspects, len(suspects), 0, text)
    mended = [note.text for note in corpus.notes if not note.suspect]
    text = first_few(mended, 3, between="; ") or "nothing had to be mended"
    yield row("what was mended", "input", True, len(mended), 0, text)
    over = over_long_segments(corpus, longest)
    text = f"{over} gold segments are longer than {longest} frames and are split"
    text = text if over else "no gold segment is too long"
    yield row("gold fits the support", "input", True, over, 0, text)


def score_probes(case: Case) -> Iterator[Row]:
    """The scores: -inf is a mask and legal, but not for every label of a frame."""
    score = case.score_BTC.cpu()
    within = inside(score.shape[1], case.lengths_B)
    wild = (torch.isnan(score) | (score == math.inf)).any(2) & within
    closed = (score == -math.inf).all(2) & within
    for title, faulty, words, text in (
        ("scores are finite or -inf", wild, "first at sequence {}, frame {}", "no NaN, no +inf"),
        (
            "every frame allows a label",
            closed,
            "all labels are -inf at sequence {}, frame {}: no segmentation is possible",
            "no frame has -inf for every label",
        ),
    ):
        count = int(faulty.sum())
        text = words.format(*faulty.nonzero()[0].tolist()) if count else text
        yield row(title, "input", not count, count, 0, text)


def reproduce(kernel: Kernel, rows: list[Row], out: Path) -> dict[str, Any] | None:
    """The smallest case on which the tested backend is wrong, as files; None if its probes are clean."""
    causes = {r["cause"] for r in rows if not r["clean"] and r["backend"] == kernel.name} - {"precision"}
    if not causes or kernel.own_case is None:
        return None
    padding = PADDING if "boundary" in causes else 0
    attempts = 9 if "race" in causes else 1  # a race shows in one of many runs

    def failure(case: Case) -> str:
        return next(filter(None, (wrong(case, kernel, padding) for _ in range(attempts))), "")

    if not failure(kernel.own_case):
        return None
    small = shrunk(kernel.own_case, lambda case: bool(failure(case)))
    files = save_reproducer(small, out / "reproducer", backend=kernel.name, padding=padding)
    return {
        "files": [f"reproducer/{name}" for name in files],
        "sequences": len(small.lengths_B),
        "frames": int(small.lengths_B.max()),
        "padding": padding,
        "text": failure(small),
    }


def wrong(case: Case, kernel: Kernel, padding: int) -> str | None:
    padded = case.padded(padding, math.nan) if padding else case
    try:
        return difference(case, kernel.solve(padded))
    except LabError as error:  # of numbers that a sound kernel does not look at
        return str(error).splitlines()[0]


PARTS = {
    "cells": cells,
    "reference": reference_cells,
    "probes": probes,
    "partition": partition_probes,
}


if __name__ == "__main__":
    main()
