"""PyTorch execution traces (chakra JSON): nodes by the record-function id that a Kineto trace shares."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError, MissingError, not_here


class _Attribute(msgspec.Struct, frozen=True, gc=False):
    name: str
    value: Any = None


class Node(msgspec.Struct, frozen=True):
    """One op; inputs and outputs hold values, shapes, types and (since schema 1.1.1) strides per argument."""

    id: int
    name: str
    ctrl_deps: int = -1
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    attrs: tuple[_Attribute, ...] = ()

    def attribute(self, name: str) -> Any:
        return next((attr.value for attr in self.attrs if attr.name == name), None)

    @property
    def op_schema(self) -> str:
        return str(self.attribute("op_schema") or "")


class _Document(msgspec.Struct):
    schema: str
    nodes: tuple[Node, ...]


def read_execution_trace(path: Path) -> dict[int, Node]:
    """Nodes by rf_id, above 0.

    Raises MissingError, or BadDataError for a file that is truncated, foreign or too old.
    """
    data = read_json_bytes(path, "execution trace")
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.DecodeError as error:
        raise BadDataError(
            f"not an execution trace: {error}",
            location=path,
            fix="record it again; an observer that is not stopped leaves a truncated file",
        ) from error
    nodes = {}
    for node in document.nodes:
        rf_id = node.attribute("rf_id")
        if isinstance(rf_id, int) and rf_id > 0:
            nodes[rf_id] = node
    if not nodes:
        raise BadDataError(
            f"no node of this execution trace (schema {document.schema}) has an rf_id",
            location=path,
            fix="record it with torch 2.1 or newer",
        )
    return nodes


def read_json_bytes(path: Path, title: str) -> bytes:
    """The bytes of a JSON file, gzip or plain. Raises MissingError and BadDataError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise not_here(f"no such file: {title}", path) from error
    except OSError as error:
        raise MissingError(f"cannot read the {title}: {error.strerror}", location=path) from error
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise BadDataError(f"the {title} is truncated or damaged: {error}", location=path) from error
    if not data.strip():
        raise BadDataError(f"the {title} is empty", location=path)
    return data
