"""Requested is not effective: what the kernels' grid and block, and NCCL's own log, say happened."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from lab.rooms.sweep.knobs import ALGORITHMS, PROTOCOLS
from lab.rooms.sweep.tables import size_text

# NCCL adds a warp of its own to the requested block.
NCCL_EXTRA_THREADS = 32
# Names of kinds in NCCL's log and in a tuner's file; others have none.
NAMES = {
    kind: kind.replace("_", "")
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
}
WORDS = ("algorithm", "protocol")
MOST_THREADS = 640  # NCCL's largest block: LL128's
LOG, BLOCK = "log", "block"
SEVERAL = "/"  # between the words of calls that ran differently
_IN_PARTS = ("allgather", "reducescatter")
_CALL = re.compile(
    rb"(?P<kind>\w{4,20}): (?P<bytes>\d{1,19}) Bytes -> Algo (?P<algo>\w{1,20}) proto (?P<proto>\w{1,10})"
)
_APPLIED = re.compile(
    rb"Applied config for collType=(?P<kind>\w{4,20}), bytes=(?P<bytes>\d{1,19}).{0,80}?"
    rb"algo=(?P<algo>\w{1,20}), proto=(?P<proto>\w{1,10})"
)
_PLUGIN = re.compile(rb"TUNER/Plugin: (?P<what>[ -~]{1,160})")
_NVLS = re.compile(rb"(\d{1,5}) nvls channels")
_CHANNELS = re.compile(rb"(\d{1,6}) coll channels")
_LONGEST_LINE, _MOST_LINES = 1 << 16, 5_000_000


def channels_verdict(requested: int, effective: int, log_channels: int) -> str:
    """Was the channel count honoured? Channels are the blocks of a collective kernel's grid.

    The grid is what ran; the log counts a communicator's channels, and stands in for a missing grid.
    clamped: fewer than requested (small messages use fewer); ignored: more; unknown: nothing was requested,
    or nothing tells. log_channels is -1 without a log.
    """
    if requested <= 0:
        return "unknown"
    if effective <= 0:
        return "clamped" if 0 < log_channels < requested else "unknown"
    if effective == requested:
        return "honoured"
    return "clamped" if effective < requested else "ignored"


def threads_verdict(requested: int, effective: int) -> str:
    """Was the block size honoured? NCCL adds a warp; 640 is the LL128 protocol's fixed size, so ignored."""
    if requested <= 0 or effective <= 0:
        return "unknown"
    return "honoured" if effective in (requested, requested + NCCL_EXTRA_THREADS) else "ignored"


def verdict_over_sizes(verdicts: Iterable[tuple[int, str]]) -> str:
    """One text from (msg_bytes, verdict) pairs, such as `honoured for >= 96 MiB, ignored below`.

    Sizes whose verdict is unknown, also because nothing was requested of their collective, are left out.
    """
    by_size: dict[int, set[str]] = {}
    for msg_bytes, verdict in verdicts:
        if verdict != "unknown":
            by_size.setdefault(msg_bytes, set()).add(verdict)
    words = sorted(set().union(*by_size.values())) or ["unknown"]
    if len(words) == 1:
        return words[0]
    sizes = sorted(by_size)
    good = [by_size[size] == {"honoured"} for size in sizes]
    first_good = good.index(True) if True in good else len(sizes)
    if first_good < len(sizes) and all(good[first_good:]):
        below = sorted(set().union(*(by_size[size] for size in sizes[:first_good])) - {"honoured"})
        return f"honoured for >= {size_text(sizes[first_good])}, {' or '.join(below)} below"
    return f"mixed: {', '.join(words)}; honoured for {sum(good)} of {len(sizes)} sizes"


class How(NamedTuple):
    """Algorithm and protocol, "" where nothing tells them, several joined by `/`; evidence: what told."""

    algorithm: str = ""
    protocol: str = ""
    evidence: str = ""


def how_of(
    log_choices: LogChoices, kind: str, num_bytes: int, *, kernel: str, block: int, threads: int
) -> How:
    """How the calls of a kind and size ran, by the log of NCCL or RCCL, otherwise by their kernel's block.

    log_choices: those of whole calls; threads: those requested.
    """
    from_log = log_choices.choices.get((NAMES.get(kind, kind), num_bytes))
    if from_log:
        algorithms, protocols = {c.algorithm for c in from_log}, {c.protocol for c in from_log}
        return How(SEVERAL.join(sorted(algorithms)), SEVERAL.join(sorted(protocols)), LOG)
    return _by_block(kernel, block, threads, log_choices)


def _by_block(kernel: str, block: int, threads: int, log_choices: LogChoices) -> How:
    """How calls ran by their kernel's block, where the log has no tuning lines; nothing without proof.

    A kernel's name does not tell: AllGather_RING_LL stands for every algorithm and protocol. A block of 640
    is LL128's, if nothing can use NVLink SHARP (whose blocks are as large); the requested threads and one
    warp more are the ring's with the simple protocol.
    """
    algorithm = "tree" if "_TREE_" in kernel else "ring"
    if block == MOST_THREADS and log_choices.nvls == 0:
        return How(algorithm, "ll128", BLOCK)
    if threads > 0 and block == threads + NCCL_EXTRA_THREADS and algorithm == "ring":
        return How(algorithm, "simple", BLOCK)
    return How()


def word_verdict(requested: str, effective: str) -> str:
    """honoured, ignored (another was used, at least once), or unknown: not requested, or nothing tells."""
    if not requested or not effective:
        return "unknown"
    return "honoured" if requested == effective else "ignored"


class Choice(NamedTuple):
    """How a call ran, in the lower-case words of the tuner's file."""

    algorithm: str
    protocol: str


@dataclass
class LogChoices:
    """What the logs of one run say, by (kind, bytes): NCCL's choices, and what a tuner applied.

    kind is as in the tuner's file (allreduce). plugin: lines on the plugin. nvls: channels for NVLink SHARP,
    -1 without such a line. channel_lines: how many lines give each number of channels.
    """

    choices: dict[tuple[str, int], Counter[Choice]] = field(default_factory=dict)
    applied: dict[tuple[str, int], Counter[Choice]] = field(default_factory=dict)
    plugin: Counter[str] = field(default_factory=Counter)
    nvls: int = -1
    channel_lines: Counter[int] = field(default_factory=Counter)

    @property
    def channels(self) -> int:
        """The channel count in most lines (INFO, INIT), -1 without such a line.

        NVIDIA/nccl `src/init.cc` logs `N coll channels` once per rank and communicator.
        """
        return self.channel_lines.most_common(1)[0][0] if self.channel_lines else -1

    def of_calls(self, calls: Iterable[tuple[str, int, int]]) -> LogChoices:
        """Replace NCCL's choices by those of whole calls, given as (kind, bytes, ranks).

        A tuner is asked with all bytes of an all-gather or a reduce-scatter; NCCL 2.28's own lines give one
        rank's part. A log gives one or the other: the part, unless every such call is found as a whole.
        """
        split = [(kind, size, ranks) for kind, size, ranks in calls if kind in _IN_PARTS and ranks > 1]
        if all((kind, size) in self.choices for kind, size, _ in split):
            return self
        choices = {key: choice for key, choice in self.choices.items() if key[0] not in _IN_PARTS}
        for kind, size, ranks in split:
            if choice := self.choices.get((kind, size // ranks)):
                choices[kind, size] = choice
        return replace(self, choices=choices)


def read_logs(paths: Iterable[Path]) -> LogChoices:
    """What the logs say; lines that say nothing here are passed over."""
    log_choices = LogChoices()
    for path in paths:
        for line in _lines(path):
            if b" -> Algo " in line and (match := _CALL.search(line)):
                _count(log_choices.choices, match)
            elif b"Applied config" in line and (match := _APPLIED.search(line)):
                _count(log_choices.applied, match)
            elif b"TUNER/Plugin" in line and (match := _PLUGIN.search(line)):
                log_choices.plugin[match["what"].decode("ascii").strip()] += 1
            elif b" channels" in line:
                log_choices.channel_lines.update(int(count) for count in _CHANNELS.findall(line))
                if match := _NVLS.search(line):
                    log_choices.nvls = max(log_choices.nvls, int(match[1]))
    return log_choices


def _lines(path: Path) -> Iterator[bytes]:
    """Bounded reads: a log is outside input and may have no line ends."""
    with path.open("rb") as file:
        for _ in range(_MOST_LINES):
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            yield line


def _count(into: dict[tuple[str, int], Counter[Choice]], match: re.Match[bytes]) -> None:
    algorithm = _word(match["algo"], ALGORITHMS)
    protocol = _word(match["proto"], PROTOCOLS)
    if algorithm and protocol:
        key = match["kind"].decode("ascii", "replace").lower(), int(match["bytes"])
        into.setdefault(key, Counter())[Choice(algorithm, protocol)] += 1


def _word(text: bytes, words: tuple[str, ...]) -> str:
    """The word of an enumeration by its name or number, "" for neither."""
    plain = text.decode("ascii", "replace").lower()
    if plain.isdigit():
        return words[int(plain)] if int(plain) < len(words) else ""
    return next((word for word in words if word.replace("_", "") == plain.replace("_", "")), "")
