"""Cells from the command line and from a MATRIX.yaml."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from lab.errors import ConfigError, MissingError, UsageError
from lab.images.spec import load
from lab.rooms.trials.config import Cell
from lab.rooms.trials.presets import MITIGATIONS

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,47}\Z")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")  # one host: no list, no option of sbatch
VARIABLE = re.compile(r"[A-Za-z_]\w*\Z")
LIMIT_BYTES = 1 << 20


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person writes for a cell, or for one level of an axis."""

    name: str | None = None
    mitigations: tuple[str, ...] = ()
    env: dict[str, str | int | float] = {}
    args: tuple[str | int | float, ...] = ()
    seed: int | None = None
    gpu: int | str | None = None
    node: str | None = None
    image: str | None = None


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A MATRIX.yaml. `axes` maps an axis to its levels; their product joins `cells`."""

    command: str | tuple[str, ...]
    fail: str = "exit!=0"
    trials: int = 20
    baseline: str | None = None
    cells: tuple[str | Part, ...] = ()
    axes: dict[str, dict[str, Part]] = {}
    seed: int = 0
    step_time: str | None = None
    stop: bool = False


def read_matrix(path: Path) -> Matrix:
    """Raises MissingError, or ConfigError that names the field."""
    try:
        with path.open("rb") as file:
            text = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise MissingError(f"cannot read the matrix: {error.strerror}", location=path) from error
    if len(text) > LIMIT_BYTES:
        raise ConfigError("a matrix of more than 1 MiB", location=path)
    matrix: Matrix = msgspec_of(text, Matrix, location=str(path))
    return matrix


def msgspec_of(text: bytes | str, kind: Any, *, location: str) -> Any:
    """YAML as `kind`, without aliases, which could grow without bound."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ConfigError("YAML aliases are not read here", location=location)
        return msgspec.convert(yaml.safe_load(text), kind)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not valid YAML: {str(error).splitlines()[0]}", location=location) from error
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"does not fit: {error}",
            location=location,
            fix="a cell has name, image, mitigations, env, args, seed, gpu and node",
        ) from error


def cells_of(matrix: Matrix) -> tuple[Cell, ...]:
    """The cells of a matrix, those of its axes last."""
    listed = [cell(one) for one in matrix.cells]
    crossed = []
    if matrix.axes:
        for levels in itertools.product(*(axis.items() for axis in matrix.axes.values())):
            parts = [part for _, part in levels]
            crossed.append(
                _made(
                    "-".join(str(name) for name, _ in levels),
                    Part(
                        mitigations=tuple(m for part in parts for m in part.mitigations),
                        env={k: v for part in parts for k, v in part.env.items()},
                        args=tuple(a for part in parts for a in part.args),
                        seed=_one(parts, "seed"),
                        gpu=_one(parts, "gpu"),
                        node=_one(parts, "node"),
                        image=_one(parts, "image"),
                    ),
                )
            )
    return checked([*listed, *crossed] or [cell("none")])


def cell(text: str | Part) -> Cell:
    """`none`, a preset, presets joined by `+`, or YAML: `{name: x, env: {A: 1}, args: [--flag]}`."""
    if isinstance(text, Part):
        return _made(text.name, text)
    if text.lstrip().startswith("{"):
        part = msgspec_of(text, Part, location=f"--cell {text}")
        return _made(part.name, part)
    return _made(text.replace("+", "-"), Part(mitigations=tuple(text.split("+"))))


def checked(cells: list[Cell]) -> tuple[Cell, ...]:
    """Raises UsageError for a name that two cells have."""
    names = [cell.name for cell in cells]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two cells are named {twice[0]!r}", fix="give one of them another name")
    return tuple(cells)


def _made(name: str | None, part: Part) -> Cell:
    for mitigation in part.mitigations:
        if mitigation not in MITIGATIONS:
            raise UsageError(
                f"no mitigation {mitigation!r}",
                fix=f"one of: {', '.join(MITIGATIONS)}; or YAML: '{{name: mine, env: {{A: 1}}}}'",
            )
    env = {k: v for mitigation in part.mitigations for k, v in MITIGATIONS[mitigation].env.items()}
    env.update({name: str(value) for name, value in part.env.items()})
    if bad := [name for name in env if not VARIABLE.match(name)]:
        raise UsageError(f"{bad[0]!r} is not the name of an environment variable")
    args = tuple(str(value) for value in part.args)
    place = {"image": part.image, "gpu": part.gpu, "node": part.node, "seed": part.seed}
    shown = {**env, **{at: str(value) for at, value in place.items() if value is not None}}
    name = name or "-".join(part.mitigations) or _slug(shown, args)
    if not NAME.match(name):
        raise UsageError(
            f"{name!r} is not the name of a cell",
            fix="at most 48 of a-z 0-9 . _ -, and a letter or digit first",
        )
    if part.node is not None and not NODE.match(part.node):
        raise UsageError(f"{part.node!r} is not the name of a node")
    if part.image is not None:
        load(part.image)  # an image that lab does not have is refused here
    if part.seed is not None and part.seed < 0:
        raise UsageError(f"the seed of cell {name!r} is below 0")
    used = [MITIGATIONS[mitigation] for mitigation in part.mitigations]
    is_own = bool(part.env or args) or any(value is not None for value in place.values())
    return Cell(
        name=name,
        env=env,
        args=args,
        settings=tuple(mitigation for name in used for mitigation in name.settings),
        # What reads a change of a person's own is not known: such a cell may change something in any case.
        read_by=() if is_own else tuple(name.read_by for name in used if name.read_by),
        seed=part.seed,
        gpu=None if part.gpu is None else str(part.gpu),
        node=part.node,
        image=part.image,
    )


def _one(parts: Sequence[Part], name: str) -> Any:
    """The value that one level of a product gives; two that differ contradict each other."""
    values = {getattr(part, name) for part in parts} - {None}
    if len(values) > 1:
        raise UsageError(f"two axes give a cell another {name}", fix=f"name {name} in one axis only")
    return next(iter(values), None)


def _slug(env: dict[str, str], args: tuple[str, ...]) -> str:
    words = [*(f"{name}-{value}" for name, value in env.items()), *args]
    return re.sub(r"[^a-z0-9._]+", "-", "-".join(words).lower()).strip("-._")[:48] or "none"
