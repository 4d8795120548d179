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

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.core.words import first_few
from lab.errors import BadDataError, LabError
from lab.rooms.semicrf.config import PLAINER, DiagnoseConfig
from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.model.problem import inside
from lab.rooms.semicrf.workload.cases import Case, difference, random_case, save_reproducer, shrunk
from lab.rooms.semicrf.workload.cells import cells, prepared
from lab.rooms.semicrf.workload.common import begin, log
from lab.rooms.semicrf.workload.corpus.load import load_corpus
from lab.rooms.semicrf.workload.corpus.utterances import Corpus
from lab.rooms.semicrf.workload.probes import Row, row
from lab.rooms.semicrf.workload.probes.kernel import PADDING, Kernel, kernel_probes
from lab.rooms.semicrf.workload.probes.linter import objective_probes
from lab.rooms.semicrf.workload.probes.named import kernel_named
from lab.rooms.semicrf.workload.training import plant_objective, to_batch
from lab.workload.start import read_config, write_json

PROBED = 4  # sequences of the probed batch
FRAMES = 60  # and frames of each: float64 from the definition takes a while


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lab.rooms.semicrf.workload.diagnose")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--part", required=True, choices=list(PARTS))
    parser.add_argument("--backend", required=True)
    args, device = begin(parser, argv)
    config = read_config(args.config, DiagnoseConfig)
    tested = api.resolve_backend(args.backend, torch.zeros(1, 1, 1, device=device))
    config = msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, backends=[tested]))
    ran = {"tested": tested, "reference": PLAINER[tested], "device": device.type}
    if config.partition:
        sys.path.insert(0, config.import_path)
        ran = {"tested": config.partition, "reference": "", "device": device.type}
    write_json(args.out / f"{args.part}.json", {**ran, **PARTS[args.part](config, tested, device, args.out)})


def reference_cells(config: DiagnoseConfig, tested: str, device: torch.device, out: Path) -> dict[str, Any]:
    """The matrix on the plainer backend. Repeats would look for a race in it, which is not the question."""
    return cells(msgspec.structs.replace(config, repeats=1), PLAINER[tested], device, out)


def probes(config: DiagnoseConfig, backend: str, device: torch.device, out: Path) -> dict[str, Any]:
    """All probes, the input's first; if the input is broken the kernels are probed with sound input."""
    rows: list[Row] = []
    torch.manual_seed(config.train.seed)
    head = SemiCRF(4, 6, backend=backend)
    if config.train.objective == "guide":
        plant_objective(head)
    case = given_case(config, rows) if config.case else corpus_case(config, device, rows)
    rows += objective_probes(head)
    kernel = lab_kernel(backend, device, case)
    rows += kernel_probes(kernel)
    if PLAINER[backend] != backend:
        rows += kernel_probes(lab_kernel(PLAINER[backend], device, case))
    log_rows(rows)
    return {"probes": rows, "reproducer": reproduce(kernel, rows, out)}


def partition_probes(config: DiagnoseConfig, backend: str, device: torch.device, out: Path) -> dict[str, Any]:
    """The probes of the user's own kernel."""
    kernel = kernel_named(str(config.partition), device)
    rows = list(kernel_probes(kernel))
    log_rows(rows)
    return {"probes": rows, "reproducer": None}


def lab_kernel(backend: str, device: torch.device, case: Case) -> Kernel:
    return Kernel(backend, partial(api.log_partition, backend=backend), device, case)


def log_rows(rows: list[Row]) -> None:
    for probe in rows:
        log.info("%-7s %-32s %s", "clean" if probe["clean"] else "DIRTY", probe["probe"], probe["text"])


def corpus_case(config: DiagnoseConfig, device: torch.device, rows: list[Row]) -> Case:
    """The network's scores for its first batch, cut to a size that float64 can compute; and their probes."""
    corpus = load_corpus(config.train)
    rows += data_probes(corpus, config.train.max_duration)
    tagger = prepared(config, corpus, "torch", device, 0.0)
    head: Any = tagger.head
    head.validator, head.poison_padding = None, False
    chosen = [u for u in corpus.train[: 4 * PROBED] if len(u.features)][:PROBED]
    batch = to_batch(chosen, device)
    with torch.no_grad():
        score = head.scores(tagger.encoder(batch["features"], batch["lengths"]), batch["lengths"])[:, :FRAMES]
    case = Case(
        score.float().cpu(),
        head.transition_CC.detach().cpu(),
        head.duration_KC.detach().cpu(),
        batch["lengths"].clamp(max=FRAMES),
        head.start_C.detach().cpu(),
        head.end_C.detach().cpu(),
    )
    return sound(case, rows)


def given_case(config: DiagnoseConfig, rows: list[Row]) -> Case:
    case = Case.load(Path(str(config.case)))
    if case.score_BTC.dim() != 3 or len(case.lengths_B) != len(case.score_BTC):
        raise BadDataError("the shapes of this case's arrays do not match", location=str(config.case))
    keep = list(range(min(PROBED, len(case.lengths_B))))
    return sound(case.rows(keep).cut(FRAMES), rows)


def sound(case: Case, rows: list[Row]) -> Case:
    """The case itself, or one of its shape where its scores are broken: those would blame the kernels."""
    probes = list(score_probes(case))
    rows += probes
    if all(probe["clean"] for probe in probes):
        return case
    size, frames, classes = case.score_BTC.shape
    return random_case(
        torch.Generator().manual_seed(1), size, frames, len(case.duration_KC), classes, dtype=torch.float32
    )


def data_probes(corpus: Corpus, longest: int) -> Iterator[Row]:
    """What the reader noted of the corpus; it refuses what cannot be trained on."""
    suspects = [note.text for note in corpus.notes if note.suspect]
    text = first_few(suspects, 3, between="; ") or "no utterance and no speaker is in both"
    yield row("test data is apart from training data", "input", not suspects, len(suspects), 0, text)
    mended = [note.text for note in corpus.notes if not note.suspect]
    text = first_few(mended, 3, between="; ") or "nothing had to be mended"
    yield row("what was mended", "input", True, len(mended), 0, text)
    over = sum(e - s > longest for u in corpus.train for s, e, _ in u.segments)
    text = f"{over} gold segments are longer than {longest} frames and are split"
    yield row(
        "gold fits the support", "input", True, over, 0, text if over else "no gold segment is too long"
    )


def score_probes(case: Case) -> Iterator[Row]:
    """The scores: -inf is a mask and legal, but not for every label of a frame."""
    score = case.score_BTC.cpu()
    within = inside(score.shape[1], case.lengths_B)
    wild = (torch.isnan(score) | (score == math.inf)).any(2) & within
    text = f"first at sequence {first_place(wild)}" if bool(wild.any()) else "no NaN, no +inf"
    yield row("scores are finite or -inf", "input", not bool(wild.any()), int(wild.sum()), 0, text)
    closed = (score == -math.inf).all(2) & within
    text = "no frame has -inf for every label"
    if bool(closed.any()):
        text = f"all labels are -inf at sequence {first_place(closed)}: no segmentation is possible"
    yield row("every frame allows a label", "input", not bool(closed.any()), int(closed.sum()), 0, text)


def first_place(marked: torch.Tensor) -> str:
    b, t = marked.nonzero()[0].tolist()
    return f"{b}, frame {t}"


def reproduce(kernel: Kernel, rows: list[Row], out: Path) -> dict[str, Any] | None:
    """The smallest case on which the tested backend is wrong, as files; None if its probes are clean."""
    dirty = [r for r in rows if not r["clean"] and r["backend"] == kernel.name and r["cause"] != "precision"]
    if not dirty or kernel.own_case is None:
        return None
    padding = PADDING if any(r["cause"] == "boundary" for r in dirty) else 0
    attempts = 9 if any(r["cause"] == "race" for r in dirty) else 1  # a race shows in one of many runs

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
