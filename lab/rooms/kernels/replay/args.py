"""What a replay needs of a recording: the ops that own launches, their arguments and where each came from.

These structs are the whole language between the host, which reads recordings, and the workload, which calls ops.
"""

from __future__ import annotations

from typing import Any

import msgspec

PLAN_VERSION = 1

# Provenance of an argument, best first. A call wears the worst label of its arguments.
SOURCES = ("recorded", "ranged", "bounded", "default", "synthetic")

# C++ type names as the profiler writes them -> torch's names.
DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "half": "float16",
    "Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
    "bool": "bool",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
}
ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
}
FLOATS = frozenset(name for name in ITEM_BYTES if "float" in name or "complex" in name)


class TensorArg(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor to allocate: shape and stride in elements; align_bytes is its address modulo 16.

    low and high bound its integers, both inclusive. number: it was a Python number that the dispatcher wrapped.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    device: str = ""  # "cuda", "cpu", or "" where the recording does not say
    align_bytes: int = 0
    low: int | None = None
    high: int | None = None
    number: bool = False
    index: bool = False  # its values address another argument: outside of low and high they would leave it
    pinned: bool = False


class Arg(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One argument of a call. Exactly one of value, tensor and tensors says what it is; all empty is None."""

    name: str
    type: str = ""  # as the schema writes it, without alias annotations
    src: str = "recorded"
    value: Any = None  # number, text, bool or list of them; inf and nan as text
    tensor: TensorArg | None = None
    tensors: tuple[TensorArg | None, ...] | None = None
    kwarg_only: bool = False


class RawArgs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Arguments as a chrome trace tells them, one entry each: no names, no overload."""

    types: tuple[str, ...]
    dims: tuple[Any, ...]
    strides: tuple[Any, ...] = ()
    concrete: tuple[str, ...] = ()


class Launch(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the GPU was asked to do: kind is kernel, memcpy or memset; sizes in threads and bytes."""

    name: str
    kind: str = "kernel"
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    smem_bytes: int = 0
    bytes: int = -1


class Signature(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A distinct call: op, exact overload, arguments and the launches it made. args None: not resolved yet."""

    sig_id: str
    op: str
    overload: str | None = None  # "" is the default overload; None is not known
    args: tuple[Arg, ...] | None = None
    raw: RawArgs | None = None
    launches: tuple[Launch, ...] = ()
    outs: tuple[tuple[int, ...], ...] | None = None  # shapes of the results, where they were recorded
    origin: str = "trace"  # where the arguments were read: recorder, execution_trace or trace
    reason: str = ""  # why it cannot be rebuilt

    @property
    def src(self) -> str:
        """The worst provenance of the arguments."""
        found = [SOURCES.index(arg.src) for arg in self.args or ()]
        return SOURCES[max(found)] if found else "recorded"


class Call(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """One execution of a signature, in the order of the recording.

    ins and outs: [storage id, offset in elements] of each tensor, lists flattened; storage -1 is unknown.
    """

    sig: int  # place in the plan's signatures
    forward: int  # place in the plan's forwards
    dur_us: tuple[float, ...]  # of each launch
    ts_us: tuple[float, ...] = ()
    ins: tuple[tuple[int, int], ...] = ()
    outs: tuple[tuple[int, int], ...] = ()
    stream: int = 0


class Forward(msgspec.Struct, frozen=True, omit_defaults=True):
    """A marked span of the recording: one prefill or one decode step. Times are of the GPU's work inside it."""

    name: str
    phase: str
    wall_us: float = 0.0
    busy_us: float = 0.0


class Orphan(msgspec.Struct, frozen=True):
    """A launch that no op owns (or a collective): counted as uncovered, with its reason."""

    launch: Launch
    dur_us: float
    reason: str


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the recording came from."""

    trace: str = ""
    execution_trace: str = ""
    recorder: str = ""
    device_name: str = ""
    num_sms: int = 0
    torch_version: str = ""
    run: str = ""
    model: str = ""
    has_kernels: bool = True


class ReplayPlan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A recording, ready to be replayed anywhere: no file but this one is read by the workload."""

    version: int = PLAN_VERSION
    origin: Origin
    forwards: tuple[Forward, ...]
    signatures: tuple[Signature, ...]
    calls: tuple[Call, ...]
    orphans: tuple[Orphan, ...] = ()
    state: dict[str, Any] = {}  # flags to restore: grad mode, TF32, deterministic, ...
    config: dict[str, Any] = {}  # the profiled run's configuration, where it is known
    notes: tuple[str, ...] = ()


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last addressed one, 0 for an empty tensor."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


# Ops whose floats must not be negative, and those whose integers must not be zero.
POSITIVE = ("multinomial", "sqrt", "rsqrt", "log", "pow")
DIVIDES = ("div", "remainder", "fmod", "floor_divide")


def fill_of(op: str, spec: TensorArg) -> str:
    """With what a rebuilt tensor is filled, in Python and in C++: floats, positive, bools, bounded, zeros or ones."""
    plain = op.partition("::")[2].rstrip("_")
    if spec.dtype in FLOATS:
        return "positive" if plain.startswith(POSITIVE) and "complex" not in spec.dtype else "floats"
    if spec.dtype == "bool":
        return "bools"
    if spec.high is not None:
        return "bounded"
    return "ones" if plain.startswith(DIVIDES) else "zeros"


# What the workload brings back --------------------------------------------------------------------------------------


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
