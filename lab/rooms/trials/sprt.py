"""Is it fixed? Wald's sequential test between the old rate of failure and a rate that counts as fixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Answer = Literal["fixed", "not fixed", "undecided"]


@dataclass(frozen=True)
class Sprt:
    """Sequential test of two rates 0 < fixed < was < 1; each error has about probability `error` at most.

    Source: Wald, Annals of Mathematical Statistics 16 (1945) 117-186.
    """

    fixed: float
    was: float
    error: float = 0.05

    def __post_init__(self) -> None:
        if not (0 < self.fixed < self.was < 1 and 0 < self.error < 0.5):
            raise ValueError(f"need 0 < fixed < was < 1, got {self.fixed} and {self.was}")

    @property
    def bound(self) -> float:
        return math.log((1 - self.error) / self.error)

    @property
    def per_fail(self) -> float:
        return math.log(self.was / self.fixed)

    @property
    def per_pass(self) -> float:
        return math.log((1 - self.was) / (1 - self.fixed))

    def score(self, fail: int, n: int) -> float:
        return fail * self.per_fail + (n - fail) * self.per_pass

    def answer(self, fail: int, n: int) -> Answer:
        """What this many trials say; ask after every trial and stay with the first answer."""
        score = self.score(fail, n)
        if score >= self.bound - 1e-12:
            return "not fixed"
        return "fixed" if score <= -self.bound + 1e-12 else "undecided"

    def passes_left(self, fail: int, n: int) -> int:
        """Trials left if none of them fails."""
        return max(0, math.ceil((self.bound + self.score(fail, n)) / -self.per_pass - 1e-9))

    def fails_left(self, fail: int, n: int) -> int:
        """Trials left if each of them fails."""
        return max(0, math.ceil((self.bound - self.score(fail, n)) / self.per_fail - 1e-9))


def first_answer(test: Sprt, fails: Sequence[bool]) -> Answer:
    """The first answer in the order of the trials: later ones cannot take it back."""
    fail = 0
    for n, failed in enumerate(fails, start=1):
        fail += failed
        if (answer := test.answer(fail, n)) != "undecided":
            return answer
    return "undecided"
