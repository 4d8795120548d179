"""The nouns of a nixnan log: a Log, its Sites and its Cells.

A site is (function, SASS, operand): what two runs of one program share even where their lines differ. Counts
are of lines: nixnan writes one line per distinct (instruction, mask of kinds, operand), not one per event.
The report's unique events are the same lines, its repeats the events beyond the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One operand of one instruction of one function, and what came there."""

    function: str  # as nixnan writes it: cut at the first `<` or `(`, `void ` kept
    sass: str
    operand: int | None  # 0: the result; 1-3: the sources; None: an old build that does not say
    opcode: str
    type: str  # from the opcode where it tells, else as nixnan printed it
    lines: int
    masks: int  # distinct (kinds, printed type); fewer than lines: several instructions share this text
    kinds: dict[str, int]  # kind -> lines
    labels: dict[str, int]  # type as printed -> lines
    places: tuple[str, ...] = ()  # `path:line` of the source, where the build knew it
    file: str = ""
    first_of: dict[str, int]  # kind -> number of its first line in `file`
    line: int  # number of the line `raw`
    raw: str  # the worst of its lines: the first with NaN, else with an infinity, else its first

    @property
    def key(self) -> tuple[str, str, int | None]:
        return self.function, self.sass, self.operand


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that share opcode, operand, printed type and kinds: exact even if not all sites are listed."""

    opcode: str
    operand: int | None
    label: str
    kinds: tuple[str, ...]
    lines: int


class Log(msgspec.Struct, kw_only=True):
    """One log, or the logs of one run's processes taken together."""

    file: str
    files: list[str]
    size_bytes: int
    lines: int
    error_lines: int
    torn_lines: int
    foreign_lines: int  # the program's own output, comments, blanks
    site_count: int  # exact, also where `sites` lists only the first
    sites: Sequence[Site]
    integrity: str  # complete | truncated | torn | inconsistent | empty
    reasons: list[str]  # sentences: why, and what else is to be known
    counts: dict[str, Any]  # type -> kind -> lines; under `memory` the same of the memory check
    report: dict[str, Any] | None  # the same shape with {"unique", "repeats"} in place of lines
    report_blocks: int
    differences: list[dict[str, Any]]  # cells where lines and report disagree
    functions: dict[str, int]  # name -> lines
    function_kinds: Mapping[str, Mapping[str, int]]  # name -> kind -> lines
    unlisted_function_lines: int
    cells: list[Cell]
    categories: dict[str, int]  # category -> lines; they add up to error_lines but for unlisted functions
    twins: dict[str, str]  # device function -> the kernel whose entries it repeats
    contexts: int  # how often nixnan began on a GPU
    kernels: list[str]  # instrumented, in order
    logged: list[str]  # launched but not instrumented (LOG_KERNELS)
    times_us: dict[str, int]  # kernel -> longest execution time printed
    immediates: list[dict[str, Any]]  # NaN or infinity written in the code, not an event
    bins: list[dict[str, Any]]
    exponents: dict[str, list[str]]
    stops: list[str]
    torn: list[dict[str, Any]]  # the first of them: file, line, raw
    type_mismatch_lines: int  # lines whose printed type is not the opcode's

    @property
    def context_seen(self) -> bool:
        """False: the tool was loaded but never attached, or this is a part of a log."""
        return self.contexts > 0
