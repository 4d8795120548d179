"""What a replay needs of a recording: the ops that own launches, their arguments, and the source of each.

These structs are all that the host, which reads recordings, and the workload, which calls ops, share.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.perfmodel.dtypes import SPELLINGS

# A replay does not rebuild these; the catalogue names them.
_NAMED_ONLY = ("complex32", "float8_e8m0fnu", "float4_e2m1fn_x2")
# Spellings in recordings (Kineto's "Input type", the execution trace's "Tensor(...)") -> torch's name.
DTYPES = {spelling: name for spelling, name in SPELLINGS.items() if name not in _NAMED_ONLY}
FLOATS = frozenset(name for name in DTYPES.values() if "float" in name or "complex" in name)


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last addressed one, 0 for an empty tensor."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


PLAN_VERSION = 1


# Provenance of an argument, best first. A call has the worst label of its arguments.
SOURCES = ("recorded", "ranged", "bounded", "default", "synthetic")


class TensorArg(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor to allocate. shape and stride are in elements; align_bytes is its address modulo 16.

    low and high bound its integers, both inclusive. number: a Python number that the dispatcher had wrapped.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    device: str = ""  # "cuda", "cpu", or "" if the recording does not say
    align_bytes: int = 0
    low: int | None = None
    high: int | None = None
    number: bool = False
    index: bool = False  # its values are indices into another argument, valid from low to high
    pinned: bool = False


class Arg(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One argument of a call: one of value, tensor and tensors is set; if none is, the argument is None."""

    name: str
    type: str = ""  # as the schema writes it, without alias annotations
    src: str = "recorded"
    value: Any = None  # number, text, bool or list of them; inf and nan as text
    tensor: TensorArg | None = None
    tensors: tuple[TensorArg | None, ...] | None = None
    kwarg_only: bool = False


class RawArgs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Arguments as a chrome trace records them, one entry each: no names, no overload."""

    types: tuple[str, ...]
    dims: tuple[Any, ...]
    strides: tuple[Any, ...] = ()
    concrete: tuple[str, ...] = ()


class Launch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A launch: kind is kernel, memcpy or memset; grid and block in threads, memory in bytes."""

    name: str
    kind: str = "kernel"
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    smem_bytes: int = 0
    bytes: int = -1


class Signature(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A distinct call: op, exact overload, arguments (None: not resolved yet), and its launches."""

    sig_id: str
    op: str
    overload: str | None = None  # "" is the default overload; None is not known
    args: tuple[Arg, ...] | None = None
    raw: RawArgs | None = None
    launches: tuple[Launch, ...] = ()
    outs: tuple[tuple[int, ...], ...] | None = None  # shapes of the results, if recorded
    origin: str = "trace"  # where the arguments were read: recorder, execution_trace or trace
    reason: str = ""  # why it cannot be rebuilt


class Call(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """One execution of a signature, in the order of the recording.

    ins and outs: [storage id, offset in elements] of each tensor, lists flattened; storage -1 is unknown.
    """

    sig: int  # index in the plan's signatures
    forward: int  # index in the plan's forwards
    dur_us: tuple[float, ...]  # of each launch
    ts_us: tuple[float, ...] = ()
    ins: tuple[tuple[int, int], ...] = ()
    outs: tuple[tuple[int, int], ...] = ()
    stream: int = 0


class Forward(msgspec.Struct, frozen=True, omit_defaults=True):
    """A marked span of the recording: one prefill or one decode step. busy_us: union of the GPU's work."""

    name: str
    phase: str
    wall_us: float = 0.0
    busy_us: float = 0.0


class Orphan(msgspec.Struct, frozen=True):
    """A launch that no op owns, or a collective: counted as uncovered, with its reason."""

    launch: Launch
    dur_us: float
    reason: str


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the recording came from."""

    trace: str = ""
    device_name: str = ""
    num_sms: int = 0
    run: str = ""
    has_kernels: bool = True


class ReplayPlan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A recording, ready to be replayed anywhere: the only file that the workload reads."""

    version: int = PLAN_VERSION
    origin: Origin
    forwards: tuple[Forward, ...]
    signatures: tuple[Signature, ...]
    calls: tuple[Call, ...]
    orphans: tuple[Orphan, ...] = ()
    state: dict[str, Any] = {}  # flags to restore: grad mode, TF32, deterministic, ...
    config: dict[str, Any] = {}  # the profiled run's configuration, if known
    notes: tuple[str, ...] = ()


# Ops whose floats must not be negative, and those whose integers must not be zero.
POSITIVE = ("multinomial", "sqrt", "rsqrt", "log", "pow")


DIVIDES = ("div", "remainder", "fmod", "floor_divide")


def fill_of(op: str, spec: TensorArg) -> str:
    """How a tensor is filled, in Python and in C++: floats, positive, bools, bounded, zeros or ones."""
    plain = op.partition("::")[2].rstrip("_")
    if spec.dtype in FLOATS:
        return "positive" if plain.startswith(POSITIVE) and "complex" not in spec.dtype else "floats"
    if spec.dtype == "bool":
        return "bools"
    if spec.high is not None:
        return "bounded"
    return "ones" if plain.startswith(DIVIDES) else "zeros"


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
