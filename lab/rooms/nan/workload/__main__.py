"""One experiment of the nan room, in a process of its own, where the GPU is.

    python -m lab.rooms.nan.workload --config nan.json --experiment eager --out steps/eager
                                     [--no-hooks] [--root DIR]

Loads the model, changes one thing and proves it, generates exactly `max_new_tokens` greedily under the watch
(with --no-hooks without it, which is how it runs under nixnan), and leaves in --out:

- `result.json`: what was asked and what ran, the proof, the text, births and totals.
- `modules.csv`: every leaf of every module, summed over calls, by phase.
- `calls.csv`: the kept forwards, call by call.
- `environment.json`: versions and devices.

Exit codes are those of lab.errors. Written for torch 1.12 to 2.13, transformers 4.35 to 5.23.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.errors import UsageError
from lab.rooms.nan.config import AGAIN, EXPERIMENTS, RESULT, NanConfig, label
from lab.rooms.nan.watch.count import KINDS, plain_counts
from lab.rooms.nan.watch.explain import Row, Step, Total
from lab.rooms.nan.watch.roles import Birth
from lab.rooms.nan.watch.watch import Watch
from lab.rooms.nan.workload.cell import Cell, choose_cell, effective, environment
from lab.rooms.nan.workload.changes import make_change, proof_of_loading, provoke
from lab.rooms.nan.workload.model import Generated, Loaded, first_logits, generate, load
from lab.workload.start import read_config, start, write_json

log = logging.getLogger("lab.workload")
INJECTED = ("CUDA_INJECTION64_PATH", "LD_PRELOAD", "LOGFILE", "NIXNAN_SO")
MOST_BIRTHS = 200
_MODULE = ("module", "kind", "side", "leaf", "phase", "dtype", "calls", "numel")
_CALL = ("step", "phase", "seq", "module", "class", "side", "leaf", "shape", "dtype")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        prog="lab.rooms.nan.workload", description="One experiment of the nan room."
    )
    parser.add_argument("--config", required=True, help="nan.json of the run")
    parser.add_argument("--experiment", required=True, choices=[*EXPERIMENTS, AGAIN])
    parser.add_argument(
        "--no-hooks", action="store_true", help="generate only: under a tool the watch would stall"
    )
    parser.add_argument(
        "--root", type=Path, default=Path(), help="folder that the other paths are relative to"
    )
    args, _ = start(parser, argv)
    logging.basicConfig(
        level="INFO", format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S", stream=sys.stdout
    )
    config = read_config(args.root / args.config, NanConfig)
    run(config, args.experiment, args.root / args.out, watched=not args.no_hooks)


def run(config: NanConfig, experiment: str, out: Path, *, watched: bool = True) -> dict[str, Any]:
    """Load, run and measure the experiment, and write its files; returns what result.json holds."""
    began = time.perf_counter()
    torch.manual_seed(config.seed)
    cell = choose_cell(config, experiment)
    for note in [*cell.notes, *([cell.skipped] if cell.skipped else [])]:
        log.info("note: %s", note)
    log.info("%s: %s, %s, attention %s, on %s", experiment, config.model, cell.dtype, cell.attn, cell.device)
    if cell.device.type == "cuda":
        attach_tools()
    loaded = load(config, cell)
    write_json(out / "environment.json", environment(cell))
    log.info("loaded in %.1f s", time.perf_counter() - began)
    result = execute(config, experiment, cell, loaded, out, watched)
    result["seconds"] = round(time.perf_counter() - began, 3)
    write_json(out / RESULT, result)
    log_findings(result)
    return result


def attach_tools() -> None:
    """Make the GPU's context now, which loads an injected tool; then hide the tool from child processes.

    Every process that loads nixnan empties the log that its environment names.
    """
    torch.zeros(1, device="cuda")
    for name in INJECTED:
        os.environ.pop(name, None)


def execute(
    config: NanConfig, experiment: str, cell: Cell, loaded: Loaded, out: Path, watched: bool
) -> dict[str, Any]:
    """Plant, change, prove, generate, measure; returns the result without its time."""
    model, device = loaded.model, cell.device
    if config.provoke and cell.quant != "none":
        raise UsageError("--provoke cannot scale quantized weights", fix="add --quant none")
    ids, mask = (tensor.to(device) for tensor in loaded.tokenizer(config.prompt))
    planted = provoke(model, config.provoke, config.provoke_layer, ids, mask) if config.provoke else None
    plain = first_logits(model, ids, mask) if watched else None
    proof = proof_of_loading(experiment, model, cell)
    change = make_change(experiment, model, config)
    if change is not None and plain is not None:
        change.logits_moved = _moved(plain, first_logits(model, ids, mask))
    counter = None if config.counter == "auto" else config.counter
    watch = Watch(model, counter=counter) if watched else None
    generated = generate(model, ids, mask, config.max_new_tokens, watch)
    proof = change or proof
    result = {
        "experiment": experiment,
        "label": label(config, experiment),
        "level": "python" if watched else "sass",
        "skipped_quant": cell.skipped,
        "asked": EXPERIMENTS.get(experiment, EXPERIMENTS["baseline"]),
        "effective": effective(config, cell, model),
        "notes": cell.notes,
        "planted": planted,
        "applied": proof.as_dict() if proof else None,
        "prompt": list(config.prompt),
        "prompt_tokens": int(mask.sum()),
        "tokens": generated.tokens,
        "text": [loaded.tokenizer.decode(row) for row in generated.tokens],
        "new_tokens": config.max_new_tokens,
        "logits": logits_summary(generated),
    }
    if watch is not None:
        result["watch"] = write_watch(watch, out)
    return result


def logits_summary(generated: Generated) -> dict[str, Any]:
    """NaN and infinities among the logits that tokens were chosen from, (steps, batch, vocabulary)."""
    rows = plain_counts(list(generated.logits))
    bad = np.flatnonzero(rows[:, :3].sum(axis=1) > 0).tolist()
    summary: dict[str, Any] = {kind: float(rows[:, index].sum()) for index, kind in enumerate(KINDS[:3])}
    return {**summary, "absmax": float(rows[:, 4].max()), "steps": len(rows), "bad_steps": bad}


def _moved(plain: torch.Tensor, changed: torch.Tensor) -> float | None:
    """The largest difference of finite logits; None where nothing is finite."""
    finite = torch.isfinite(plain) & torch.isfinite(changed)
    if not bool(finite.any()):
        return None
    return float((plain.float() - changed.float()).abs()[finite].max())


def log_findings(result: dict[str, Any]) -> None:
    watch = result.get("watch")
    if watch:
        birth = watch["first"]
        place = f"{birth['place']} ({birth['phase']}, step {birth['step']})" if birth else "none"
        log.info("first bad number: %s", place)
    bad = len(result["logits"]["bad_steps"])
    logits = f"not finite in {plural(bad, 'step')}" if bad else "all finite"
    log.info("logits: %s; text: %r", logits, result["text"])


def write_watch(watch: Watch, out: Path) -> dict[str, Any]:
    """Write the watch's tables into `out`; returns its part of result.json."""
    totals, first_step = watch.totals(), watch.first_step
    _write_csv(out / "modules.csv", (*_MODULE, *KINDS, "first_bad_step"), map(_module_row, totals))
    calls = (_call_row(step, row) for step in watch.steps for row in step.rows)
    _write_csv(out / "calls.csv", (*_CALL, *KINDS, "role"), calls)
    born = [_born(step, birth) for step in watch.steps[:MOST_BIRTHS] for birth in step.births]
    return {
        "counter": watch.counter,
        "counter_reason": watch.counter_reason,
        "notes": watch.notes,
        "modules": len({total.module for total in totals}),
        "forwards": len(watch.steps),
        "weights": watch.weights,
        "first": _born(first_step, first_step.births[0]) if first_step else None,
        "births": born[:MOST_BIRTHS],
        "steps": [
            {
                "step": step.number,
                "phase": step.phase,
                "query_length": step.query_length,
                "bad_leaves": step.bad_leaves,
                "reached_output": step.reached_output,
                **step.totals,
            }
            for step in watch.steps
        ],
    }


def _module_row(total: Total) -> list[Any]:
    values = [getattr(total, name) for name in _MODULE]
    return [*values, *map(_number, total.counts), total.first_bad_step]


def _call_row(step: Step, row: Row) -> list[Any]:
    *cells, counts, role = dataclasses.astuple(row)
    return [step.number, step.phase, *cells, *map(_number, counts), role]


def _born(step: Step, birth: Birth) -> dict[str, Any]:
    cells = {"step": step.number, "phase": step.phase}
    born = dataclasses.asdict(birth)
    return {**cells, "how": born.pop("kind"), **born, "place": birth.place}


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomic(path, text.getvalue())


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(value)


if __name__ == "__main__":
    main()
