"""How far a check has come, on disk: what it compares, the processes that ended, the looks that were made.

Written whole after every process and look, so that a check that was killed goes on with the same command. A
process that was running when it was killed has no entry, and runs again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from lab.core.files import sha256_of, write_atomic
from lab.core.words import plural
from lab.errors import BadDataError, UsageError

FILE = "check.json"
MOST_CUT = 1 / 3  # of the rounds that a break may part; of equal sides more then look different than may
_VERSION = 2
_MOST_BYTES = 16 << 20
_WORDS = {"max_slowdown": "--max-slowdown", "floors": "A/A floors", "looks": "planned looks"}


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is compared, and how. environment: the variables that shape a GPU run, or choose the programs and
    libraries; and the program that PATH leads to."""

    command: list[str]
    base: dict[str, str]
    head: dict[str, str]
    machine: dict[str, str]
    environment: dict[str, str]
    looks: list[int]
    max_slowdown: float
    floors: bool


class Ended(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A process that ended well; recording: below the check's folder."""

    recording: str
    sha256: str
    ended_s: Annotated[float, msgspec.Meta(ge=0, le=1e11)]  # since 1970


class Look(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """processes: a side; share: of the allowed false alarms, that this look has."""

    processes: int
    outcome: str
    share: float


class Break(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The check had ended for `seconds` before process `at`; cut: the other one of its round had run."""

    at: str
    seconds: float
    cut: bool


class State(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    asked: Asked
    ended: list[Ended] = []
    looks: list[Look] = []
    breaks: list[Break] = []
    failed: list[str] = []  # processes that ended ill, in words; each has run again since, or is to
    floors_sha256: str = ""
    schema_version: int = _VERSION


class _Versioned(msgspec.Struct):
    schema_version: int


class Progress:
    """The file of one check, which is held by one lab at a time (`lab.core.files.exclusive`)."""

    def __init__(self, out: Path, state: State) -> None:
        self.out, self.state = out, state
        self.resumed = bool(state.ended)
        self._known = {one.recording: one for one in state.ended}

    @classmethod
    def begin(cls, out: Path, asked: Asked) -> Progress:
        """That of an earlier start with the same folder, or a new one.

        Raises UsageError where something else was compared then, BadDataError for a file that is none.
        """
        path = out / FILE
        if not path.is_file():
            found = cls(out, State(asked=asked))
            found._write()
            return found
        state = _read(path)
        if changed := differing(state.asked, asked):
            raise UsageError(
                "an earlier check in this folder compared something else: " + "; ".join(changed),
                location=path,
                fix="name another -o; what is here is judged by: "
                f"lab check {out / 'base'} {out / 'head'}, and resumed by the command that began it",
            )
        return cls(out, state)

    @classmethod
    def made(cls, out: Path) -> Progress | None:
        """That of the check which recorded into this folder; None if there was none. Raises BadDataError."""
        path = out / FILE
        return cls(out, _read(path)) if path.is_file() else None

    def is_as_recorded(self, files: Sequence[Path]) -> bool:
        """Whether these are the processes of the last look, and as they ended."""
        if not self.state.looks or len(files) != 2 * self.state.looks[-1].processes:
            return False
        known = [self._known.get(self._name(file)) for file in files]
        return all(
            one is not None and one.sha256 == sha256_of(file) for one, file in zip(known, files, strict=True)
        )

    def has(self, recording: Path) -> bool:
        """Whether this process has ended. Raises BadDataError where its recording is not what it wrote."""
        known = self._known.get(self._name(recording))
        if known is None:
            return False
        if not recording.is_file() or sha256_of(recording) != known.sha256:
            raise BadDataError(
                "this recording was changed or removed after its process ended",
                location=recording,
                fix="looks may rest on it: begin again with another -o",
            )
        return True

    def has_any(self, folder: str) -> bool:
        return any(name.startswith(f"{folder}/") for name in self._known)

    def add(self, recording: Path) -> None:
        name = self._name(recording)
        one = Ended(recording=name, sha256=sha256_of(recording), ended_s=time.time())
        self.state.ended.append(one)
        self._known[name] = one
        self._write()

    def add_failure(self, recording: Path, words: str) -> None:
        """A process that is no sample: it runs again at the next start, and the verdict tells of it."""
        name = self._name(recording)
        self.state.ended = [one for one in self.state.ended if one.recording != name]
        self._known.pop(name, None)
        self.state.failed.append(words)
        self._write()

    def add_break(self, recording: Path, cut: bool) -> None:
        """Before this process runs, where the check goes on after processes of both sides.

        Raises UsageError where breaks part too many rounds.
        """
        seconds = max(0.0, time.time() - max(one.ended_s for one in self.state.ended))
        new = Break(at=self._name(recording), seconds=seconds, cut=cut)
        breaks = [one for one in self.state.breaks if one.at != new.at]  # killed before it had ended
        n_cut = sum(one.cut for one in (*breaks, new))
        rounds = len([one for one in self._known if one.startswith(("base/", "head/"))]) / 2
        if n_cut > 1 and n_cut > MOST_CUT * rounds:
            raise UsageError(
                f"breaks part {n_cut} of {rounds:g} rounds of BASE and HEAD: these are no longer interleaved",
                location=self.out,
                fix=f"begin again with another -o; what is here is judged by: lab check {self.out / 'base'} "
                f"{self.out / 'head'}",
            )
        self.state.breaks = [*breaks, new]
        self._write()

    def look(self, processes: int) -> str | None:
        """The outcome of a look that was made; None if it was not."""
        return next((one.outcome for one in self.state.looks if one.processes == processes), None)

    def add_look(self, processes: int, outcome: str, share: float) -> None:
        self.state.looks.append(Look(processes=processes, outcome=outcome, share=share))
        self._write()

    def keep_floors(self, path: Path) -> None:
        self.state.floors_sha256 = sha256_of(path)
        self._write()

    def has_floors(self, path: Path) -> bool:
        """Raises BadDataError where they are not those that the check began with."""
        if not self.state.floors_sha256:
            return False
        if not path.is_file() or sha256_of(path) != self.state.floors_sha256:
            raise BadDataError(
                "the A/A floors were changed or removed after the check began",
                location=path,
                fix="begin again with another -o",
            )
        return True

    def notes(self) -> list[str]:
        """What a reader of the verdict should know of how its processes ran."""
        found = [f"{words}; it was run again, and its first end is no sample" for words in self.state.failed]
        for one in self.state.breaks:
            where = ", between the two processes of a round" if one.cut else ""
            found.append(f"resumed before {one.at} after {_long(one.seconds)}{where}")
        folders = [
            name.upper()
            for name, side in (("base", self.state.asked.base), ("head", self.state.asked.head))
            if "commit" not in side
        ]
        if self.state.breaks and folders:
            found.append(
                f"{' and '.join(folders)}: no git commit, so whether files changed in a break is not known"
            )
        if self.state.breaks and any(
            "changes" in one for one in (self.state.asked.base, self.state.asked.head)
        ):
            found.append("whether files that git does not track changed in a break is not known")
        return found

    def _name(self, recording: Path) -> str:
        return recording.relative_to(self.out).as_posix()

    def _write(self) -> None:
        write_atomic(self.out / FILE, msgspec.json.format(msgspec.json.encode(self.state), indent=1) + b"\n")


def differing(then: Asked, now: Asked) -> list[str]:
    """What differs between two starts, in words."""
    found = []
    for name in then.__struct_fields__:
        one, other = getattr(then, name), getattr(now, name)
        if isinstance(one, dict):
            found += [
                f"{name.upper() if name in ('base', 'head') else name} {key} was {one.get(key, 'not set')}, "
                f"is {other.get(key, 'not set')}"
                for key in sorted({*one, *other})
                if one.get(key) != other.get(key)
            ]
        elif one != other:
            found.append(f"{_WORDS.get(name, name)} was {_words(one)}, is {_words(other)}")
    return found


def _long(seconds: float) -> str:
    """`40 s`, `12 min` or `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, Sequence) else f"{value:g}"


def _read(path: Path) -> State:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadDataError(f"a check of more than {_MOST_BYTES >> 20} MiB", location=path)
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version != _VERSION:  # its fields may be others, too
            raise BadDataError(
                "the progress of a check by another version of lab", location=path, fix="name another -o"
            )
        found = msgspec.json.decode(data, type=State)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDataError(
            f"not the progress of a check: {error}", location=path, fix="name another -o"
        ) from error
    names = [one.recording for one in found.ended]
    if len(set(names)) < len(names):
        raise BadDataError(f"{plural(len(names) - len(set(names)), 'process')} twice", location=path)
    return found
