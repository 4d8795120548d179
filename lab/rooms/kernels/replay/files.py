"""The files of a replay run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.rooms.kernels.replay.args import Arg, Launch

PLAN_FILE = "replay_plan.json"
RAW_FILE = "replay/replay_raw.json"
RESULT, TABLE = "replay.json", "tables/replay.csv"


def is_replay(folder: Path) -> bool:
    """Whether `folder` is a run of `lab run kernels replay`."""
    return (folder / PLAN_FILE).is_file()


class SignatureRun(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A signature called by itself. status: ran, shapes (on the meta device only), failed or unresolved.

    launches: of its first measured call. dur_us: per repetition, of each launch (on a CPU: of the op).
    """

    sig_id: str
    status: str
    reason: str = ""
    overload: str = ""
    args: tuple[Arg, ...] = ()
    numbers_as_tensors: bool = False
    shapes_equal: bool | None = None  # results against the recorded ones; None: not recorded
    launches: tuple[Launch, ...] = ()
    dur_us: tuple[tuple[float, ...], ...] = ()


class CallRun(msgspec.Struct, frozen=True, array_like=True):
    """A call made in order: place is its index in the plan. Durations are per pass and launch."""

    place: int
    launch_set: int  # index in RawReplay.launch_sets; -1: the passes differed
    dur_us: tuple[tuple[float, ...], ...]


class RawReplay(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything one replay saw."""

    mode: str
    device: str  # "cuda" or "cpu"
    device_name: str = ""
    num_sms: int = 0
    repeats: int = 1
    versions: dict[str, str] = {}
    signatures: tuple[SignatureRun, ...] = ()
    calls: tuple[CallRun, ...] = ()
    launch_sets: tuple[tuple[Launch, ...], ...] = ()
    notes: tuple[str, ...] = ()
