"""Shapes and other lists that a recording holds as JSON text."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from lab.stats.columns import objects


def json_list(text: str) -> list[Any]:
    value = json.loads(text) if text else []
    return value if isinstance(value, list) else []


def int_sizes(item: Any) -> list[int]:
    is_list = isinstance(item, list) and all(isinstance(size, int) for size in item)
    return item if is_list else []


def column_of(values: list[Any]) -> np.ndarray:
    if values and not isinstance(values[0], str):
        return np.array(values)
    return objects(values)
