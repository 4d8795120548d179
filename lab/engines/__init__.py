"""Engines run steps: here (`local`), in containers (`docker`), or on a cluster (`slurm`);
`mixed` runs each step in the image that it names, and the others wherever the flags say.

Each is a class behind one protocol (`base`). The driver picks one by flags or by a run's manifest, and never
asks for its name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from lab.errors import UsageError

if TYPE_CHECKING:
    from lab.core.options import Options
    from lab.engines.base import Engine

ENGINES = {
    "local": "lab.engines.local.engine:LocalEngine",
    "docker": "lab.engines.docker.engine:DockerEngine",
    "slurm": "lab.engines.slurm.engine:SlurmEngine",
    "mixed": "lab.engines.mixed:MixedEngine",
}


def engine_class(name: str) -> type[Engine]:
    """Raises UsageError for an engine that lab does not have."""
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name!r}", fix=f"one of: {', '.join(ENGINES)}")
    module, _, attribute = ENGINES[name].partition(":")
    return cast("type[Engine]", getattr(importlib.import_module(module), attribute))


def engine_for(options: Options) -> type[Engine]:
    """The engine that the flags ask for: containers where an image is named, else this environment."""
    name = options.engine or ("docker" if options.image else "local")
    return engine_class("mixed" if options.images and name in ("docker", "local") else name)
