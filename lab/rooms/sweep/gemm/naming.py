"""The names of report files."""

from __future__ import annotations

from pathlib import Path

from lab.rooms.sweep.layout import ConfigDir


def setting_of(config: ConfigDir) -> tuple[int, int, int]:
    """(threads, channel, repeat); 0 where no folder name gives the number."""
    return config.threads or 0, config.channels or 0, config.repeat


def report_name(kind: str, setting: tuple[int, int, int], ending: str) -> Path:
    """Path of a configuration's report: {T}thread/{kind}_reports/..{C}ch..xlsx, without unknown numbers."""
    threads, channel, repeat = setting
    start = {"individual": "perf", "collective": "collective"}[kind]
    parts = [start, f"{channel}ch" if channel else "", ending, f"repeat{repeat}" if repeat > 1 else ""]
    folder = Path(f"{threads}thread") if threads else Path()
    return folder / f"{kind}_reports" / f"{'_'.join(filter(None, parts))}.xlsx"
