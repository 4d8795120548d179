"""A cell's settings of torch, made inside the command, and what shows that a cell changed anything there.

Called by the hook in every Python process of the command once torch is imported. Each leaves a witness: the
settings as torch reads them back, and which of the libraries that read the cell's variables it had loaded
when it ended. This module itself does not load torch.
"""

from __future__ import annotations

import atexit
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EFFECTS = "LAB_TRIAL_EFFECTS"
APPLY = "lab.rooms.trials.workload.effects:apply"


def apply() -> None:
    """Make the settings and leave the witness when the process ends; a child process leaves its own."""
    asked = json.loads(os.environ[EFFECTS])
    path = Path(asked["out"]) / f"{os.getpid()}.json"
    effects = {name: make(name) for name in asked["settings"]}

    def leave() -> None:
        witness = {"settings": effects, "loaded": [one for one in asked["read_by"] if loaded(one)]}
        path.write_text(json.dumps(witness))

    leave()  # a program that ends by os._exit or a signal has this one at least
    atexit.register(leave)


def effect_of(settings: Sequence[str], read_by: Sequence[str], folder: Path) -> str:
    """ "yes", or why the cell changed nothing; "" where nothing is known of it."""
    if not settings and not read_by:
        return ""
    witnesses = []
    for path in sorted(folder.glob("*.json")):
        try:
            witnesses.append(json.loads(path.read_text()))
        except (OSError, ValueError):  # killed while it wrote: no witness
            continue
    if not witnesses:
        return "no Python process of the command imported torch" if settings else ""
    if failed := [
        name for name in settings if not any(witness["settings"].get(name) for witness in witnesses)
    ]:
        return f"torch does not have the setting {failed[0]}"
    if read_by and not any(witness["loaded"] for witness in witnesses):
        return f"no library that reads its variables was loaded ({', '.join(read_by)})"
    return "yes"


def loaded(pattern: str) -> bool:
    """Whether this process has a library of such a name."""
    try:
        names = {line.rpartition("/")[2].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return False
    return any(re.match(pattern, name) for name in names)


SETTINGS = (
    "deterministic",
    "deterministic_strict",
    "cudnn_deterministic",
    "flash_off",
    "sdpa_math",
    "tf32_torch_off",
    "anomaly",
)


def make(setting: str) -> bool:
    """Make one of SETTINGS; whether torch reads it back."""
    import torch

    cuda: Any = torch.backends.cuda
    if setting in ("deterministic", "deterministic_strict"):
        torch.use_deterministic_algorithms(True, warn_only=setting == "deterministic")
        strict = not torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled() and (strict or setting == "deterministic")
    if setting == "cudnn_deterministic":
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        return bool(torch.backends.cudnn.deterministic)
    if setting == "tf32_torch_off":
        cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        return not cuda.matmul.allow_tf32
    if setting == "anomaly":
        torch.autograd.set_detect_anomaly(True)
        return torch.is_anomaly_enabled()
    cuda.enable_flash_sdp(False)
    if setting == "sdpa_math":
        cuda.enable_mem_efficient_sdp(False)
        if hasattr(cuda, "enable_cudnn_sdp"):
            cuda.enable_cudnn_sdp(False)
        cuda.enable_math_sdp(True)
    return not cuda.flash_sdp_enabled() and not (setting == "sdpa_math" and cuda.mem_efficient_sdp_enabled())
