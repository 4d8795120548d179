"""An event of a Kineto trace as msgspec decodes it."""

from __future__ import annotations

from typing import Literal

import msgspec

_NO_RAW = msgspec.Raw(b"")
NO_SIZE = (-1, -1, -1)
_NAN = float("nan")


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments in use, in the order Kineto writes them (the decoder is fastest that way)."""

    external_id: int = msgspec.field(name="External id", default=-1)
    sequence: int = msgspec.field(name="Sequence number", default=-1)  # links a backward op to its forward op
    rf_id: int = msgspec.field(name="Record function id", default=-1)
    device: int | str = -1  # HIP runtime calls write some of these as text
    stream: int | str = -1
    original_stream: int | str = -1  # where a viewer's lane has replaced stream
    kernel: str = ""
    correlation: int = -1
    graph: int = msgspec.field(name="graph id", default=0)  # 0: launched without a graph
    graph_node: int = msgspec.field(name="graph node id", default=0)
    regs: int = msgspec.field(name="registers per thread", default=-1)
    smem_bytes: int = msgspec.field(name="shared memory", default=-1)
    bytes_: int | str = msgspec.field(name="bytes", default=-1)
    copy_kind: str = msgspec.field(name="copy kind", default="")
    src_kind: str = msgspec.field(name="src kind", default="")
    dst_kind: str = msgspec.field(name="dst kind", default="")
    grid: tuple[int, int, int] = NO_SIZE
    block: tuple[int, int, int] = NO_SIZE
    collective: str = msgspec.field(name="Collective name", default="")
    in_nelems: int = msgspec.field(name="In msg nelems", default=-1)
    out_nelems: int = msgspec.field(name="Out msg nelems", default=-1)
    group_size: int = msgspec.field(name="Group size", default=-1)
    dtype: str = ""
    in_split: msgspec.Raw = msgspec.field(name="In split size", default=_NO_RAW)
    out_split: msgspec.Raw = msgspec.field(name="Out split size", default=_NO_RAW)
    pg_name: str = msgspec.field(name="Process Group Name", default="")
    pg_desc: str = msgspec.field(name="Process Group Description", default="")
    pg_ranks: str = msgspec.field(name="Process Group Ranks", default="")
    seq: int = msgspec.field(name="Seq", default=-1)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NO_RAW)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_RAW)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=_NO_RAW)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_RAW)
    ev_idx: int | str = msgspec.field(name="Ev Idx", default=-1)
    on_stream: int | str = msgspec.field(name="wait_on_stream", default=-1)  # of a wait for an event
    record: int | str = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    name: msgspec.Raw = _NO_RAW  # of a process or thread
    labels: msgspec.Raw = _NO_RAW


_NO_ARGS = Args()


class FunctionArgs(msgspec.Struct, gc=False, frozen=True):
    """In the order torch writes them; what is not read is named here all the same, which finds it at once."""

    parent: msgspec.Raw = msgspec.field(name="Python parent id", default=_NO_RAW)
    python_id: msgspec.Raw = msgspec.field(name="Python id", default=_NO_RAW)
    ev_idx: int | str = msgspec.field(name="Ev Idx", default=-1)


_NO_FUNCTION_ARGS = FunctionArgs()


class Function(msgspec.Struct, gc=False):
    """A frame of Python's stack: most events of a trace with stacks, of which only the number is read.

    Its other fields are here to be checked as those of any event.
    """

    ph: Literal["X"]
    cat: Literal["python_function"]
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = _NAN
    dur: float = _NAN
    args: FunctionArgs = _NO_FUNCTION_ARGS


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = _NAN
    dur: float = _NAN
    args: Args = _NO_ARGS
    id: msgspec.Raw = _NO_RAW  # of an arrow


class ExactEvent(msgspec.Struct, gc=False):
    """The same, with a time too large for a float64: its digits."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = _NO_RAW
    dur: float = _NAN
    args: Args = _NO_ARGS
    id: msgspec.Raw = _NO_RAW  # of an arrow


FUNCTION_LIST = msgspec.json.Decoder(list[Function])
FLOAT_LIST = msgspec.json.Decoder(list[Event])
EXACT_LIST = msgspec.json.Decoder(list[ExactEvent])
FLOAT_ONE = msgspec.json.Decoder(Event)
EXACT_ONE = msgspec.json.Decoder(ExactEvent)
