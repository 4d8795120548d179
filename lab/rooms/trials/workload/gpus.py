"""One round: every GPU that this step was given, one after the other in an order of the round's own.

    python -m lab.rooms.trials.workload.gpus --config gpus.json --round 0 --out steps/round-00

Each GPU has a process of its own, so that one which hangs or falls off the bus is a row and no end.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.errors import BadDataError, LabError
from lab.gpus.selection import MASKS
from lab.rooms.trials.gpus.config import VISITS, GpusConfig, Visit, Visits, read_gpus
from lab.rooms.trials.gpus.health import read_health

ONE = "lab.rooms.trials.workload.one_gpu"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lab.rooms.trials.workload.gpus")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--round", required=True, type=int)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args(argv)
    try:
        config = read_gpus(args.config)
        health, no_health, xids, no_xids = read_health()
        events_of = None if xids is None else {where: tuple(events) for where, events in xids.items()}
        round_of_visits = Visits(visits(config, args.round), health, no_health, events_of, no_xids)
        write_atomic(
            args.out / VISITS, msgspec.json.format(msgspec.json.encode(round_of_visits), indent=1) + b"\n"
        )
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def visits(config: GpusConfig, number: int) -> tuple[Visit, ...]:
    masks = given()
    order = list(range(len(masks)))
    random.Random(f"{config.seed}:{number}").shuffle(order)
    return tuple(_visit(config, number, index, masks[which]) for index, which in enumerate(order))


def given() -> list[dict[str, str]]:
    """The environment that shows one GPU of this step, per GPU; one empty environment where there is none."""
    for mask in MASKS:
        if words := [word for word in os.environ.get(mask, "").split(",") if word and word != "-1"]:
            return [{mask: word} for word in words]
    count = _seen()
    return [{"CUDA_VISIBLE_DEVICES": str(index)} for index in range(count)] or [{"CUDA_VISIBLE_DEVICES": ""}]


def _seen() -> int:
    code = "import torch; print(torch.cuda.device_count())"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(process.stdout) if process.returncode == 0 and process.stdout.strip().isdecimal() else 0


def _visit(config: GpusConfig, number: int, order: int, mask: dict[str, str]) -> Visit:
    label = ",".join(mask.values()) or "cpu"
    started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    about = {"round": number, "order": order, "host": platform.node(), "started_utc": started}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "visit.json"
        words = ["--repeats", str(config.repeats), "--seed", str(config.seed), "--out", str(path)]
        try:
            process = subprocess.run(
                [sys.executable, "-m", ONE, *words],
                env={**os.environ, **mask},
                timeout=config.limit_s,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            print(f"round {number}, {label}:", (process.stdout + process.stderr).strip()[-4000:], flush=True)
            if not path.exists():
                last_line = (process.stderr.strip() or "no message").splitlines()[-1][:300]
                return Visit(label, error=f"ended with exit code {process.returncode}: {last_line}", **about)  # type: ignore[arg-type]
            visit: Visit = msgspec.json.decode(path.read_bytes(), type=Visit)
        except subprocess.TimeoutExpired:
            return Visit(label, error=f"ran past {config.limit_s:g} s", **about)  # type: ignore[arg-type]
        except (OSError, msgspec.DecodeError) as error:
            raise BadDataError(f"the visit of {label} cannot be read: {error}") from error
    return msgspec.structs.replace(visit, uuid=visit.uuid or label, **about)


if __name__ == "__main__":
    raise SystemExit(main())
