"""The files of the kernels room, as structs: all that the parts of the room share.

docs/kernels.md lists the files of the profile step and of `tables/`.

Dtypes are torch's names without `torch.` (`float16`); shapes and strides count elements; times are in us.
"""

from __future__ import annotations

from typing import Any

import msgspec

PROFILE = "profile"  # folder and name of the step
TABLES = "tables"
LAUNCHES, OPS, SIGNATURES, UNIQUE = "launches.jsonl", "ops.jsonl", "signatures.json", "unique_kernels.csv"
_COLUMNS = """
    sig_id kernel class op overload arg_summary phase
    grid_x grid_y grid_z block_x block_y block_z smem_bytes regs
    count count_per_forward ranks
    dur_sum_us dur_min_us dur_p10_us dur_median_us dur_p90_us dur_p95_us dur_max_us time_share
    arg_src kind bytes streams module modules op_rule layer_rule confidence layers kernel_hash name bound
"""
UNIQUE_COLUMNS = tuple(_COLUMNS.split())


class Arg(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One argument of an op, or one of its results.

    kind: tensor; tensors (a list; `items`, None for a hole); bool, int, float, complex, str, dtype, device,
    layout, memory_format; bools, ints, floats; generator; none (it was None); other (not recorded). src, best
    first: recorder, trace, or default (the schema's own). value: the number, text or list; infinities and NaN
    are the texts `inf`, `-inf`, `nan`, a complex number is [real, imaginary]. name: "" if it was not
    recorded. storage: number of the memory a tensor lies in; equal numbers at one time are one buffer. range:
    minimum and maximum of an integer tensor (None: empty, or not recorded).
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
    """One call that the dispatcher saw; name is like `aten::mul`, overload like `Tensor`, "" by default."""

    index: int
    name: str
    overload: str = ""
    args: list[Arg] = []
    outs: list[Arg] = []
    phase: str = ""
    forward: int = -1
    module_path: str = ""


class Launch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One kernel, copy or fill. In a trace without GPU rows: one CPU op with its own time (kind `cpu_op`).

    kind: kernel, memcpy, memset or cpu_op.
    class_: lab.recordings.names' class (`class` in the file).
    coll: the collective's name in its metadata.
    phase: prefill, decode, step (a profiler step) or "" (outside all, or no marks).
    forward: number of the mark from 0, -1 outside all.
    op_id: that of the owning op.
    op_rule, layer_rule, confidence: how op and layer were found (lab.recordings.graphs).
    -1: not recorded.
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
    wait_us: float = 0.0  # of dur_us: a collective before its last rank came
    op_rule: str = ""
    layer_rule: str = ""
    layer: str = ""
    confidence: str = ""
    kernel_hash: str = ""  # of the file of an Inductor kernel

    @property
    def own_us(self) -> float:
        """What the launch costs: its duration without waiting for other ranks."""
        return self.dur_us - self.wait_us


class OpRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An op of one rank's trace: its row there (op_id), arguments of the best source, the op around it
    (parent).

    overload and argument names come from the recorder only.
    recorded: index of the RecordedOp it was aligned with, -1 none; an op inside a recorded one has none.
    external_id, rf_id: as in the trace, -1 if absent.
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
    """One distinct launch; `launches` are its lines in launches.jsonl."""

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
    count_per_forward: float  # per forward of its phase and rank; count / ranks if forwards are unknown
    count_by_rank: dict[int, int]
    modules: dict[str, int]  # module path -> launches
    dur_us: Durations
    launches: list[int]
    op_rule: str = "none"  # how its launches found their op, as in Launch
    layer_rule: str = "none"
    confidence: str = ""
    layers: int = 0  # distinct ones
    kernel_hash: str = ""


class Signatures(msgspec.Struct, kw_only=True):
    """All distinct launches. forwards: per phase, as counted in the traces; empty if they have no marks."""

    ranks: list[int]
    device: str  # "gpu", or "cpu" if ops stand in for kernels
    gpu: str  # its name, "" unknown
    num_sms: int  # 0 unknown
    forwards: dict[str, int]
    signatures: list[Signature]
    bound: str = ""  # `at least` where rows are known to be missing


class LinearShape(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One distinct call of a Linear module. Placement is DTensor's (`Shard(0)`), "" for a plain tensor."""

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
    """What one rank generated, and with what. Counts are of what ran, not of what was requested."""

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
    tokens_by: str = ""  # how the prompt was encoded
    unprofiled_s: float  # wall time of the recorder-free, profiler-free pass
    attn: str = ""
    # Grad mode, TF32, deterministic, autocast, SDPA backends ...: what a replay must restore.
    flags: dict[str, Any] = {}
