"""What NCCL's and RCCL's own logs say: algorithm and protocol of each call, and what a tuner applied."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.rooms.sweep.knobs import ALGORITHMS, PROTOCOLS

_IN_PARTS = ("allgather", "reducescatter")
_CALL = re.compile(
    rb"(?P<kind>\w{4,20}): (?P<bytes>\d{1,19}) Bytes -> Algo (?P<algo>\w{1,20}) proto (?P<proto>\w{1,10})"
    rb"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,5})\.\.(?P<high>\d{1,5})\})?"
)
_APPLIED = re.compile(
    rb"Applied config for collType=(?P<kind>\w{4,20}), bytes=(?P<bytes>\d{1,19}).{0,80}?"
    rb"algo=(?P<algo>\w{1,20}), proto=(?P<proto>\w{1,10}), channels=(?P<channels>\w{1,10})"
)
_PLUGIN = re.compile(rb"TUNER/Plugin: (?P<what>[ -~]{1,160})")
_NVLS = re.compile(rb"(\d{1,5}) nvls channels")
_LONGEST_LINE, _MOST_LINES = 1 << 16, 5_000_000


@dataclass(frozen=True)
class Choice:
    """How a call ran: lower-case words of the tuner's file; channels -1 where the log does not say."""

    algorithm: str
    protocol: str
    channels: int = -1


@dataclass
class Said:
    """What the logs of one run say, by (kind, bytes): NCCL's choices, and what a tuner applied.

    kind is as in the tuner's file (allreduce). plugin: lines on the plugin. nvls: channels for NVLink SHARP,
    -1 without such a line.
    """

    choices: dict[tuple[str, int], Counter[Choice]] = field(default_factory=dict)
    applied: dict[tuple[str, int], Counter[Choice]] = field(default_factory=dict)
    plugin: Counter[str] = field(default_factory=Counter)
    nvls: int = -1

    def of_calls(self, calls: Iterable[tuple[str, int, int]]) -> Said:
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

    def choice(self, kind: str, num_bytes: int) -> Choice | None:
        """What most calls of this size used, None where the log has none."""
        from_log = self.choices.get((kind, num_bytes))
        return from_log.most_common(1)[0][0] if from_log else None


def read_logs(paths: Iterable[Path]) -> Said:
    """What the logs say; lines that say nothing here are passed over."""
    log_choices = Said()
    for path in paths:
        for line in _lines(path):
            if b" -> Algo " in line and (match := _CALL.search(line)):
                high = match["high"]
                channels = int(high) - int(match["low"]) + 1 if high else -1
                _count(log_choices.choices, match, channels)
            elif b"Applied config" in line and (match := _APPLIED.search(line)):
                channels = int(match["channels"]) if match["channels"].isdigit() else -1
                _count(log_choices.applied, match, channels)
            elif b"TUNER/Plugin" in line and (match := _PLUGIN.search(line)):
                log_choices.plugin[match["what"].decode("ascii").strip()] += 1
            elif b"nvls channels" in line and (match := _NVLS.search(line)):
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


def _count(into: dict[tuple[str, int], Counter[Choice]], match: re.Match[bytes], channels: int) -> None:
    algorithm = _word(match["algo"], ALGORITHMS)
    protocol = _word(match["proto"], PROTOCOLS)
    if algorithm and protocol:
        key = match["kind"].decode("ascii", "replace").lower(), int(match["bytes"])
        into.setdefault(key, Counter())[Choice(algorithm, protocol, channels)] += 1


def _word(text: bytes, words: tuple[str, ...]) -> str:
    """The word of an enumeration by its name or number, "" for neither."""
    plain = text.decode("ascii", "replace").lower()
    if plain.isdigit():
        return words[int(plain)] if int(plain) < len(words) else ""
    return next((word for word in words if word.replace("_", "") == plain.replace("_", "")), "")
