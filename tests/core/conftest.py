"""What reaches the disk, in order."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def synced(monkeypatch):
    """The paths that were flushed to the disk or renamed into place, in order."""
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle):
        done.append(("sync", os.path.realpath(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def noted_replace(old, new):
        done.append(("rename", str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    return done
