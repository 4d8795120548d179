"""One GPU, as the host sees it."""

from __future__ import annotations

import msgspec


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU as the host sees it. A value that the driver does not report is None."""

    vendor: str  # "nvidia" | "amd"
    index: int
    uuid: str
    name: str = ""
    driver: str | None = None
    mem_bytes: int | None = None
    power_limit_w: float | None = None
    max_sm_mhz: float | None = None
    max_mem_mhz: float | None = None
    arch: str | None = None  # "sm_90", "gfx942"
    render_node: str | None = None  # AMD: the device node that gives access to this GPU alone
