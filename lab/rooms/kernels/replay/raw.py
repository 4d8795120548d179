"""What the replay workload brings back, before anything is compared."""

from __future__ import annotations

import msgspec

from lab.rooms.kernels.replay.args import PLAN_VERSION, Arg, Launch


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
