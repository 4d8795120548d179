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
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.rooms.semicrf.config import PLAINER, DiagnoseConfig
from lab.rooms.semicrf.model.api import resolve_backend
from lab.rooms.semicrf.workload.cells import cells, replaced
from lab.rooms.semicrf.workload.common import set_up_logging, write_environment
from lab.rooms.semicrf.workload.probing import partition_probes, probes
from lab.workload.rank import choose_device
from lab.workload.start import read_config, start, write_json

log = logging.getLogger("lab.semicrf")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lab.rooms.semicrf.workload.diagnose")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--part", required=True, choices=list(PARTS))
    parser.add_argument("--backend", required=True)
    args, context = start(parser, argv)
    set_up_logging(context)
    device = choose_device(context)
    write_environment(args.out, device, context)
    config = read_config(args.config, DiagnoseConfig)
    tested = resolve_backend(args.backend, torch.zeros(1, 1, 1, device=device))
    config = msgspec.structs.replace(config, train=replaced(config.train, backends=[tested]))
    ran = {"tested": tested, "reference": PLAINER[tested], "device": device.type}
    if config.partition:
        sys.path.insert(0, config.import_path)
        ran = {"tested": config.partition, "reference": "", "device": device.type}
    write_json(args.out / f"{args.part}.json", {**ran, **PARTS[args.part](config, tested, device, args.out)})


def reference_cells(config: DiagnoseConfig, tested: str, device: torch.device, out: Path) -> dict[str, Any]:
    """The matrix on the plainer backend. Repeats would look for a race in it, which is not the question."""
    return cells(msgspec.structs.replace(config, repeats=1), PLAINER[tested], device, out)


PARTS = {
    "cells": cells,
    "reference": reference_cells,
    "probes": probes,
    "partition": partition_probes,
}


if __name__ == "__main__":
    main()
