"""What a GPU's counters say: ECC errors, remapped rows, slowdowns (`nvidia-smi -q`), Xid events (kernel log).

Unknown is not healthy: a counter that the driver does not give is missing from the answer, and the kernel's
log is None where this user may not read it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

MOST_CHARACTERS = 16 << 20
TIMEOUT_S = 60
GPU_HEAD = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d{1,5}),?(.{0,200})")
# Field of `nvidia-smi -q` -> the name here. Newer drivers split uncorrectable SRAM errors in two.
COUNTERS = {
    r"ECC Errors/(Volatile|Aggregate)/(DRAM|SRAM|Device Memory|.*) Uncorrectable.*": "ecc_uncorrectable",
    r"ECC Errors/(Volatile|Aggregate)/(Double Bit)/Total": "ecc_uncorrectable",
    r"ECC Errors/(Volatile|Aggregate)/(DRAM|SRAM|.*) Correctable": "ecc_correctable",
    r"Remapped Rows/Correctable Error": "rows_remapped_correctable",
    r"Remapped Rows/Uncorrectable Error": "rows_remapped_uncorrectable",
    r"Retired Pages/Double Bit ECC": "pages_retired",
}
FLAGS = {
    r"Remapped Rows/Pending": "remap_pending",
    r"Remapped Rows/Remapping Failure Occurred": "remap_failed",
    r"Retired Pages/Pending Page Blacklist": "retirement_pending",
    r"Clocks (Event|Throttle) Reasons/HW Slowdown": "hw_slowdown",
    r"Clocks (Event|Throttle) Reasons/(HW Slowdown/)?HW Thermal Slowdown": "thermal_slowdown",
    r"Clocks (Event|Throttle) Reasons/(HW Slowdown/)?HW Power Brake Slowdown": "power_brake",
}
SERIOUS = {
    "ecc_uncorrectable": "uncorrectable ECC errors",
    "rows_remapped_uncorrectable": "rows remapped after uncorrectable errors",
    "pages_retired": "pages retired after double-bit errors",
    "remap_pending": "a row remapping that waits for a reset",
    "remap_failed": "a row remapping that failed",
    "retirement_pending": "a page retirement that waits for a reset",
    "hw_slowdown": "a hardware slowdown",
    "thermal_slowdown": "a thermal slowdown",
    "power_brake": "a power brake",
}


def read_health() -> tuple[dict[str, dict[str, int]], str, dict[str, list[str]] | None, str]:
    """Counters and flags (0 or 1) by UUID, why there are none; Xid events by UUID, why they are not read."""
    code, listing = _asked("nvidia-smi", "-q")
    health = parse_health(listing) if not code else {}
    no_health = "" if health else f"nvidia-smi -q names no GPU: {listing.strip()[:200]}"
    # dmesg needs root on most systems; the journal may be open to a group.
    for command in (("journalctl", "-k", "-q", "--no-pager", "-n", "50000"), ("dmesg",)):
        code, text = _asked(*command)
        if code == 0 and text.strip():
            return health, no_health, parse_xids(text, parse_buses(listing)), ""
    return health, no_health, None, "the kernel's log cannot be read here (dmesg, journalctl -k)"


def parse_health(text: str) -> dict[str, dict[str, int]]:
    """{UUID: {name: number}} of `nvidia-smi -q`."""
    return {uuid: _numbers(fields) for uuid, _, fields in _gpus(text)}


def parse_buses(text: str) -> dict[str, str]:
    """{PCI address as the kernel's log writes it: UUID}."""
    return {_bus(address): uuid for uuid, address, _ in _gpus(text)}


def parse_xids(text: str, buses: Mapping[str, str]) -> dict[str, list[str]]:
    """{UUID: ["79: GPU has fallen off the bus", ...]}; an address without GPU stands for itself."""
    events: dict[str, list[str]] = {}
    for address, number, message in XID.findall(text[-MOST_CHARACTERS:]):
        words = re.sub(r"[^\x20-\x7e]", "?", message).strip()
        events.setdefault(buses.get(_bus(address), f"PCI {address}"), []).append(f"{number}: {words}")
    return {uuid: listed[-20:] for uuid, listed in events.items()}


def concerns(numbers: Mapping[str, int]) -> list[str]:
    """Sentences on the serious ones among these counters."""
    return [
        f"{numbers[name]} {words}" if name in COUNTERS.values() else words
        for name, words in SERIOUS.items()
        if numbers.get(name)
    ]


def _gpus(text: str) -> list[tuple[str, str, dict[str, str]]]:
    """(UUID, PCI address, {path: value}) per GPU, by the indentation of the report."""
    reports: list[tuple[str, str, dict[str, str]]] = []
    fields: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    address = ""

    def close() -> None:
        if address and "GPU UUID" in fields:
            reports.append((fields["GPU UUID"], address, dict(fields)))

    for line in text[:MOST_CHARACTERS].splitlines():
        if head := GPU_HEAD.match(line):
            close()
            address, fields, path = head[1], {}, []
            continue
        depth = len(line) - len(line.lstrip(" "))
        name, colon, value = (part.strip() for part in line.partition(" : "))
        while path and path[-1][0] >= depth:
            path.pop()
        if colon and name:
            fields["/".join([*(one for _, one in path), name])] = value
        if name:
            path.append((depth, name))
    close()
    return reports


def _numbers(fields: Mapping[str, str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for path, value in fields.items():
        for pattern, name in COUNTERS.items():
            if re.fullmatch(pattern, path) and value.isdecimal():
                # Volatile counts since the driver was loaded, aggregate ones since the board was made.
                numbers[name] = max(numbers.get(name, 0), int(value))
                break
        for pattern, name in FLAGS.items():
            if re.fullmatch(pattern, path) and value in ("Yes", "No", "Active", "Not Active"):
                numbers[name] = int(value in ("Yes", "Active"))
    return numbers


def _bus(address: str) -> str:
    """`0000:18:00` of `00000000:18:00.0` and of `0000:18:00`."""
    parts = address.lower().split(".")[0].split(":")
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]])


def _asked(*command: str) -> tuple[int, str]:
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return process.returncode, process.stdout if process.returncode == 0 else process.stdout + process.stderr
