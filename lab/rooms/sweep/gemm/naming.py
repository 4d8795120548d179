"""The names of report files."""

from __future__ import annotations

from pathlib import Path

from lab.rooms.sweep.knobs import Key


def report_name(kind: str, setting: Key, ending: str) -> Path:
    """Path of a configuration's report: {T}thread/{kind}_reports/..{C}ch..xlsx, without unknown numbers."""
    threads, channel, algorithm, protocol, repeat = setting
    start = {"individual": "perf", "collective": "collective"}[kind]
    setting_parts = [f"{channel}ch" if channel else "", algorithm, protocol]
    parts = [start, *setting_parts, ending, f"repeat{repeat}" if repeat > 1 else ""]
    folder = Path(f"{threads}thread") if threads else Path()
    return folder / f"{kind}_reports" / f"{'_'.join(filter(None, parts))}.xlsx"
