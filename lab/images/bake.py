"""docker-bake.json, written from the images' own data: every image as a target of `docker buildx bake`.

`lab images prepare` makes what a build needs first (the wheel of lab, a torch for the CPU) and prints the
variables that this file reads; the others keep their defaults. `LAB_BASE_NAME=REF` changes a base;
`lab images prepare --resolve-base` prints it by digest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lab.images.arguments import LOCK_HASH, PIP_VARIABLES, PROVENANCE
from lab.images.names import repository_of
from lab.images.targets import Target, base_variable, lock_variable, targets

FILE = Path("docker-bake.json")
REGISTRY, TAG = "REGISTRY", "TAG"


def render() -> str:
    """The text of docker-bake.json. JSON has no comments; docker/README.md says how it is used."""
    wanted = targets()
    shared = [*PIP_VARIABLES, *PROVENANCE]
    names = [name for name in shared if name != LOCK_HASH] + [lock_variable(t) for t in wanted]
    defaults = {
        REGISTRY: "localhost/",
        TAG: "latest",
        **dict.fromkeys(names, ""),
        "PIP_DEFAULT_TIMEOUT": "60",
    }
    defaults |= {base_variable(target): target.base_ref for target in wanted}
    document = {
        "variable": {name: {"default": value} for name, value in defaults.items()},
        "group": {"default": {"targets": [target.name for target in wanted]}},
        "target": {target.name: _target(target, shared) for target in wanted},
    }
    return json.dumps(document, indent=2) + "\n"


def _target(target: Target, shared: list[str]) -> dict[str, Any]:
    values = {name: f"${{{name}}}" for name in shared} | {LOCK_HASH: f"${{{lock_variable(target)}}}"}
    return {
        "context": ".",
        "dockerfile": str(target.dockerfile),
        "args": {"BASE_IMAGE": f"${{{base_variable(target)}}}", **values},
        "tags": [f"${{{REGISTRY}}}{repository_of(target.ref)}:${{{TAG}}}"],
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
