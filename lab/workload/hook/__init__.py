"""A folder for PYTHONPATH: Python runs its sitecustomize when a program starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]  # of the lab that started the program


def hooked(env: Mapping[str, str], function: str) -> dict[str, str]:
    """`env` for a program in which `function` ("module:name") is called once torch is imported."""
    path = os.pathsep.join(filter(None, [str(HERE), env.get("PYTHONPATH")]))
    return {**env, "LAB_HOOK": function, "LAB_HOOK_ROOT": str(ROOT), "PYTHONPATH": path}
