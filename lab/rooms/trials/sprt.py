"""Is it fixed? Wald's sequential test between the old rate of failure and a rate that counts as fixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

Answer = Literal["fixed", "not fixed", "undecided"]
ERROR = 0.05  # about the most that either answer is wrong
BOUND = math.log((1 - ERROR) / ERROR)
SLACK = 1e-9  # what rounding makes of a score that is on its bound


class Until(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sequential test of two rates 0 < fixed < was < 1.

    Source: Wald, Annals of Mathematical Statistics 16 (1945) 117-186.
    """

    was: float
    fixed: float

    def __post_init__(self) -> None:
        if not 0 < self.fixed < self.was < 1:
            raise ValueError(f"need 0 < fixed < was < 1, got {self.fixed} and {self.was}")

    @property
    def per_fail(self) -> float:
        return math.log(self.was / self.fixed)

    @property
    def per_pass(self) -> float:
        return math.log((1 - self.was) / (1 - self.fixed))

    def score(self, fail: int, n: int) -> float:
        return fail * self.per_fail + (n - fail) * self.per_pass

    def answer(self, fails: Sequence[bool]) -> Answer:
        """The first answer in the order of the trials: later ones cannot take it back."""
        score = 0.0
        for failed in fails:
            score += self.per_fail if failed else self.per_pass
            if abs(score) >= BOUND - SLACK:
                return "not fixed" if score > 0 else "fixed"
        return "undecided"

    def passes_left(self, fail: int, n: int) -> int:
        """Trials left if none of them fails."""
        return max(0, math.ceil((BOUND + self.score(fail, n)) / -self.per_pass - SLACK))

    def fails_left(self, fail: int, n: int) -> int:
        """Trials left if each of them fails."""
        return max(0, math.ceil((BOUND - self.score(fail, n)) / self.per_fail - SLACK))
