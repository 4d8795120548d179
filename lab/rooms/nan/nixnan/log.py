"""The nouns of a nixnan log: a Log, its Sites, its Cells, and the Instructions that its sites belong to.

A site is (function, SASS, operand): what two runs of one program share even where their lines differ. Counts
are of lines: nixnan writes one line per distinct (instruction, mask of kinds, operand), not one per event.
The report's unique events are the same lines, its repeats the events beyond the first.

Operand 0 is an instruction's result, looked at after it ran; 1 to 3 are its sources, looked at before. A kind
in the result alone was born there; in the result and a source it passed through; in a source alone it ended
there, or came by a way that is not watched. nixnan prints no address: instructions of one text are one here,
and then the class is less sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lab.core.words import plural
from lab.rooms.nan.nixnan.grammar import KINDS, Event, category, is_store, opcode_of, type_of

CLASSES = ("birth", "transit", "source_only", "unknown")


_WORST = {"NaN": 0, "infinity": 1, "-infinity": 1, "subnormal": 2}  # kinds of a line stand in this order
_PLACES = 8


@dataclass
class Site:
    """One operand of one instruction of one function, and what came there."""

    function: str  # as nixnan writes it: cut at the first `<` or `(`, `void ` kept
    sass: str
    operand: int | None  # 0: the result; 1-3: the sources; None: an old build that does not say
    file: str = ""
    # (kinds, printed type) -> lines; more lines than masks: several instructions share this text
    masks: dict[tuple[tuple[str, ...], str], int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)  # kind -> lines
    places: dict[str, None] = field(
        default_factory=dict
    )  # `path:line` of the source, where the build knew it
    first_of: dict[str, int] = field(default_factory=dict)  # kind -> number of its first line in `file`
    line: int = 0  # number of the line `raw`
    raw: str = ""  # the worst of its lines: the first with NaN, else with an infinity, else its first
    _rank: int = len(_WORST)

    def see(self, event: Event, number: int, raw: bytes) -> None:
        """Take a new line of this site; the worst one is kept to be shown."""
        for kind in event.kinds:
            self.first_of.setdefault(kind, number)
        if (rank := _WORST.get(event.kinds[0], len(_WORST) - 1)) < self._rank:
            self.line, self.raw, self._rank = number, raw.decode("utf-8", "backslashreplace").strip(), rank
        if event.place and len(self.places) < _PLACES:
            self.places[event.place] = None

    def add(self, kinds: tuple[str, ...], label: str, lines: int) -> None:
        self.masks[kinds, label] = self.masks.get((kinds, label), 0) + lines
        for kind in kinds:
            self.kinds[kind] = self.kinds.get(kind, 0) + lines

    @property
    def key(self) -> tuple[str, str, int | None]:
        return self.function, self.sass, self.operand

    @property
    def opcode(self) -> str:
        return opcode_of(self.sass)

    @property
    def lines(self) -> int:
        return sum(self.masks.values())

    @property
    def type(self) -> str:
        """From the opcode where it tells, else as nixnan printed it most often."""
        labels: Counter[str] = Counter()
        for (_, label), lines in self.masks.items():
            labels[label] += lines
        return type_of(self.opcode, self.operand) or max(labels, key=labels.__getitem__, default="unknown")


# What lines share: opcode, operand, printed type, kinds. Exact even if not all sites are listed.
Cell = tuple[str, int | None, str, tuple[str, ...]]


class Log(msgspec.Struct, kw_only=True):
    """One log."""

    file: str
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
    functions: Mapping[str, int]  # name -> lines
    function_kinds: Counter[tuple[str, str]]  # name, kind -> lines
    unlisted_function_lines: int
    cells: Mapping[Cell, int]  # -> lines
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


@dataclass
class Instruction:
    """All sites of one (function, SASS)."""

    function: str
    sass: str
    opcode: str
    sites: dict[int | None, Site] = field(default_factory=dict)

    def kinds(self, operand: int | None) -> set[str]:
        site = self.sites.get(operand)
        return set(site.kinds) if site else set()

    @property
    def result(self) -> set[str]:
        return self.kinds(0)

    @property
    def sources(self) -> dict[int, set[str]]:
        """Source operand -> kinds seen there."""
        return {operand: set(site.kinds) for operand, site in self.sites.items() if operand}

    def in_sources(self, *kinds: str) -> bool:
        return any(source & set(kinds) for source in self.sources.values())

    def class_of(self, kind: str) -> str | None:
        """birth, transit, source_only or unknown (operands not named); None if the kind was not seen."""
        if not any(kind in site.kinds for site in self.sites.values()):
            return None
        if None in self.sites:
            return "unknown"
        if kind not in self.result:
            return "source_only"
        return "transit" if self.in_sources(kind) else "birth"

    @property
    def merged(self) -> bool:
        """Whether several instructions, or kernels of one cut name, share this text.

        If so, some operand has more lines than masks.
        """
        return any(site.lines > len(site.masks) for site in self.sites.values())

    @property
    def lines(self) -> int:
        return sum(site.lines for site in self.sites.values())


def instructions(log: Log) -> list[Instruction]:
    """The listed sites as instructions, in the log's order, without device functions that repeat a kernel."""
    by_text: dict[tuple[str, str], Instruction] = {}
    for site in own_sites(log):
        instruction = by_text.setdefault(
            (site.function, site.sass), Instruction(site.function, site.sass, site.opcode)
        )
        instruction.sites[site.operand] = site
    return list(by_text.values())


def own_sites(log: Log) -> Iterable[Site]:
    """The listed sites without those of device functions that repeat a kernel's."""
    return (site for site in log.sites if site.function not in log.twins)


def class_table(instruction_list: Iterable[Instruction]) -> dict[str, dict[str, int]]:
    """Kind -> class -> instructions. Stores are left out: what reaches memory is another question."""
    table = {kind: dict.fromkeys(CLASSES, 0) for kind in KINDS if kind != "div0"}
    for instruction in instruction_list:
        if is_store(instruction.opcode):
            continue
        for kind, row in table.items():
            if (name := instruction.class_of(kind)) is not None:
                row[name] += 1
    return table


def nan_sites(log: Log) -> dict[str, int]:
    """Function -> sites where a NaN was seen, among the sites that are listed."""
    return dict(Counter(site.function for site in log.sites if site.kinds.get("NaN")))


# The verdict on one log, and what nixnan cannot see: zero events prove nothing where nothing was looked at.
# The limits are from nixnan's source (its tables of opcodes, the launches it intercepts) and from
# measurements on an H200, where every 16-bit linear layer and prefill attention was launched by a call that
# it does not intercept.

_TENSOR_CORES = ("HMMA", "DMMA", "HGMMA", "IMMA", "QGMMA")


def totals(log: Log) -> dict[str, int]:
    """Kind -> lines of operations of all types, without those of the memory check."""
    rows = [row for name, row in log.counts.items() if name != "memory"]
    return {kind: sum(row.get(kind, 0) for row in rows) for kind in KINDS}


def memory_nan_lines(log: Log) -> int:
    return sum(row.get("NaN", 0) for row in log.counts["memory"].values())


def stored_nan(log: Log) -> bool:
    """Was a NaN written to global memory, by the lines or by the report?"""
    reported = (log.report or {}).get("memory", {})
    return memory_nan_lines(log) > 0 or any(row.get("NaN", {}).get("unique", 0) for row in reported.values())


def verdict_of(log: Log) -> tuple[str, str]:
    """(verdict, why), from the log alone.

    stored: NaN in memory, which holds for a torn log too. inconclusive: the log is not complete.
    masked-intermediate: NaN or infinities in registers, none seen to be stored. subnormal-only. nothing-seen:
    no event in what nixnan looks at, which does not prove health.
    """
    kind_totals = totals(log)
    infinite = kind_totals["infinity"] + kind_totals["-infinity"]
    if stored_nan(log):
        return "stored", "A NaN was written to global memory: other kernels can read it."
    if log.integrity != "complete":
        return f"inconclusive({log.integrity})", log.reasons[0]
    if kind_totals["NaN"] or infinite:
        return (
            "masked-intermediate",
            f"{plural(kind_totals['NaN'], 'line')} of NaN and {infinite:,} of infinities in registers; no "
            "store of a NaN was seen. nixnan does not check whether an infinity was stored.",
        )
    if kind_totals["subnormal"]:
        return "subnormal-only", "Subnormal numbers, but no NaN and no infinity in what nixnan looks at."
    if kind_totals["div0"]:
        return (
            "masked-intermediate",
            "Reciprocals of zero, but no NaN and no infinity in what nixnan looks at.",
        )
    return "nothing-seen", "No event in what nixnan looks at. That does not prove health: see the coverage."


def coverage(log: Log, *, compute_capability: str | None = None) -> list[str]:
    """What this log's counts are based on: a statement, then warnings.

    compute_capability, such as `9.0`: of the GPU, None if it is not known.
    """
    opcodes = sorted({opcode for opcode, *_ in log.cells})
    major = (compute_capability or "").partition(".")[0]
    return [_statement(log, opcodes), *_warnings(log, opcodes, major.isdigit() and int(major) >= 9)]


def _statement(log: Log, opcodes: list[str]) -> str:
    if not log.contexts and not log.kernels:
        return "This log does not say which kernels nixnan looked at: what it counts is a lower bound."
    return (
        f"nixnan looked into {plural(len(log.kernels), 'kernel')} (by their cut names) and wrote about "
        f"{plural(len(opcodes), 'opcode')}. Conversions, loads, selections and integer products are never "
        "looked at, nor are kernels launched by cuLaunchKernelEx or from graphs: counts are lower bounds, "
        "and a zero does not prove health."
    )


def _warnings(log: Log, opcodes: list[str], hopper: bool) -> list[str]:
    warnings = []
    products = [name for name in log.kernels if category(name) in ("gemm", "quantized gemm", "attention")]
    if log.kernels and not products:
        warnings.append(
            "No matrix product and no fused attention is among the kernels it looked at: linear layers were "
            "not seen."
        )
    elif log.error_lines and not any(opcode.startswith(_TENSOR_CORES) for opcode in opcodes):
        warnings.append(
            "No line is of a tensor core instruction: this log does not show the matrix products."
        )
    if hopper:
        warnings.append(
            "On this GPU cuBLAS and cuDNN launch by cuLaunchKernelEx: their kernels are not looked at."
        )
    if log.logged:
        warnings.append(
            f"{plural(len(log.logged), 'kernel')} launched without being looked at, by the log's own lines."
        )
    if log.immediates:
        instructions = plural(len(log.immediates), "instruction")
        warnings.append(
            f"{instructions} with NaN or infinity as a constant: it is in the code and not an event."
        )
    return warnings
