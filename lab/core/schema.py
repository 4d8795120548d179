"""`python -m lab.core.schema FILE` writes the JSON schema of the manifest."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.core.manifest import Manifest

if __name__ == "__main__":
    write_atomic(
        Path(sys.argv[1]),
        msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Manifest)), indent=1) + b"\n",
    )
