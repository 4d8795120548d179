"""The scanner never differs from the plain reader: same columns, same ids, same words, same refusals."""

from __future__ import annotations

import json
import random
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from lab.errors import LabError
from lab.native import READER
from lab.recordings.capture import Capture
from lab.recordings.kineto import read_kineto, reader
from lab.recordings.kineto.native import library, library_state
from lab.recordings.kineto.native.pieces import ScannedPieces
from tests.conftest import SHARED

pytestmark = pytest.mark.skipif(library() is None, reason=f"no scanner here: {library_state()}")

MUTATIONS = 2000
TABLES = [one.name for one in fields(Capture) if one.type == "Table"]
TEXTS = [
    "name_id",
    "text_id",
    "dims_id",
    "types_id",
    "strides_id",
    "concrete_id",
    "kernel_id",
    "label_id",
    "collective_id",
    "in_split_id",
    "out_split_id",
    "dtype_id",
    "pg_name_id",
    "pg_desc_id",
    "pg_ranks_id",
]
RECORDINGS = (
    "kernels_h200/bloom560m_generate.json.gz",
    "kernels_h200/cs336_small_training.json.gz",
    "rocm/mi300_resnet_ddp_rank0of8.json.gz",
    "rocm/mi300_qwen1.5_0.5b.json.gz",
    "serve/falconsai_h100.json.gz",
    "serve/falconsai_mi300.json.gz",
    "serve/a_swap01.json.gz",
    "captures/h200_decoder/infer_graph.json.gz",
    "captures/h200_decoder/infer_eager_modules.json.gz",
    "captures/graphs/flux1_one_file/capture_and_replay.json.gz",
    "captures/graphs/torch_compile_triton/trace.json.gz",
    "captures/graphs/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
)


def outcome(path: Path, **how: object) -> Capture | str:
    try:
        return read_kineto(path, **how)
    except LabError as error:
        return f"{type(error).__name__}: {error}"


def both(monkeypatch: pytest.MonkeyPatch, path: Path, **how: object) -> tuple[Capture | str, Capture | str]:
    how = {"piece_bytes": 1 << 20, **how}  # the order of ids follows the pieces
    monkeypatch.setenv(READER, "plain")
    plain = outcome(path, **how)
    monkeypatch.delenv(READER)
    return plain, outcome(path, **how)


def assert_same(plain: Capture | str, scanned: Capture | str) -> None:
    if isinstance(plain, str) or isinstance(scanned, str):
        assert scanned == plain
        return
    for name in ("strings", "meta", "problems", "lacks", "truncated"):
        assert getattr(scanned, name) == getattr(plain, name), name
    for table in TABLES:
        ours, theirs = (getattr(one, table).as_dict() for one in (scanned, plain))
        for column in theirs:
            assert ours[column].dtype == theirs[column].dtype
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=f"{table}.{column}")


@pytest.mark.data
@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_are_read_the_same_and_wholly_by_the_scanner(monkeypatch, name):
    scan, unusual = ScannedPieces.scan, []

    def counted(self, text):
        found = scan(self, text)
        unusual.append(not found)
        return found

    monkeypatch.setattr(ScannedPieces, "scan", counted)
    assert_same(*both(monkeypatch, SHARED / name))
    assert unusual and not any(unusual)


@pytest.mark.data
@pytest.mark.parametrize("piece_bytes", [1 << 10, 64 << 10, 4 << 20])
def test_the_size_of_pieces_changes_nothing(monkeypatch, piece_bytes):
    assert_same(*both(monkeypatch, SHARED / "serve/falconsai_mi300.json.gz", piece_bytes=piece_bytes))


def assert_same_in_words(plain: Capture, scanned: Capture) -> None:
    """The same but for the numbers of texts, which follow the pieces."""
    for name in ("meta", "problems", "lacks", "truncated"):
        assert getattr(scanned, name) == getattr(plain, name), name
    for table in TABLES:
        ours, theirs = (getattr(one, table).as_dict() for one in (scanned, plain))
        for column in theirs:
            mine, wanted = ours[column], theirs[column]
            if column in TEXTS:
                mine, wanted = scanned.text(mine), plain.text(wanted)
            np.testing.assert_array_equal(mine, wanted, err_msg=f"{table}.{column}")


@pytest.mark.data
@pytest.mark.parametrize(
    "name", ["serve/falconsai_mi300.json.gz", "kernels_h200/cs336_small_training.json.gz"]
)
def test_columns_of_several_pieces_at_once_say_the_same(monkeypatch, name):
    scanned = read_kineto(SHARED / name)
    monkeypatch.setenv(READER, "plain")
    assert_same_in_words(read_kineto(SHARED / name), scanned)


def test_plain_pieces_between_scanned_ones_keep_the_order_of_the_file(monkeypatch, tmp_path):
    """Rows of several pieces become columns at once, and before those of a piece for the plain form."""
    odd = changed(KERNEL, dur=2.5004)
    path = written(tmp_path / "a.json", [*EVENTS * 60, odd, *EVENTS * 60, odd, META, *EVENTS * 60])
    monkeypatch.setattr(reader, "SCANNED_PIECE_BYTES", 2048)
    scanned = read_kineto(path)
    monkeypatch.setenv(READER, "plain")
    assert_same_in_words(read_kineto(path), scanned)
    assert len(scanned.kernels) == 3 * 180 + 2


KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "k",
    "pid": 0,
    "tid": 7,
    "ts": 10.125,
    "dur": 2.5,
    "args": {
        "External id": 3,
        "device": 0,
        "stream": 7,
        "correlation": 5,
        "grid": [1, 2, 3],
        "block": [4, 5, 6],
        "shared memory": 9,
        "registers per thread": 32,
        "graph id": 2,
        "graph node id": 8,
    },
}
OP = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 1,
    "tid": 2,
    "ts": 9.0,
    "dur": 3.001,
    "args": {
        "External id": 3,
        "Record function id": 4,
        "Sequence number": 6,
        "Ev Idx": 0,
        "Input Dims": [[2, 3], [3, 4]],
        "Input type": ["float", "float"],
        "Input Strides": [[3, 1], [4, 1]],
        "Concrete Inputs": ["", "x"],
    },
}
CALL = {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "pid": 1,
    "tid": 2,
    "ts": 9.5,
    "dur": 0.001,
    "args": {"correlation": 5, "External id": 3, "kernel": "k", "grid": [1, 2, 3], "block": [4, 5, 6]},
}
COPY = {
    "ph": "X",
    "cat": "gpu_memcpy",
    "name": "Memcpy",
    "pid": 0,
    "tid": 7,
    "ts": 14,
    "dur": 1,
    "args": {"copy kind": "HtoD", "src kind": "Pinned", "dst kind": "Device", "bytes": 64, "correlation": 6},
}
RANGE = {
    "ph": "X",
    "cat": "user_annotation",
    "name": "nccl:all_reduce",
    "pid": 1,
    "tid": 2,
    "ts": 8,
    "dur": 9,
    "args": {"Ev Idx": 1, "Input Dims": [[1]], "External id": 9},
}
NCCL = {
    **KERNEL,
    "name": "ncclDevKernel",
    "ts": 20.0,
    "args": {
        **KERNEL["args"],
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "Group size": 2,
        "dtype": "Float",
        "In split size": [],
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
        "Seq": 3,
    },
}
META = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.0, "args": {"name": "python"}}
THREAD = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "thread 2 (main)"}}
ARROW = {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "tid": 2, "ts": 9.25, "id": 12}
ARROW_END = {**ARROW, "ph": "f", "ts": 11.0, "bp": "e"}
FUNCTION = {
    "ph": "X",
    "cat": "python_function",
    "name": "f.py(1): g",
    "pid": 1,
    "tid": 2,
    "ts": 1,
    "dur": 2,
    "args": {"Python parent id": None, "Python id": 1, "Ev Idx": 2},
}
EVENTS = [META, THREAD, OP, CALL, KERNEL, COPY, RANGE, NCCL, ARROW, ARROW_END, FUNCTION]


def written(path: Path, events: list[object], **layout: object) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}, **layout))
    return path


def changed(event: dict[str, object], **fields: object) -> dict[str, object]:
    return {**event, **fields}


def with_args(event: dict[str, object], **args: object) -> dict[str, object]:
    names = {"ev_idx": "Ev Idx", "dims": "Input Dims", "external_id": "External id"}
    return {**event, "args": {**event["args"], **{names.get(k, k): v for k, v in args.items()}}}


ODDITIES = {
    "as it is": [],
    "text pid": [changed(KERNEL, pid="GPU 0"), changed(OP, tid="main"), changed(CALL, pid="")],
    "text number as pid": [changed(OP, pid="12")],
    "text device of a kernel": [with_args(KERNEL, device="0")],
    "text stream of a call": [with_args(CALL, stream="0x7f", device="1")],
    "text index": [with_args(OP, ev_idx="5")],
    "escaped name": [changed(KERNEL, name='a"\\/\b\n\t\u20ac\U0001f600')],
    "two spellings of a name": [changed(KERNEL, name="a/b")],
    "no name": [changed(KERNEL, name="")],
    "huge integer": [with_args(KERNEL, correlation=2**70), with_args(OP, external_id=2**63)],
    "18 digits": [with_args(KERNEL, correlation=10**18 - 1), with_args(KERNEL, correlation=-(10**18) + 1)],
    "19 digits": [with_args(KERNEL, correlation=10**18)],
    "float as integer": [with_args(KERNEL, correlation=5.5), with_args(KERNEL, correlation=5.0)],
    "null argument": [with_args(KERNEL, correlation=None), with_args(OP, dims=None)],
    "no arguments": [{k: v for k, v in KERNEL.items() if k != "args"}, changed(OP, args={})],
    "arguments that are none": [changed(KERNEL, args=None)],
    "no times": [{k: v for k, v in KERNEL.items() if k not in ("ts", "dur")}],
    "negative duration": [changed(KERNEL, dur=-1.0)],
    "negative start": [changed(KERNEL, ts=-5.5)],
    "null time": [changed(KERNEL, ts=None)],
    "text time": [changed(OP, ts="9.0")],
    "absolute times": [changed(KERNEL, ts=1753652182142161.579), changed(OP, ts=1753652182142160)],
    "long duration": [changed(KERNEL, dur=2.0**43)],
    "tiny and large exponents": [changed(KERNEL, ts=1e-7), changed(OP, dur=1e30)],
    "two sizes of three": [with_args(KERNEL, grid=[1, 2])],
    "size that is no integer": [with_args(KERNEL, block=[1, 2, "3"])],
    "nested list": [with_args(OP, dims=[[[1, 2], {"a": "b\\u0041"}], [], "x"])],
    "deep list": [with_args(OP, dims=json.loads("[" * 70 + "]" * 70))],
    "other category": [
        changed(KERNEL, cat="Kernel"),
        changed(KERNEL, cat="gpu_memset"),
        changed(OP, cat="x"),
    ],
    "other phases": [changed(OP, ph="i"), changed(OP, ph="B"), changed(OP, ph=""), changed(ARROW, ph="t")],
    "arrow without number": [changed(ARROW, id="a"), {k: v for k, v in ARROW.items() if k != "id"}],
    "arrow with text number": [changed(ARROW, id="77"), changed(ARROW, id=-1), changed(ARROW, id=1.5)],
    "arrow without time": [{k: v for k, v in ARROW.items() if k != "ts"}],
    "labels": [
        changed(META, name="process_labels", args={"labels": "GPU 0"}),
        changed(META, args={"name": 5}),
    ],
    "names repeated": [changed(META, args={"name": "other"}), changed(THREAD, tid="t", args={"name": "µ"})],
    "unknown fields": [changed(KERNEL, s="g", x=[{"y": [1e5, -0.5, True, None, "\U0001f600"]}])],
    "not an object": [None, 5, [], "text"],
    "name of a process that is no event": [changed(META, args={"name": "a", "wait_on_stream": [1]})],
    "formula": [changed(KERNEL, name="=cmd|' /C calc'!A0")],
}


@pytest.mark.parametrize("layout", [{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])
@pytest.mark.parametrize("what", ODDITIES)
def test_every_oddity_is_read_or_refused_as_the_plain_reader_does(monkeypatch, tmp_path, what, layout):
    path = written(tmp_path / "a.json", [*EVENTS, *ODDITIES[what], *EVENTS], **layout)
    for salvage in (False, True):
        assert_same(*both(monkeypatch, path, salvage=salvage))


RAW = {
    "duplicate fields": (b'"pid": 0', b'"pid": "x", "pid": 3'),
    "duplicate text after number": (b'"pid": 0', b'"pid": 3, "pid": "x"'),
    "duplicate arguments": (b'"args": {', b'"args": {"correlation": 1}, "args": {'),
    "category last": (b'"cat": "kernel", ', b""),
    "escaped key": (b'"pid": 0', b'"p\\u0069d": 0'),
    "lone surrogate": (b'"k"', b'"\\ud800"'),
    "bad escape": (b'"k"', b'"\\x"'),
    "latin-1": (b'"k"', b'"\xe9"'),
    "control character": (b'"k"', b'"\x01"'),
    "NUL": (b'"k"', b'"\x00"'),
    "leading zero": (b'"dur": 2.5', b'"dur": 02.5'),
    "no digit after the point": (b'"dur": 2.5', b'"dur": 2.'),
    "four decimals": (b'"dur": 2.5', b'"dur": 2.5004'),
    "plus": (b'"dur": 2.5', b'"dur": +2.5'),
    "NaN": (b'"dur": 2.5', b'"dur": NaN'),
    "minus zero": (b'"pid": 0', b'"pid": -0'),
    "exponent": (b'"correlation": 5', b'"correlation": 5e0'),
    "two commas": (b'"pid": 0,', b'"pid": 0,,'),
    "trailing comma": (b'"graph node id": 8', b'"graph node id": 8,'),
    "literal cut": (b'"Python parent id": null', b'"Python parent id": nul'),
    "skipped number broken": (b'"bp": "e"', b'"bp": 1.e5'),
    "skipped text broken": (b'"bp": "e"', b'"bp": "\\q"'),
    "cut character": (b'"k"', b'"\xe2\x82"'),
    "overlong character": (b'"k"', b'"\xc0\xaf"'),
    "surrogate in UTF-8": (b'"k"', b'"\xed\xa0\x80"'),
    "beyond the last character": (b'"k"', b'"\xf4\x90\x80\x80"'),
    "four bytes": (b'"k"', b'"\xf0\x9f\x98\x80 and more of it"'),
    "comma before the first field": (b'{"ph": "X", "cat": "kernel"', b'{, "ph": "X", "cat": "kernel"'),
    "no comma": (b'"pid": 0, "tid"', b'"pid": 0 "tid"'),
    "no colon": (b'"pid": 0', b'"pid" 0'),
    "spaces and tabs": (b'"pid": 0, "tid"', b'"pid" \t:\r\n 0 \n,\t"tid"'),
    "list that only begins as another": (b'"Input Dims": [[1]]', b'"Input Dims": [[1]]]'),
    "escaped name of a module": (b'"f.py(1): g"', b'"nn\\u002eModule: Linear_0"'),
    "escaped name of no module": (b'"f.py(1): g"', b'"nn.Modul\\u0061: Linear_0"'),
    "skipped surrogate": (b'"bp": "e"', b'"bp": "\\udc00"'),
}


@pytest.mark.parametrize("what", RAW)
def test_damage_inside_an_event_is_treated_as_the_plain_reader_does(monkeypatch, tmp_path, what):
    old, new = RAW[what]
    path = tmp_path / "a.json"
    text = json.dumps({"traceEvents": EVENTS}).encode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))
    for salvage in (False, True):
        assert_same(*both(monkeypatch, path, salvage=salvage))


@pytest.mark.parametrize("beside", [[], [KERNEL]])
def test_a_module_whose_name_is_escaped_is_still_a_module(monkeypatch, tmp_path, beside):
    path = tmp_path / "a.json"
    text = json.dumps({"traceEvents": [*beside, changed(FUNCTION, name="nn.Module: Linear_0")]})
    path.write_text(text.replace("nn.Module", "n\\u006e.Module"))
    for trace in both(monkeypatch, path):
        assert trace.text(trace.modules.name_id) == ["nn.Module: Linear_0"]


def test_every_cut_of_a_file_is_refused_or_saved_in_the_same_words(monkeypatch, tmp_path):
    whole = json.dumps({"traceEvents": [META, KERNEL, OP]}).encode()
    path = tmp_path / "a.json"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert_same(*both(monkeypatch, path, salvage=end % 2 == 0))


def mutated(text: bytes, chance: random.Random) -> bytes:
    """One to three bytes flipped, cut out, repeated or replaced by another mark."""
    found = bytearray(text)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(found))
        length = chance.choice((1, 1, 1, 2, 5, 40))
        match chance.randrange(5):
            case 0:
                found[at] ^= 1 << chance.randrange(8)
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = found[at : at + length]
            case 3:
                found[at] = chance.choice(b'{}[],:"\\0-.eE \x00\xff')
            case _:
                numbers = [m.span() for m in re.finditer(rb"\d+", bytes(found))]
                start, end = chance.choice(numbers)
                found[start:end] = chance.choice((b"-1", b"0", b"9" * 19, b"1e9", b"1.0005", b'"7"', b"null"))
    return bytes(found)


@pytest.mark.long
def test_thousands_of_mutations_are_never_read_differently(monkeypatch, tmp_path):
    chance = random.Random(20)
    text = json.dumps({"traceEvents": EVENTS}).encode()
    path, read = tmp_path / "a.json", 0
    for number in range(MUTATIONS):
        path.write_bytes(mutated(text, chance))
        plain, scanned = both(monkeypatch, path, salvage=number % 4 == 0)
        assert_same(plain, scanned)
        read += not isinstance(plain, str)
    assert read > MUTATIONS // 5
