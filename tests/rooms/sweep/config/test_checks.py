"""What a training config means as a whole: planned steps, contradictions, keys without effect."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lab.errors import ConfigError
from lab.rooms.sweep.config.load import (
    ignored_keys,
    load_train_config,
    planned_steps,
    preset_names,
    profiler_steps,
)


def test_every_preset_loads_and_its_profiler_windows_end() -> None:
    assert preset_names() == ["encoder20", "llm", "llm_wide", "tiny"]
    for name in preset_names():
        config = load_train_config(name)
        total, _ = planned_steps(config, world_size=8)
        assert total >= profiler_steps(config.profiling) > 0
        assert not config.profiling.with_stack and config.profiling.trace_filename == "trace.json"
        assert ignored_keys(config) == []


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("model.num_heads=3", "num_heads"),
        ("training.max_steps=3", "max_steps"),
        ("model.vocab_size=10", "vocab_size"),
        ("model.dense_dim=8", "dense_dim"),
        ("optimizer.betas=[0.9, 1.5]", "betas"),
        ("scheduler.warmup_steps=100", "warmup_steps"),
        ("profiling.chrome_trace=false", "chrome_trace"),
    ],
)
def test_contradictions_are_refused(override: str, word: str) -> None:
    load_train_config("tiny")
    with pytest.raises(ConfigError, match=word):
        load_train_config("tiny", [override])


def test_the_profiler_switched_off_asks_for_no_steps() -> None:
    assert (
        load_train_config("tiny", ["training.max_steps=1", "profiling.enabled=false"]).training.max_steps == 1
    )


def test_keys_without_effect_load_and_are_reported(tmp_path: Path) -> None:
    published = {
        "training": {"additional_compute_streams": 4, "lightweight_op_waves": 3, "output_dir": "artifacts"},
        "streams": {"num_streams": 6, "stream_assignments": {"compute": ["dev6_stream3"]}},
        "dataloader": {"num_workers": 8, "pin_memory": True},
        "tracelens": {"enabled": False},
    }
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(published))
    config = load_train_config(path)
    assert ignored_keys(config) == [
        "training.output_dir",
        "training.additional_compute_streams",
        "training.lightweight_op_waves",
        "streams",
        "dataloader",
        "tracelens",
    ]


def test_a_data_set_too_small_for_the_profiler_is_refused() -> None:
    config = load_train_config("tiny", ["dataset.num_samples=16"])
    assert planned_steps(config, world_size=1) == (4, 4)
    with pytest.raises(ConfigError, match="no trace"):
        planned_steps(config, world_size=2)
