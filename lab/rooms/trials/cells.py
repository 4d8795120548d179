"""Cells from the command line and from a MATRIX.yaml."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from lab.errors import ConfigError, MissingError, UsageError
from lab.images.spec import load
from lab.rooms.trials.config import Cell

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,47}\Z")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")  # one host: no list, no option of sbatch
VARIABLE = re.compile(r"[A-Za-z_]\w*\Z")
PLACES = ("image", "gpu", "node", "seed")
LIMIT_BYTES = 1 << 20


class Mitigation(NamedTuple):
    """A row of presets.csv."""

    env: dict[str, str]
    settings: tuple[str, ...]
    read_by: str
    changes: str


def _presets() -> dict[str, Mitigation]:
    with Path(__file__).with_name("presets.csv").open(newline="", encoding="ascii") as file:
        rows = list(csv.DictReader(line for line in file if line[0] != "#"))
    return {
        row["name"]: Mitigation(
            dict(word.split("=", 1) for word in row["env"].split()),
            tuple(row["settings"].split()),
            row["read_by"],
            row["changes"],
        )
        for row in rows
    }


MITIGATIONS = _presets()


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
    matrix: Matrix = yaml_as(text, Matrix, location=str(path))
    return matrix


def yaml_as(text: bytes | str, kind: Any, *, location: str) -> Any:
    """YAML as `kind`, without aliases: a few lines of them unfold to gigabytes."""
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
    cells = [cell(text) for text in matrix.cells]
    for levels in itertools.product(*(axis.items() for axis in matrix.axes.values())) if matrix.axes else ():
        cells.append(_made(_merged("-".join(name for name, _ in levels), [part for _, part in levels])))
    return checked(cells or [cell("none")])


def _merged(name: str, parts: Sequence[Part]) -> Part:
    """The levels of a product as one; two that name different places or seeds contradict each other."""
    places = {}
    for place in PLACES:
        values = {getattr(part, place) for part in parts} - {None}
        if len(values) > 1:
            raise UsageError(f"two axes give a cell another {place}", fix=f"name {place} in one axis only")
        places[place] = next(iter(values), None)
    return Part(
        name=name,
        mitigations=tuple(mitigation for part in parts for mitigation in part.mitigations),
        env={name: value for part in parts for name, value in part.env.items()},
        args=tuple(word for part in parts for word in part.args),
        **places,
    )


def cell(text: str | Part) -> Cell:
    """`none`, a preset, presets joined by `+`, or YAML: `{name: x, env: {A: 1}, args: [--flag]}`."""
    if isinstance(text, Part):
        return _made(text)
    if text.lstrip().startswith("{"):
        return _made(yaml_as(text, Part, location=f"--cell {text}"))
    return _made(Part(name=text.replace("+", "-"), mitigations=tuple(text.split("+"))))


def checked(cells: list[Cell]) -> tuple[Cell, ...]:
    """Raises UsageError for a name that two cells have."""
    names = [cell.name for cell in cells]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two cells are named {twice[0]!r}", fix="give one of them another name")
    return tuple(cells)


def _made(part: Part) -> Cell:
    if unknown := [name for name in part.mitigations if name not in MITIGATIONS]:
        raise UsageError(
            f"no mitigation {unknown[0]!r}",
            fix=f"one of: {', '.join(MITIGATIONS)}; or YAML: '{{name: mine, env: {{A: 1}}}}'",
        )
    used = [MITIGATIONS[name] for name in part.mitigations]
    env = {name: value for mitigation in used for name, value in mitigation.env.items()}
    env.update({name: str(value) for name, value in part.env.items()})
    if bad := [name for name in env if not VARIABLE.match(name)]:
        raise UsageError(f"{bad[0]!r} is not the name of an environment variable")
    args = tuple(str(value) for value in part.args)
    places = {at: str(value) for at in PLACES if (value := getattr(part, at)) is not None}
    name = part.name or "-".join(part.mitigations) or _slug({**env, **places}, args)
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
    is_own = bool(part.env or args or places)
    return Cell(
        name=name,
        env=env,
        args=args,
        settings=tuple(setting for mitigation in used for setting in mitigation.settings),
        # What reads a change of a person's own is not known: such a cell may change something in any case.
        read_by=() if is_own else tuple(mitigation.read_by for mitigation in used if mitigation.read_by),
        seed=part.seed,
        gpu=None if part.gpu is None else str(part.gpu),
        node=part.node,
        image=part.image,
    )


def _slug(env: dict[str, str], args: tuple[str, ...]) -> str:
    words = [*(f"{name}-{value}" for name, value in env.items()), *args]
    return re.sub(r"[^a-z0-9._]+", "-", "-".join(words).lower()).strip("-._")[:48] or "none"
