"""The files of the kernels room, as structs."""

from __future__ import annotations

from typing import Any

import msgspec

PROFILE = "profile"  # folder and name of the step


TABLES = "tables"


LAUNCHES, OPS, SIGNATURES, UNIQUE = "launches.jsonl", "ops.jsonl", "signatures.json", "unique_kernels.csv"


UNIQUE_COLUMNS = (
    "sig_id",
    "kernel",
    "class",
    "op",
    "overload",
    "arg_summary",
    "phase",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "smem_bytes",
    "regs",
    "count",
    "count_per_forward",
    "ranks",
    "dur_sum_us",
    "dur_min_us",
    "dur_p10_us",
    "dur_median_us",
    "dur_p90_us",
    "dur_p95_us",
    "dur_max_us",
    "time_share",
    "arg_src",
    "kind",
    "bytes",
    "streams",
    "module",
    "modules",
    "name",
)


class Arg(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One argument of an op, or one of its results.

    kind: tensor; tensors (a list; `items`, None for a hole); bool, int, float, complex, str, dtype, device, layout,
    memory_format; bools, ints, floats; generator; none (it was None); other (no recording tells it). src, best first:
    recorder, trace, or default (the schema's own). value: the number, text or list; infinities and NaN are the texts
    `inf`, `-inf`, `nan`, a complex number is [real, imaginary]. name is "" where the recording does not tell it.
    storage numbers the memory a tensor lies in: equal numbers at one time are one buffer. range: least and greatest
    element of an integer tensor (None: empty or not looked at).
    """

    kind: str
    name: str = ""
    src: str = "trace"
    dtype: str | None = None
    shape: list[int] | None = None
    stride: list[int] | None = None
    offset: int = 0
    device: str | None = None
    storage: int | None = None
    range: tuple[int, int] | None = None
    value: Any = None
    items: list[Arg | None] | None = None


class RecordedOp(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One call that the dispatcher saw, in order; name is like `aten::mul`, overload like `Tensor` ("" = default)."""

    index: int
    name: str
    overload: str = ""
    args: list[Arg] = []
    outs: list[Arg] = []
    phase: str = ""
    forward: int = -1
    module_path: str = ""


class Launch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One kernel, copy or fill. On a trace without GPU rows: one CPU op that owns its own time (kind `cpu_op`).

    kind: kernel, memcpy, memset or cpu_op. class_ is lab.recordings.names' class (`class` in the file). coll: the
    collective's name as its metadata tell it. phase: prefill, decode, step (a profiler step) or "" (outside all, or
    no marks); forward counts the marks from 0, -1 outside. op_id: the owning op's, -1 unknown. -1 where the recording
    says nothing.
    """

    rank: int
    device: int
    stream: int
    ts_us: float  # since the earliest launch of all ranks
    dur_us: float
    name: str
    kind: str
    class_: str = msgspec.field(name="class")
    sig_id: str = ""
    grid: tuple[int, int, int] = (-1, -1, -1)
    block: tuple[int, int, int] = (-1, -1, -1)
    smem_bytes: int = -1
    regs: int = -1
    bytes: int = -1
    op_id: int = -1
    coll: str = ""
    phase: str = ""
    forward: int = -1
    correlation: int = -1
    row: int = -1  # of `kernels` (of `ops` for cpu_op) as lab.recordings.kineto reads the rank's trace


class OpRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An op of one rank's trace: its row there (op_id), arguments of the best source, the op around it (parent).

    overload and argument names are known only from the recorder. recorded: index of the RecordedOp it was aligned
    with, -1 none; an op inside a recorded one has none. external_id and rf_id as the trace writes them (-1 absent).
    """

    rank: int
    op_id: int
    name: str
    overload: str | None = None
    args: list[Arg] = []
    parent: int = -1
    module_path: str = ""
    phase: str = ""
    forward: int = -1
    external_id: int = -1
    rf_id: int = -1
    tid: int = -1
    ts_us: float = 0.0
    dur_us: float = 0.0
    num_launches: int = 0
    recorded: int = -1


class Durations(msgspec.Struct, kw_only=True):
    """Durations of one signature's launches, us."""

    sum: float
    min: float
    p10: float
    median: float
    p90: float
    p95: float
    max: float


class Signature(msgspec.Struct, kw_only=True):
    """One distinct launch: same kernel, geometry, op, arguments and phase. launches are lines of launches.jsonl."""

    sig_id: str
    kernel: str  # short name
    name: str  # as recorded
    class_: str = msgspec.field(name="class")
    kind: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    regs: int
    bytes: int
    op: str
    overload: str | None
    args: list[Arg]
    arg_src: str  # the worst source among the arguments
    phase: str
    count: int
    count_per_forward: (
        float  # per forward of its phase and rank; equals count / ranks where forwards are unknown
    )
    count_by_rank: dict[int, int]
    modules: dict[str, int]  # module path -> launches
    dur_us: Durations
    launches: list[int]


class Signatures(msgspec.Struct, kw_only=True):
    """`forwards` per phase, as counted in the traces (not as asked for); 0: the trace has no marks."""

    ranks: list[int]
    device: str  # "gpu", or "cpu" where ops stand in for kernels
    gpu: str  # its name, "" unknown
    num_sms: int  # 0 unknown
    forwards: dict[str, int]
    signatures: list[Signature]


class LinearShape(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One distinct call of a Linear module. `in_`: x; out: y. Placement is DTensor's (`Shard(0)`), "" for a plain tensor."""

    rank: int
    phase: str
    module_path: str
    cls: str
    in_: list[Arg] = msgspec.field(name="in")
    out: list[Arg]
    weight_shape_local: list[int]
    weight_placement: str = ""
    count: int = 1


class Forward(msgspec.Struct, kw_only=True):
    """One forward of the profiled pass: `prefill` or `decode_i`."""

    name: str
    phase: str
    forward: int
    tokens_in: int


class Generation(msgspec.Struct, kw_only=True):
    """What one rank generated, and with what. Counts are of what ran, never of what was asked."""

    rank: int
    world_size: int
    model: str
    weights: str  # "checkpoint", or "random" with the config's origin in `weights_note`
    weights_note: str
    dtype: str
    device: str
    num_params: int  # on this rank
    prompt_tokens: int
    new_tokens: int
    max_new_tokens: int
    forwards: list[Forward]
    tokens: list[int]
    tokens_by: str = ""  # how the prompt became ids
    unprofiled_s: float  # wall time of the recorder-free, profiler-free pass
    attn: str = ""
    flags: dict[
        str, Any
    ] = {}  # grad mode, TF32, deterministic, autocast, SDPA backends ...: what replay must restore
