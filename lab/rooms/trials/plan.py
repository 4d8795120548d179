"""From a TrialsConfig and a site to one step per trial, shuffled within blocks. Pure."""

from __future__ import annotations

import random

from lab.core.plan import Plan, Site
from lab.core.step import SOURCE, Step
from lab.core.words import plural
from lab.errors import GpuError, UsageError
from lab.rooms.trials.config import CONFIG, RESULT, Cell, TrialsConfig, plan_of, seed_of

GRACE_S = 60.0  # beyond a trial's own limit, for the step around it


def plan(config: TrialsConfig, site: Site) -> Plan:
    """Block after block, each with every cell once in an order of its own: time falls on all cells alike."""
    num_gpus = min(config.num_gpus, len(site.gpus)) if not site.gpus else config.num_gpus
    if site.gpus and num_gpus > len(site.gpus):
        raise GpuError(
            f"a trial needs {plural(num_gpus, 'GPU')}, {len(site.gpus)} were picked",
            fix="lower --num-gpus or widen --gpus",
        )
    if site.resolved and (placed := [cell.name for cell in config.cells if cell.node]):
        raise UsageError(f"cell {placed[0]!r} names a node, and one machine runs this", fix="--engine slurm")
    if not site.resolved and (placed := [cell.name for cell in config.cells if cell.gpu is not None]):
        raise UsageError(f"cell {placed[0]!r} names a GPU, and Slurm picks it", fix="name a node instead")
    ordered = [(trial, cell) for trial in range(config.trials) for cell in block(config, trial)]
    steps = (_step(config, index, trial, cell, num_gpus) for index, (trial, cell) in enumerate(ordered))
    return plan_of(config, CONFIG, steps, _notes(config))


def block(config: TrialsConfig, trial: int) -> list[Cell]:
    """The cells in the order of this block: the same for the same seed."""
    cells = list(config.cells)
    random.Random(f"{config.seed}:{trial}").shuffle(cells)
    return cells


def _step(config: TrialsConfig, order: int, trial: int, cell: Cell, num_gpus: int) -> Step:
    name = f"{cell.name}-{trial:04d}"
    folder = f"steps/{name}"
    place = ("--cell", cell.name, "--trial", str(trial), "--order", str(order))
    in_image = cell.image or config.image
    cwd = SOURCE if in_image and config.cwd else config.cwd
    return Step(
        name=name,
        folder=folder,
        num_gpus=1 if cell.gpu is not None else num_gpus,
        gpu=cell.gpu,
        node=cell.node,
        image=cell.image,
        source=config.cwd if in_image else None,
        argv=(
            *("python", "-m", "lab.rooms.trials.workload", "--config", CONFIG, *place, "--out", folder),
            *(("--cwd", cwd) if cwd else ()),
        ),
        timeout_s=None if config.trial_timeout_s is None else config.trial_timeout_s + GRACE_S,
        expects=(f"{folder}/{RESULT}",),
        labels={"cell": cell.name, "trial": trial, "order": order, "seed": seed_of(config, trial, cell)},
    )


def _notes(config: TrialsConfig) -> tuple[str, ...]:
    n, cells = config.trials, len(config.cells)
    notes = []
    if config.until:
        test = config.until
        notes.append(
            f"old rate {test.was:g} against {test.fixed:g}: {test.passes_left(0, 0)} passes "
            f"in a row say fixed, {plural(test.fails_left(0, 0), 'failure')} in a row not fixed; at most "
            f"{plural(n, 'trial')}"
        )
    else:
        bound = 1 - 0.05 ** (1 / n)
        notes.append(
            f"{plural(n, 'trial')} per cell: without a failure a rate of up to {bound:.1%} stays possible"
        )
    in_images = {cell.image or config.image for cell in config.cells}
    if in_images - {None} and config.cwd:
        notes.append(f"in an image the command runs in {SOURCE}: {config.cwd}, mounted read-only")
    if in_images - {None} and not config.cwd:
        notes.append("your folder cannot be mounted into a container: the command runs in the run folder")
    if None in in_images and len(in_images) > 1:
        notes.append(
            "cells without an image run in this environment: against them, an image differs in all that a "
            "container changes (variables, limits, the file system)"
        )
    if cells > 1:
        notes.append("whether a cell's own variables and arguments take effect in the command is not checked")
    return tuple(notes)
