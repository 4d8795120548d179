"""A folder of a nan run as its steps leave it, made here so that each test says what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.core.manifest import Lab, Manifest, StepRecord
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step

KINDS = ["nan", "posinf", "neginf", "subnormal", "absmax"]
TOTALS = ["module", "kind", "side", "leaf", "phase", "dtype", "calls", "numel", *KINDS, "first_bad_step"]
CALLS = ["step", "phase", "seq", "module", "class", "side", "leaf", "shape", "dtype", *KINDS, "role"]


def run_of(
    root: Path,
    results: dict[str, dict[str, Any] | None],
    failed: dict[str, str] | None = None,
    sass: bool = False,
) -> Run:
    """A run with one step per experiment.

    `failed` is experiment -> reason; a result of None is a missing file.
    """
    records = []
    for name in results:
        step = Step(
            name=name,
            argv=("python",),
            folder=f"steps/{name}",
            tools=("nixnan",) if sass else (),
            labels={"experiment": name, "label": name},
        )
        why = (failed or {}).get(name)
        outcome = (
            Outcome(status=Status.failed, reason=why, exit_code=1)
            if why
            else Outcome(status=Status.ok, exit_code=0)
        )
        records.append(StepRecord(step=step, fingerprint="x", attempts=1, outcome=outcome))
    manifest = Manifest(
        id=root.name,
        room="nan",
        created_utc="2026-01-01T00:00:00+00:00",
        lab=Lab(version="0"),
        command=("lab",),
        engine="local",
        host={},
        steps=records,
    )
    run = Run.create(root, manifest)
    for name, content in results.items():
        folder = root / "steps" / name
        folder.mkdir(parents=True, exist_ok=True)
        if content is not None:
            (folder / "result.json").write_text(json.dumps(content))
            _csv(folder / "modules.csv", TOTALS, content.get("_modules", []))
            _csv(folder / "calls.csv", CALLS, content.get("_calls", []))
    return run


def result(
    name: str,
    *,
    first: dict[str, Any] | None = None,
    bad_steps: tuple[int, ...] = (),
    applied: str | None = None,
    text: str = "same",
    **more: Any,
) -> dict[str, Any]:
    """A result.json: clean unless `first` (a birth) and `bad_steps` of the logits say otherwise."""
    bad = 5 if first else 0
    steps = [
        {"bad_leaves": bad, "nan": float(bad), "posinf": 0.0, "neginf": 0.0, "subnormal": 0.0}
        for _ in range(2)
    ]
    proof = (
        None
        if applied is None
        else {
            "what": "a change",
            "expected": 4,
            "count": 0 if applied == "invalid" else 4,
            "values_changed": None,
            "logits_moved": 0.0 if applied == "no-effect" else 0.1,
            "reason": "",
            "status": applied,
        }
    )
    return {
        "experiment": name,
        "label": name,
        "skipped_quant": "",
        "asked": name,
        "planted": None,
        "effective": {
            "dtypes": ["float16"],
            "attention": "eager" if name == "eager" else "sdpa",
            "quant": "none",
            "device": "cpu",
            "device_name": "CPU",
        },
        "applied": proof,
        "text": [text],
        "logits": {"steps": 2, "bad_steps": list(bad_steps)},
        "watch": {
            "modules": 10,
            "weights": [],
            "first": first,
            "births": [first] if first else [],
            "steps": steps,
        },
        **more,
    }


def birth(module: str = "model.layers.2.self_attn", how: str = "between") -> dict[str, Any]:
    return {
        "module": module,
        "how": how,
        "leaf": "args[0]",
        "after": f"{module}.v_proj",
        "before": f"{module}.o_proj",
        "place": f"in {module}, after v_proj, before o_proj",
        "step": 0,
        "phase": "prefill",
    }


def module(
    name: str, *, nan: int = 0, subnormal: int = 0, absmax: float = 0.0, first_bad_step: int = -1
) -> list[Any]:
    """A row of modules.csv: 64 numbers that a module put out in its prefill."""
    where = [name, "Module", "out", "output", "prefill", "float16", 1, 64]
    return [*where, nan, 0, 0, subnormal, absmax, first_bad_step]


def call(
    seq: int,
    module: str,
    side: str,
    *,
    nan: int = 0,
    posinf: int = 0,
    absmax: float = 1.0,
    dtype: str = "float16",
) -> list[Any]:
    """A row of calls.csv, in the first step."""
    leaf = "args[0]" if side == "in" else "output"
    where = [0, "prefill", seq, module, "Linear", side, leaf, "1x6x64", dtype]
    return [*where, nan, posinf, 0, 0, absmax, ""]


def _csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    path.write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n")
