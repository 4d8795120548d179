"""A race lint for compiled kernels: which accesses of one buffer no barrier keeps apart.

Within a kernel only a barrier orders a store before a later load of the same address by another warp. The
lint reads PTX (made without a GPU), traces each global access back to the kernel argument it points into, and
walks every path from a store until a barrier: a load of the same argument met on the way is an unordered
pair. It knows arguments, not addresses, so a pair is a suspicion to be removed by a barrier or by taking
apart the buffers; a clean kernel has no such race at all. Kinds: RAW, WAR, WAW around a loop, atomics, whose
order changes sums, and accesses that cannot be traced back to an argument. A barrier among the lanes of a
warp counts where the kernel is one warp. Shared memory is not looked at.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.errors import BadDataError

BARRIER = re.compile(r"\b(bar\.sync|barrier(\.cta)?\.sync)\b")
WARP_BARRIER = re.compile(r"\bbar\.warp\.sync\b")
THREADS = re.compile(r"\.(?:req|max)ntid\s+(\d+)")
ACCESS = re.compile(r"\b(ld|st|atom|red)\.(?:[a-z_:0-9]+\.)*?global\b.*?\[\s*(%\w+)")
PARAMETER = re.compile(r"ld\.param\.\w+\s+(%\w+),\s*\[(\w+?)_param_(\d+)[\]+]")
LABEL = re.compile(r"^([$\w]+):")
BRANCH = re.compile(r"\bbra(?:\.uni)?\s+([$\w]+)")
DEFINES = re.compile(r"^(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(%\w+)\s*,\s*(.*);")
REGISTER = re.compile(r"%rd?\d+|%rs\d+")
KINDS = {"ld": "load", "st": "store", "atom": "atomic", "red": "atomic"}
PASSES_ADDRESSES = ("add", "sub", "mad", "mov", "cvta", "selp", "or", "cvt")


@dataclass(frozen=True)
class Access:
    """One global access: its line in the PTX, the block it is in and the arguments it may point into."""

    line: int
    block: str
    kind: str
    arguments: frozenset[int]


@dataclass(frozen=True)
class Hazard:
    """Two accesses of `argument` that no barrier keeps apart; `second` is `first` itself where one says it
    all.
    """

    kind: str
    argument: str
    first: Access
    second: Access

    def __str__(self) -> str:
        if self.kind == "untraced":
            return f"{self.first.kind} at line {self.first.line}: no argument is known that it points into"
        if self.kind == "atomic":
            return f"atomic on {self.argument} at line {self.first.line}: the order of a sum is not fixed"
        return (
            f"{self.kind} on {self.argument}: "
            f"{self.first.kind} at line {self.first.line} ({self.first.block}) "
            f"reaches {self.second.kind} at line {self.second.line} ({self.second.block}) without a barrier"
        )


@dataclass
class Block:
    """A straight piece of code: its accesses and barriers (None) in order, and what may follow."""

    label: str
    events: list[Access | None] = field(default_factory=list)
    follows: list[str] = field(default_factory=list)


def lint(ptx: str, names: list[str] | None = None) -> list[Hazard]:
    """All unordered pairs of one kernel's PTX, by argument; `names` are the arguments' names in order."""
    blocks = _blocks(ptx)
    found: dict[tuple[str, int, int], Hazard] = {}
    for block in blocks.values():
        for at, access in enumerate(block.events):
            if access is None:
                continue
            if access.kind == "atomic":
                _note(found, "atomic", access, access, names)
            if not access.arguments:
                found["untraced", -1, access.line] = Hazard("untraced", "?", access, access)
            for second, around in _reached(blocks, block, at):
                kind = _pair_kind(access, second, around)
                if kind:
                    _note(found, kind, access, second, names)
    return sorted(found.values(), key=lambda h: (h.kind, h.argument, h.first.line, h.second.line))


def _pair_kind(first: Access, second: Access, around: bool) -> str | None:
    """The hazard two accesses make. Two stores count around a loop only: a tile is stored by several."""
    writes = ("store", "atomic")
    if first.kind in writes and second.kind == "load":
        return "RAW"
    if first.kind == "load" and second.kind in writes:
        return "WAR"
    if first.kind == second.kind == "store" and around:
        return "WAW"
    return None


def _note(
    found: dict[tuple[str, int, int], Hazard],
    kind: str,
    first: Access,
    second: Access,
    names: list[str] | None,
) -> None:
    for argument in first.arguments & second.arguments:
        name = names[argument] if names and argument < len(names) else f"argument {argument}"
        found.setdefault((kind, argument, first.line), Hazard(kind, name, first, second))


def _reached(blocks: dict[str, Block], block: Block, at: int) -> Iterator[tuple[Access, bool]]:
    """Accesses met after event `at` before any barrier, and whether the way there came back to its block."""
    stack, seen = [(block.label, at + 1, False)], set()
    while stack:
        label, start, around = stack.pop()
        stopped = False
        for event in blocks[label].events[start:]:
            if event is None:
                stopped = True
                break
            yield event, around
        if not stopped:
            for follower in blocks[label].follows:
                back = around or follower == block.label
                if (follower, back) not in seen:
                    seen.add((follower, back))
                    stack.append((follower, 0, back))


def _blocks(ptx: str) -> dict[str, Block]:
    """Basic blocks with their accesses. Raises BadDataError on text without a kernel."""
    lines = ptx.splitlines()
    start = next((i for i, line in enumerate(lines) if ".entry" in line), None)
    if start is None:
        raise BadDataError(
            "no kernel in this PTX", fix="give the PTX that NVRTC makes for a compute_* target"
        )
    body = [(i + 1, line.split("//")[0].strip()) for i, line in enumerate(lines) if i > start]
    roots = _roots([line for _, line in body])
    barriers = [BARRIER, WARP_BARRIER] if _one_warp(ptx) else [BARRIER]
    current = Block("entry")
    blocks, fresh = {"entry": current}, 0
    for number, line in body:
        label = LABEL.match(line)
        if label:
            following = blocks.setdefault(label[1], Block(label[1]))
            current.follows.append(label[1])
            current = following
            continue
        if any(barrier.search(line) for barrier in barriers):
            current.events.append(None)
        access = ACCESS.search(line)
        if access:
            current.events.append(Access(number, current.label, KINDS[access[1]], roots[access[2]]))
        branch = BRANCH.search(line)
        if branch or line.startswith("ret"):
            if branch:
                current.follows.append(branch[1])
            fresh += 1
            following = blocks.setdefault(f"after {fresh}", Block(f"after {fresh}"))
            if line.startswith("@"):
                current.follows.append(following.label)
            current = following
    for block in blocks.values():
        block.follows = [label for label in block.follows if label in blocks]
    return blocks


def _one_warp(ptx: str) -> bool:
    threads = THREADS.search(ptx)
    return threads is not None and int(threads[1]) <= 32


def _roots(lines: list[str]) -> defaultdict[str, frozenset[int]]:
    """Register -> the kernel arguments it may point into, through arithmetic, selects and loops."""
    roots: defaultdict[str, frozenset[int]] = defaultdict(frozenset)
    uses: list[tuple[str, list[str]]] = []
    for line in lines:
        parameter = PARAMETER.search(line)
        if parameter:
            roots[parameter[1]] = frozenset([int(parameter[3])])
            continue
        made = DEFINES.match(line)
        if made and made[1].split(".")[0] in PASSES_ADDRESSES and made[2].startswith("%rd"):
            uses.append((made[2], [r for r in REGISTER.findall(made[3]) if r.startswith("%rd")]))
    changed = True
    while changed:
        changed = False
        for register, sources in uses:
            merged = roots[register].union(*(roots[source] for source in sources))
            if merged != roots[register]:
                roots[register], changed = merged, True
    return roots


def kernels(ptx: str, source: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each kernel's name, its piece of the PTX, and its arguments' names in the CUDA C it was made from."""
    heads = re.finditer(r"(?:__launch_bounds__|KERNEL)\([\w, ]+\) (\w+)\(([^)]*)\)", source)
    names = {head[1]: [re.split(r"[ *]", one.strip())[-1] for one in head[2].split(",")] for head in heads}
    for piece in re.split(r"(?=\.visible \.entry)", ptx)[1:]:
        found = re.search(r"\.entry (\w+)\(", piece)
        assert found
        yield found[1], piece, names[found[1]]
