"""One part of a diagnosis: the cells of the matrix for one backend, or the probes. Runs where the GPU is.

    python -m lab.rooms.semicrf.workload.diagnose --config diagnose.json --part cells --backend triton --out DIR

`cells` trains {variable, fixed length} x {regularisation off, on} x repeats x batch orders for a few steps each, with NaN
in all padding and in free memory, and notes the first tensor that is not finite. `probes` asks what each cause would
answer. Both write one JSON file; a reproducer goes into reproducer/ when a backend is found wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from lab.errors import BadDataError
from lab.rooms.semicrf.config import DiagnoseConfig, TrainConfig
from lab.rooms.semicrf.model.cases import (
    Case,
    difference,
    poison_free_memory,
    random_case,
    save_reproducer,
    shrunk,
    solve,
)
from lab.rooms.semicrf.model.corpus import Corpus, Utterance, batches, cropped, load_corpus
from lab.rooms.semicrf.model.faults import IN_KERNEL, planted, planted_corpus, planted_scores
from lab.rooms.semicrf.model.head import SemiCRF
from lab.rooms.semicrf.model.probes import (
    PADDING,
    Bench,
    data_probes,
    guard_rows,
    kernel_probes,
    objective_probes,
    precision_rows,
    score_probes,
)
from lab.rooms.semicrf.model.training import (
    Tagger,
    epoch_order,
    make_tagger,
    plant_objective,
    to_batch,
    train_step,
)
from lab.rooms.semicrf.model.validation import drift_messages
from lab.rooms.semicrf.workload.train import set_up_logging, write_environment
from lab.workload.rank import choose_device
from lab.workload.start import read_config, start, write_json

log = logging.getLogger("lab.semicrf")
REG = 0.01
PROBED = 4  # sequences of the probed batch
FRAMES = 60  # and frames of each: float64 from the definition takes a while


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lab.rooms.semicrf.workload.diagnose")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--part", required=True, choices=["cells", "probes"])
    parser.add_argument("--backend", required=True)
    args, context = start(parser, argv)
    set_up_logging(context)
    device = choose_device(context)
    write_environment(args.out, device, context)
    config = read_config(args.config, DiagnoseConfig)
    part = cells if args.part == "cells" else probes
    found = part(config, args.backend, device, args.out)
    write_json(args.out / f"{args.part}.json", found)


def cells(config: DiagnoseConfig, backend: str, device: torch.device, out: Path) -> dict[str, Any]:
    """Every cell of the matrix for one backend: a short training with its outcome."""
    corpus = planted_corpus(config.plant, load_corpus(config.train))
    typical = int(np.median([len(u.features) for u in corpus.train]))
    fixed = cropped(corpus, config.train.fixed_length or max(1, min(200, typical)))
    rows = []
    for lengths, data in (("variable", corpus), ("fixed", fixed)):
        for reg in (0.0, REG):
            for repeat in range(config.repeats):
                for order in range(config.orders):
                    cell = {
                        "backend": backend,
                        "lengths": lengths,
                        "reg": reg,
                        "repeat": repeat,
                        "order": order,
                    }
                    rows.append({**cell, **training(config, data, backend, device, reg, order)})
                    report_cell(rows[-1])
    return {"cells": rows, "fixed_length": len(fixed.train[0].features) if fixed.train else None}


def training(
    config: DiagnoseConfig, corpus: Corpus, backend: str, device: torch.device, reg: float, order: int
) -> dict[str, Any]:
    """Train for `config.steps` steps; -> outcome, the first message of a validation point, magnitudes, a digest of weights."""
    if not corpus.train:
        return {"outcome": "skipped", "message": "no utterance is as long", "step": 0}
    tagger = prepared(config, corpus, backend, device, reg)
    optimizer = torch.optim.AdamW(tagger.parameters(), lr=config.train.lr)
    trail: list[dict[str, float]] = []
    message = None
    for step, chosen in enumerate(endless(corpus.train, config.train, order)):
        if step == config.steps or message:
            break
        poison_free_memory(device, 64 << 20)
        message = one_step(tagger, optimizer, chosen, device, config.train.clip, trail)
    magnitudes = tagger.head.magnitudes()  # type: ignore[operator]
    for level, text in drift_messages(order, *magnitudes):
        log.log(getattr(logging, level), text)
    if message is None and not all(map(math.isfinite, magnitudes)):
        message = "a parameter is not finite after the last step"
    return {
        "outcome": "failed" if message else "passed",
        "message": message,
        "step": len(trail),
        "weights": digest(tagger),
        "transition_max": _number(magnitudes[0]),
        "duration_max": _number(magnitudes[1]),
        "trail": trail,
    }


def one_step(
    tagger: Tagger,
    optimizer: torch.optim.Optimizer,
    chosen: list[Utterance],
    device: torch.device,
    clip: float,
    trail: list[dict[str, float]],
) -> str | None:
    """One step; -> what was not as it must be, in the validation points' words."""
    validator = tagger.head.validator
    try:
        loss, norm = train_step(tagger, optimizer, to_batch(chosen, device), clip)
        validator.settle(wait=True)  # type: ignore[union-attr, operator]
        validator.settle(wait=True)  # type: ignore[union-attr, operator]
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    trail.append({"loss": float(loss), "grad_norm": float(norm)})
    finite = math.isfinite(trail[-1]["loss"]) and math.isfinite(trail[-1]["grad_norm"])
    if not finite:
        trail[-1] = {}
        return f"loss {float(loss)}, gradient norm {float(norm)}"
    return None


def prepared(
    config: DiagnoseConfig, corpus: Corpus, backend: str, device: torch.device, reg: float
) -> Tagger:
    """The model under test, with what was planted in it."""
    train = replaced(
        config.train,
        crf_reg=reg,
        validate=True,
        dropout=0.0,
        objective="guide" if config.plant == "drift" else config.train.objective,
    )
    tagger = make_tagger(train, corpus, "semicrf", backend).to(device)
    head: Any = tagger.head
    head.poison_padding = True
    head.after_projection = planted_scores(config.plant)
    if under_test(config, backend, device):
        head.partition = planted(config.plant, head.partition)
    return tagger


def under_test(config: DiagnoseConfig, backend: str, device: torch.device) -> bool:
    """A planted kernel fault sits in one backend, so that the other can be the sound one beside it."""
    tested = config.train.backends[0]
    if tested == "auto":
        tested = "triton" if device.type == "cuda" else "torch"
    return config.plant in IN_KERNEL and backend == tested


def probes(config: DiagnoseConfig, backend: str, device: torch.device, out: Path) -> dict[str, Any]:
    """All probes, the input's first; where the input is broken the kernels are asked with a sound one."""
    rows: list[dict[str, Any]] = []
    head = SemiCRF(4, 6, backend="torch")
    if config.plant == "drift" or config.train.objective == "guide":
        plant_objective(head)
    case = given_case(config, rows) if config.case else corpus_case(config, device, rows)
    rows += objective_probes(head)
    reference = {"triton": "torch", "native": "torch", "torch": "naive"}.get(backend)
    tested = Bench(case, backend, planted(config.plant if config.plant in IN_KERNEL else None), device)
    rows += kernel_probes(tested)
    if reference:
        rows += kernel_probes(replace(tested, backend=reference, partition=planted(None)))
    rows += precision_rows(tested)
    for found in rows:
        log.info("%-7s %-32s %s", "clean" if found["clean"] else "DIRTY", found["probe"], found["text"])
    reproducer = reproduce(config, tested, rows, out)
    return {"probes": rows, "guards": list(guard_rows(case)), "reproducer": reproducer}


def corpus_case(config: DiagnoseConfig, device: torch.device, rows: list[dict[str, Any]]) -> Case:
    """The scores that the network gives its first batch, cut to what float64 can follow; probes of the input on the way."""
    corpus = planted_corpus(config.plant, load_corpus(config.train))
    rows += data_probes(corpus, config.train.max_duration)
    tagger = prepared(config, corpus, "torch", device, 0.0)
    head: Any = tagger.head
    head.validator, head.poison_padding = None, False
    chosen = [u for u in corpus.train[: 4 * PROBED] if len(u.features)][:PROBED]
    batch = to_batch(chosen, device)
    with torch.no_grad():
        score = head.scores(tagger.encoder(batch["features"], batch["lengths"]), batch["lengths"])[:, :FRAMES]
    case = Case(
        score.cpu(),
        head.transition_CC.detach().cpu(),
        head.duration_KC.detach().cpu(),
        batch["lengths"].clamp(max=FRAMES),
        head.start_C.detach().cpu(),
        head.end_C.detach().cpu(),
    )
    return sound(case, rows)


def given_case(config: DiagnoseConfig, rows: list[dict[str, Any]]) -> Case:
    case = Case.load(Path(str(config.case)))
    if case.score_BTC.dim() != 3 or len(case.lengths_B) != len(case.score_BTC):
        raise BadDataError("the arrays of this case do not fit together", where=str(config.case))
    keep = list(range(min(PROBED, len(case.lengths_B))))
    return sound(case.rows(keep).cut(FRAMES), rows)


def sound(case: Case, rows: list[dict[str, Any]]) -> Case:
    """The case itself, or, where its scores are broken, one of its shape: a broken input would blame the kernels."""
    found = list(score_probes(case))
    rows += found
    if all(one["clean"] for one in found):
        return case
    size, frames, classes = case.score_BTC.shape
    return random_case(
        torch.Generator().manual_seed(1), size, frames, len(case.duration_KC), classes, dtype=torch.float32
    )


def reproduce(
    config: DiagnoseConfig, tested: Bench, rows: list[dict[str, Any]], out: Path
) -> dict[str, Any] | None:
    """The smallest case on which the tested backend is wrong, as files; None where its probes are clean."""
    dirty = [
        r for r in rows if not r["clean"] and r["backend"] == tested.backend and r["cause"] != "precision"
    ]
    if not dirty:
        return None
    plant = config.plant if config.plant in IN_KERNEL else None
    padding = PADDING if any(r["cause"] == "boundary" for r in dirty) else 0

    def fails(case: Case) -> bool:
        # A race shows in one of many runs.
        return any(
            wrong(case, tested, padding) for _ in range(9 if any(r["cause"] == "race" for r in dirty) else 1)
        )

    case = tested.case.to("cpu")
    if not fails(case):
        return None
    small = shrunk(case, fails)
    files = save_reproducer(small, out / "reproducer", backend=tested.backend, plant=plant, padding=padding)
    return {
        "files": [f"reproducer/{name}" for name in files],
        "sequences": len(small.lengths_B),
        "frames": int(small.lengths_B.max()),
        "padding": padding,
        "text": next(filter(None, (wrong(small, tested, padding) for _ in range(9))), ""),
    }


def wrong(case: Case, tested: Bench, padding: int) -> str | None:
    on_device = case.to(tested.device)
    if padding:
        on_device = on_device.padded(padding, math.nan)
    return difference(case, solve(on_device, tested.backend, tested.partition))


def endless(train: list[Utterance], config: TrainConfig, order: int) -> Any:
    """Batches without end; `order` chooses the permutations."""
    epoch = 0
    while True:
        yield from batches(train, config.batch_size, epoch_order(len(train), config.seed + order, epoch))
        epoch += 1


def digest(tagger: Tagger) -> str:
    """A name for the exact bits of all weights."""
    found = hashlib.sha256()
    for value in tagger.state_dict().values():
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def replaced(config: TrainConfig, **changes: Any) -> TrainConfig:
    return msgspec.structs.replace(config, **changes)


def report_cell(row: dict[str, Any]) -> None:
    log.info(
        "%-6s %-6s lengths %-8s reg %-4g repeat %d order %d  %s",
        row["outcome"],
        row["backend"],
        row["lengths"],
        row["reg"],
        row["repeat"],
        row["order"],
        row["message"] or "",
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    main()
