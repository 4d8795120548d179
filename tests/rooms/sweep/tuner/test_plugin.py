"""The bench's tuner plugin, called as NCCL would call it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.rooms.sweep.tuner.file import Row, text_of

SOURCE = Path(__file__).parents[4] / "bench/nccl_tuner.c"
Init = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
Info = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int)),
)
Destroy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Plugin(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("init", Init), ("info", Info), ("destroy", Destroy)]


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    compiler = shutil.which("cc") or pytest.skip("no C compiler here")
    library = tmp_path / "tuner.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    rows = [Row("allgather", 4096, 1 << 20, "ring", "simple", 8, -1, 2)]
    (tmp_path / "tuner.conf").write_text(text_of(rows, ["a comment, with commas"] * 9, ["a note"]))
    libc = ctypes.CDLL(None)
    libc.setenv(b"NCCL_TUNER_CONFIG_FILE", str(tmp_path / "tuner.conf").encode(), 1)
    yield Plugin.in_dll(ctypes.CDLL(str(library)), "ncclTunerPlugin_v4")
    libc.unsetenv(b"NCCL_TUNER_CONFIG_FILE")


def _asked(
    plugin: Plugin, collective: int, num_bytes: int, ranks: int, cost: float = 5.0
) -> tuple[float, int]:
    context, channels = ctypes.c_void_p(), ctypes.c_int(24)
    table = (ctypes.c_float * 21)(*[cost] * 21)
    assert plugin.init(ranks, 1, None, ctypes.addressof(context)) == 0
    assert plugin.info(context, collective, num_bytes, 1, ctypes.addressof(table), 7, 3, 0, channels) == 0
    plugin.destroy(context)
    assert all(value == cost for at, value in enumerate(table) if at != 5)  # only ring with simple may change
    return table[5], channels.value


def test_rows_that_lab_writes_are_applied_to_their_sizes_and_ranks(plugin):
    assert _asked(plugin, 2, 4096, 2) == (0.0, 8)
    assert _asked(plugin, 2, 4095, 2) == (5.0, 24)  # below the range
    assert _asked(plugin, 4, 4096, 2) == (5.0, 24)  # all-reduce
    assert _asked(plugin, 2, 4096, 8) == (5.0, 24)  # other ranks
    assert _asked(plugin, 2, 4096, 2, cost=-1.0) == (-1.0, 24)  # not usable there
