"""Small traces and execution traces for the replay's tests, as Kineto and torch write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

MUL = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"


def event(cat, name, ts, dur, args, pid=0, tid=7):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def op(name, ts, dur, number, dims=(), types=(), strides=(), concrete=()):
    recorded = {
        "Input Dims": dims,
        "Input type": types,
        "Input Strides": strides,
        "Concrete Inputs": concrete,
    }
    ids = {"External id": number, "Record function id": number}
    return event("cpu_op", name, ts, dur, {**ids, **recorded}, pid=1, tid=1)


def kernel(name, ts, dur, owner, correlation=-1, cat="kernel"):
    ids = {"External id": owner, "correlation": correlation, "stream": 7, "device": 0}
    shape = {"grid": [1, 1, 1], "block": [128, 1, 1], "shared memory": 0}
    return event(cat, name, ts, dur, {**ids, **shape})


def copy(name, ts, dur, owner, num_bytes):
    args = {"External id": owner, "bytes": num_bytes, "stream": 7, "device": 0}
    return event("gpu_memcpy", name, ts, dur, args)


def mark(name, ts, dur):
    return event("user_annotation", name, ts, dur, {}, pid=1, tid=1)


def tensor(storage, numel, dtype="c10::Half", itemsize=2, offset=0, device="cuda:0"):
    return [storage * 10, storage, offset, numel, itemsize, device], f"Tensor({dtype})"


def node(rf_id, name, schema, values, types, shapes, strides, out=None):
    outs = out or {"values": [], "types": [], "shapes": []}
    return {
        "id": rf_id + 100,
        "name": name,
        "ctrl_deps": 1,
        "outputs": outs,
        "inputs": {"values": values, "types": types, "shapes": shapes, "strides": strides},
        "attrs": [
            {"name": "rf_id", "type": "uint64", "value": rf_id},
            {"name": "op_schema", "type": "string", "value": schema},
        ],
    }


def mul_node(rf_id=1, left=1, right=2, result=3):
    a, kind = tensor(left, 8)
    b, _ = tensor(right, 8)
    c, _ = tensor(result, 8)
    out = {"values": [c], "types": [kind], "shapes": [[2, 4]]}
    return node(rf_id, "aten::mul", MUL, [a, b], [kind, kind], [[2, 4], [2, 4]], [[4, 1], [4, 1]], out)


def mul_op(ts=10.0, number=1):
    return op("aten::mul", ts, 5.0, number, [[2, 4]] * 2, ["c10::Half"] * 2, [[4, 1]] * 2, [""] * 2)


def write_trace(path: Path, events) -> Path:
    document = {"traceEvents": list(events), "deviceProperties": [{"name": "NVIDIA H200", "numSms": 132}]}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_nodes(path: Path, nodes) -> Path:
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": list(nodes)}))
    return path
