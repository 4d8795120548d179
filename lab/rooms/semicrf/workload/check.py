"""This device's kernels of one backend against plain float64; runs where the GPU is.

    python -m lab.rooms.semicrf.workload.check --config check.json --backend auto --out DIR

Writes checks.json: one row per check with its value beside its limit. A check that raises is a failed row,
and the others go on. Limits are those of docs/semicrf.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from lab.rooms.semicrf.config import CheckConfig
from lab.rooms.semicrf.model.api import resolve_backend
from lab.rooms.semicrf.workload.checks.hostile import composition, hostile, infeasible, poison, repeats
from lab.rooms.semicrf.workload.checks.values import (
    Row,
    Subject,
    accuracy,
    accuracy_long,
    as_row,
    audit,
    decoding,
    head_loss,
)
from lab.rooms.semicrf.workload.common import begin, log
from lab.workload.start import read_config, write_json


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lab.rooms.semicrf.workload.check")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--backend", required=True)
    args, device = begin(parser, argv)
    config = read_config(args.config, CheckConfig)
    subject = Subject(args.backend, device, config.batches, config.seed)
    ran = resolve_backend(args.backend, torch.zeros(1, 1, 1, device=subject.device))
    rows = list(all_checks(subject))
    context_of_run = {"device": str(device), "backend": ran}
    write_json(args.out / "checks.json", {**context_of_run, "checks": rows})


def all_checks(subject: Subject) -> Iterator[Row]:
    """Every check in turn; one that raises is a failed row."""
    for check in every_check():
        try:
            for row in check(subject):
                names = ("verdict", "check", "shape", "dtype", "text")
                log.info("%-4s %-28s %-18s %-8s %s", *(row[name] for name in names))
                yield row
        except Exception as error:  # noqa: BLE001  a crash of one check is its result
            words = (str(error).splitlines() or [""])[0]
            yield as_row(check.__name__, "", "", None, None, f"{type(error).__name__}: {words}", ok=False)


def every_check() -> tuple[Callable[[Subject], Iterator[Row]], ...]:
    return (
        *(accuracy, accuracy_long, audit, head_loss, decoding),
        *(repeats, composition, poison, infeasible, hostile),
    )


if __name__ == "__main__":
    main()
