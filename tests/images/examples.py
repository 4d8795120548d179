"""What a probe found in an example of lab/cuda, and the lock it was built from."""

from __future__ import annotations

from lab.images.probe import Contents

LOCK = (
    "torch==2.10.0 \\\n    --hash=sha256:aa\n"
    "numpy==2.2.6 ; python_full_version < '3.11' \\\n    --hash=sha256:bb\n"
    "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:cc\n"
)
CONTENTS = Contents(
    python="3.12",
    lab="0.1.0",
    wheel="w",
    command="/opt/lab/bin/lab",
    torch=True,
    uid=1234,
    root_writable=False,
    archs=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    cuda="12.8",
    packages={"torch": "2.10.0", "numpy": "2.5.5"},
    tools={"nsys": "/x", "ncu": "/x", "nvdisasm": "/x", "nvcc": None},
)
