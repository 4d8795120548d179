"""Forwards of the top module, each marked by its name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from lab.rooms.kernels.schema import Forward
from lab.rooms.kernels.workload.recorder import Recorder


class Marks:
    """Runs each forward of the top module inside a context manager made from the forward's name."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.names = model, list[str]()

    @contextlib.contextmanager
    def on(self, make: Any) -> Iterator[None]:
        """Within the block, forward i runs inside `make("prefill")` or `make("decode_i")`."""
        self.names.clear()
        opened: list[Any] = []

        def enter(_module: nn.Module, _args: Any) -> None:
            self.names.append(f"decode_{len(self.names)}" if self.names else "prefill")
            opened.append(make(self.names[-1]))
            opened[-1].__enter__()

        def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
            opened.pop().__exit__(None, None, None)

        hooks = [self.model.register_forward_pre_hook(enter), self.model.register_forward_hook(leave)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def forwards(self, prompt_tokens: int) -> list[Forward]:
        return [
            Forward(name=name, phase=name.split("_")[0], forward=i, tokens_in=1 if i else prompt_tokens)
            for i, name in enumerate(self.names)
        ]


@contextlib.contextmanager
def phase_of(recorder: Recorder, name: str) -> Iterator[None]:
    """Set the recorder's phase and forward inside the block; outside all blocks there is none."""
    recorder.phase = name.split("_")[0]
    recorder.forward = int(name.split("_")[1]) if "_" in name else 0
    try:
        yield
    finally:
        recorder.phase, recorder.forward = "", -1
