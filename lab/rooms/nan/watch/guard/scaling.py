"""A gradient scaler's skipped steps: an infinity in scaled gradients is how it finds its scale, and no fault.

It is one when the scale falls below 1, when step after step is left out, or more than a twentieth of all.
"""

from __future__ import annotations

import gc
import math
from typing import Any

import torch

from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

LEAST_SCALE = 1.0
MOST_SKIPPED = 0.05
ENOUGH_STEPS = 200
MOST_IN_A_ROW = 6  # from 65536 that is below 1024; a new run finds its scale in two or three
LEAST_BITS_LEFT = 10  # a scale that begins higher may be halved down to 1024 before it has found its place


class Scaling:
    """Follows one scaler."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler
        self.skipped = self.steps = self.in_a_row = 0
        self._states = getattr(scaler, "_per_optimizer_states", None)
        self._stepped = self._succeeded = False

    @property
    def active(self) -> bool:
        enabled = getattr(self.scaler, "is_enabled", None)
        return self.scaler is not None and (not callable(enabled) or bool(enabled()))

    def adopt(self, scaler: Any) -> None:
        """A scaler that was found only now, before it could leave anything out."""
        self.scaler, self._stepped = scaler, False
        self._states = getattr(scaler, "_per_optimizer_states", None)

    @passes_on
    def stepped(self) -> None:
        """An optimizer made its update."""
        self._stepped = self._succeeded = True

    @hidden
    def skipped_one(self) -> bool:
        """Whether `update` was called since the last look without an update of the weights.

        `update` makes a new table of the optimizers' states; to compare scales would wait for the GPU.
        """
        states = getattr(self.scaler, "_per_optimizer_states", None)
        if states is self._states or not self.active:
            return False
        self._states, stepped, self._stepped = states, self._stepped, False
        self.steps += 1
        self.skipped += not stepped
        self.in_a_row = 0 if stepped else self.in_a_row + 1
        return not stepped

    def alarm(self) -> str:
        """Why skipping is no longer normal; empty while it is."""
        if self.skipped and (scale := self._now()) is not None and scale < LEAST_SCALE:
            return f"the loss scale has fallen to {scale:g}: gradients overflow at any scale"
        if self.in_a_row >= self._most_in_a_row():
            return f"the scaler left out the last {self.in_a_row} steps, and none has succeeded since"
        if self.steps >= ENOUGH_STEPS and self.skipped > MOST_SKIPPED * self.steps:
            return f"the scaler left out {self.skipped} of {self.steps} steps"
        return ""

    def _most_in_a_row(self) -> int:
        begin = float(getattr(self.scaler, "_init_scale", 0) or 0)
        if self._succeeded or begin < 2:
            return MOST_IN_A_ROW
        return max(MOST_IN_A_ROW, int(math.log2(begin)) - LEAST_BITS_LEFT)

    def _now(self) -> float | None:
        if self.scaler is None:
            return None
        if getattr(self.scaler, "_scale", None) is None:
            return float(getattr(self.scaler, "_init_scale", 0)) or None
        return float(self.scaler.get_scale())


@passes_on
def scale_of(loss: Any) -> int:
    """The address of the one number that a loss was multiplied by last; 0 if that is not how it was made."""
    node = getattr(loss, "grad_fn", None)
    if node is None or type(node).__name__ != "MulBackward0":
        return 0
    factor = getattr(node, "_saved_other", None)
    return factor.data_ptr() if isinstance(factor, torch.Tensor) and factor.numel() == 1 else 0


def find_scaler(scale: int) -> Any:
    """The GradScaler whose scale lies at this address."""
    kinds = [getattr(getattr(torch, "amp", None), "GradScaler", None), torch.cuda.amp.GradScaler]
    known = tuple(kind for kind in kinds if isinstance(kind, type))
    # By type: to ask an object for its class may run its code.
    scalers = (one for one in gc.get_objects() if issubclass(type(one), known))
    return next((one for one in scalers if _address(getattr(one, "_scale", None)) == scale), None)


def _address(tensor: Any) -> int:
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else 0
