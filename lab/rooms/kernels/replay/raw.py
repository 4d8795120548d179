"""What a replay saw"""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.replay.args import PLAN_VERSION, Arg, Launch


class SignatureRun(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A signature called by itself. status: ran, shapes (only on the meta device), failed or unresolved.

    launches: what its first measured call launched. dur_us: per repetition, of each launch (on a CPU of the op).
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
    """A call made in order: its place in the plan, which set of launches it made, durations per pass and launch."""

    place: int
    launch_set: int  # -1: the passes differed
    dur_us: tuple[tuple[float, ...], ...]


class RawReplay(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything one replay saw, before anything is judged."""

    version: int = PLAN_VERSION
    mode: str
    device: str  # "cuda" or "cpu"
    device_name: str = ""
    num_sms: int = 0
    repeats: int = 1
    pace: str = "host"
    versions: dict[str, str] = {}
    signatures: tuple[SignatureRun, ...] = ()
    calls: tuple[CallRun, ...] = ()
    launch_sets: tuple[tuple[Launch, ...], ...] = ()
    notes: tuple[str, ...] = ()
