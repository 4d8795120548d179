"""Small runs on a CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from lab.rooms.nan.config import NanConfig  # noqa: E402
from lab.rooms.nan.workload import __main__ as workload  # noqa: E402
from lab.rooms.nan.workload.cell import choose_cell  # noqa: E402
from lab.rooms.nan.workload.model import ByteTokenizer, load  # noqa: E402


def config(**more):
    return NanConfig(
        **{
            "experiments": ("baseline",),
            "device": "cpu",
            "max_new_tokens": 3,
            "layers": 2,
            **more,
        }
    )


def run(tmp_path, experiment, **more):
    return workload.run(config(**more), experiment, tmp_path / "steps" / experiment)


def tiny(**more):
    made = config(**more)
    return load(made, choose_cell(made, "baseline")).model


def prompt():
    return ByteTokenizer()(("dizzy",))
