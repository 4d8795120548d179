"""Rows of rocpd_api that are not calls: markers (their arguments hold the text), and operators of torch."""

from __future__ import annotations

import json

import numpy as np

from lab.recordings.capture import OP, PUSH_POP, Strings
from lab.recordings.rocm import Columns, json_object
from lab.recordings.sqlite import Database
from lab.stats.columns import per_distinct

_MARKER = "UserMarker"
_CALLS = ("", "hip", "cuda", "rpd_tracer")  # "": schema 2, which has no domains
_OPERATORS = ("function", "backward_function")


def is_range(domain: str, name: str) -> bool:
    return name == _MARKER or domain not in _CALLS


def range_columns(database: Database, strings: Strings, texts: dict[int, str], rows: Columns) -> Columns:
    """text_id, name_id, kind, seq and dims_id (n,) of `rows`, columns of rocpd_api."""
    arguments = _arguments(database, rows["args"])

    def of_key(key: list[int]) -> tuple[int, int, int, int]:
        *named, argument = key
        return _columns_of(strings, [texts.get(text, "") for text in named], arguments.get(argument, ""))

    keys = np.stack([rows[name] for name in ("domain", "category", "name", "args")], axis=1)
    kind, text_id, seq, dims_id = per_distinct(keys, of_key, width=4).T
    name_id, seq_of_text = strings.stripped(text_id)
    return {
        "text_id": text_id.astype(np.int32),
        "name_id": name_id.astype(np.int32),
        "kind": kind.astype(np.int8),
        "seq": np.where(seq >= 0, seq, seq_of_text),
        "dims_id": dims_id.astype(np.int32),
    }


def _columns_of(strings: Strings, named: list[str], argument: str) -> tuple[int, int, int, int]:
    """(kind, text_id, seq, dims_id) of a row with this [domain, category, name] and argument."""
    domain, category, name = named
    if name == _MARKER:
        return PUSH_POP, strings.id(argument or name), -1, -1
    if domain != "torch":
        return PUSH_POP, strings.id(name), -1, -1
    details = json_object(argument if argument.startswith("{") else "")
    seq, sizes = details.get("seq"), details.get("sizes")
    dims = strings.id(json.dumps(sizes, separators=(",", ":"))) if isinstance(sizes, list) else -1
    number = seq if isinstance(seq, int) and 0 <= seq < 1 << 62 else -1
    return OP if category in _OPERATORS else PUSH_POP, strings.id(name), number, dims


def _arguments(database: Database, ids: np.ndarray) -> dict[int, str]:
    """Texts of arguments by id, of these rows only: calls' arguments may hold paths."""
    table = "rocpd_ustring" if "rocpd_ustring" in database.columns else "rocpd_string"
    used = set(ids.tolist())
    return database.texts(table, "id", "string", only=used) if used else {}
