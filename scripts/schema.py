"""The JSON schema of manifest.json, for docs/manifest.schema.json (`make schema`)."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from lab.core.manifest import Manifest


def without_indents(node: Any) -> Any:
    """Docstrings without their indents, which msgspec has kept before 0.23."""
    if isinstance(node, list):
        return [without_indents(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {
        key: inspect.cleandoc(value)
        if key == "description" and isinstance(value, str)
        else without_indents(value)
        for key, value in node.items()
    }


if __name__ == "__main__":
    schema = without_indents(msgspec.json.schema(Manifest))
    print(msgspec.json.format(msgspec.json.encode(schema), indent=1).decode())
