"""Schemas of ops as torch prints them, taken apart. Pure text.

Nothing is ever substituted: what cannot be resolved is an Unresolved with its reason.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import Any

import msgspec

ALIAS = re.compile(r"\([a-z|!>\-* ]*\)")
TENSOR_LISTS = ("Tensor[]", "Tensor?[]")
CALL = re.compile(r"^(?P<name>[\w:]+)(?:\.(?P<overload>\w+))?\(")


class Unresolved(Exception):
    """Why a call has no exact overload or lacks an argument."""


class Param(msgspec.Struct, frozen=True):
    """One parameter of a schema; default is the schema's own text."""

    name: str
    type: str
    default: str | None = None
    kwarg_only: bool = False


class Schema(msgspec.Struct, frozen=True):
    name: str
    overload: str
    params: tuple[Param, ...]
    text: str = ""


@lru_cache(maxsize=4096)
def parse_schema(text: str) -> Schema:
    """`aten::mul.Tensor(Tensor self, Tensor other) -> Tensor`, taken apart. Raises Unresolved."""
    head = CALL.match(text)
    if not head:
        raise Unresolved(f"not a schema: {text[:80]!r}")
    inside = _until_closed(text, head.end())
    params, kwarg_only = [], False
    for piece in split_args(inside):
        if piece == "*":
            kwarg_only = True
            continue
        declared, _, default = piece.partition("=")
        kind, _, name = declared.rpartition(" ")
        params.append(Param(name, _plain_type(kind), default or None, kwarg_only))
    return Schema(head["name"], head["overload"] or "", tuple(params), text)


def _plain_type(kind: str) -> str:
    """`Tensor(a!)[]` -> `Tensor[]`, `SymInt[2]` -> `int[]`."""
    plain = re.sub(r"\[\d*\]", "[]", ALIAS.sub("", kind.strip()))
    return plain.replace("SymInt", "int").replace("__torch__.", "")


def _until_closed(text: str, start: int) -> str:
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return text[start:index]
    raise Unresolved(f"unclosed bracket in the schema {text[:80]!r}")


def split_args(text: str) -> list[str]:
    """The parts between commas that are outside brackets."""
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[begin:index].strip())
            begin = index + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


def literal_of(text: str) -> Any:
    """A value as schemas and traces write it: None, True, 1, 1., [1, 2], inf, "text"."""
    stripped = text.strip()
    if stripped in ("inf", "-inf", "nan"):
        return stripped
    if stripped in _WORDS:
        return _WORDS[stripped]
    try:
        return ast.literal_eval(stripped)
    except (ValueError, SyntaxError):
        return stripped


# Named constants of schemas; numbers as in c10/core (MemoryFormat, Layout, Reduction).
_WORDS = {"contiguous_format": 0, "preserve_format": 1, "channels_last": 2, "strided": 0, "Mean": 1, "Sum": 2}
