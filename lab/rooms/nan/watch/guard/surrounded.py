"""Around `optimizer.step` where torch has no hooks there: before 2.0."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lab.rooms.nan.watch.unseen_by_compile import passes_on


class Surrounded:
    """The `step` of an optimizer class with calls before and after it.

    The class is patched, not the optimizer, so that copies and pickles carry nothing along.
    """

    def __init__(self, kind: type[Any], before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
        self._kind, self._plain = kind, kind.step
        self.running = 0  # steps that have begun and not ended, with an exception either
        plain = self._plain

        @functools.wraps(plain)
        @passes_on
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before(optimizer)
            self.running += 1
            try:
                found = plain(optimizer, *args, **kwargs)
            finally:
                self.running -= 1
            after(optimizer)
            return found

        self._ours = kind.step = step

    def remove(self) -> None:
        """Put the class's own step back, unless another patch lies over this one."""
        if self._kind.step is self._ours:
            self._kind.step = self._plain
