"""Rows of rocpd_api that are no calls: markers (text in their arguments), and what torch and others noted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from lab.recordings.capture import OP, PUSH_POP, Strings
from lab.recordings.sqlite import Database

_MARKER = "UserMarker"
_CALLS = ("", "hip", "cuda", "rpd_tracer")  # "": schema 2, which has no domains
_OPERATORS = ("function", "backward_function")


def is_range(domain: str, name: str) -> bool:
    return name == _MARKER or domain not in _CALLS


def range_columns(
    database: Database, strings: Strings, texts: dict[int, str], rows: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """text_id, name_id, kind, seq and dims_id (n,) of `rows`, columns of rocpd_api."""
    arguments = _arguments(database, rows["args"])
    keys = np.stack([rows[name] for name in ("domain", "category", "name", "args")], axis=1)
    used, which = np.unique(keys, axis=0, return_inverse=True)
    found = [
        _of_one(strings, [texts.get(one, "") for one in key[:3]], arguments.get(key[3], ""))
        for key in used.tolist()
    ]
    which = which.reshape(-1)
    kinds, text_ids, seqs, dims = (
        np.array([one[index] for one in found], dtype=np.int64)[which] for index in range(4)
    )
    bare, seq_of_text = strings.stripped(text_ids)
    return {
        "text_id": text_ids.astype(np.int32),
        "name_id": bare.astype(np.int32),
        "kind": kinds.astype(np.int8),
        "seq": np.where(seqs >= 0, seqs, seq_of_text),
        "dims_id": dims.astype(np.int32),
    }


def _of_one(strings: Strings, named: list[str], argument: str) -> tuple[int, int, int, int]:
    """(kind, text_id, seq, dims_id) of a row with this [domain, category, name] and argument."""
    domain, category, name = named
    if name == _MARKER:
        return PUSH_POP, strings.id(argument or name), -1, -1
    if domain != "torch":
        return PUSH_POP, strings.id(name), -1, -1
    noted = _noted(argument)
    seq, sizes = noted.get("seq"), noted.get("sizes")
    dims = strings.id(json.dumps(sizes, separators=(",", ":"))) if isinstance(sizes, list) else -1
    number = seq if isinstance(seq, int) and 0 <= seq < 1 << 62 else -1
    return OP if category in _OPERATORS else PUSH_POP, strings.id(name), number, dims


def _noted(argument: str) -> dict[str, Any]:
    try:
        found = json.loads(argument) if argument.startswith("{") else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _arguments(database: Database, ids: np.ndarray) -> dict[int, str]:
    """Texts of arguments by id, of these rows only: calls' arguments may hold paths."""
    table = "rocpd_ustring" if "rocpd_ustring" in database.columns else "rocpd_string"
    used = set(ids.tolist())
    if not used:
        return {}
    return database.texts(table, "id", "string", only=used)
