"""The JSON schema of manifest.json, for docs/manifest.schema.json (`make schema`)."""

from __future__ import annotations

import msgspec

from lab.core.manifest import Manifest

if __name__ == "__main__":
    print(msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Manifest)), indent=1).decode())
