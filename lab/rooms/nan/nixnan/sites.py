"""Instructions of a log, and what each did with a kind: made it, passed it on, or took it in.

Operand 0 is an instruction's result, looked at after it ran; 1 to 3 are its sources, looked at before. A kind
in the result alone was born there; in the result and a source it passed through; in a source alone it ended
there, or came by a way that is not watched. nixnan prints no address: instructions of one text are one here,
and then the class is less sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lab.rooms.nan.nixnan.grammar import KINDS
from lab.rooms.nan.nixnan.log import Log, Site
from lab.rooms.nan.nixnan.opcodes import is_store

CLASSES = ("birth", "transit", "source_only", "unknown")


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
        return any(site.lines > site.masks for site in self.sites.values())

    @property
    def lines(self) -> int:
        return sum(site.lines for site in self.sites.values())

    def type_of_result(self) -> str:
        return (self.sites.get(0) or next(iter(self.sites.values()))).type


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
