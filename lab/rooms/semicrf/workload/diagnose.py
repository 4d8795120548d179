"""One part of a diagnosis: the cells of the matrix for one backend, or the probes. Runs where the GPU is.

    python -m lab.rooms.semicrf.workload.diagnose --config diagnose.json --part cells --backend triton \\
        --out DIR

`cells` trains {variable, fixed length} x {regularisation off, on} x repeats x batch orders for a few steps
each, with NaN in all padding and in free memory, and notes the first tensor that is not finite. `probes`
tests for each cause. Both write one JSON file; a reproducer goes into reproducer/ if a backend is found
wrong.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from lab.rooms.semicrf.config import DiagnoseConfig
from lab.rooms.semicrf.workload.cells import cells
from lab.rooms.semicrf.workload.common import set_up_logging, write_environment
from lab.rooms.semicrf.workload.probing import probes
from lab.workload.rank import choose_device
from lab.workload.start import read_config, start, write_json

log = logging.getLogger("lab.semicrf")


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


if __name__ == "__main__":
    main()
