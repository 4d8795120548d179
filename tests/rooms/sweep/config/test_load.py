"""Training configs: what loads, what is refused and what the refusal says, and what has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lab.errors import ConfigError, MissingError
from lab.rooms.sweep.config.load import (
    dump_train_config,
    ignored_keys,
    load_train_config,
    planned_steps,
    preset_names,
    profiler_steps,
)
from lab.rooms.sweep.config.train import TrainConfig


def write(folder: Path, text: str) -> Path:
    path = folder / "train.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_train_config(write(folder, text), overrides)
    return str(caught.value)


def test_an_empty_file_gives_the_published_values(tmp_path: Path) -> None:
    config = load_train_config(write(tmp_path, ""))
    assert config == TrainConfig()
    assert (config.training.batch_size, config.training.gradient_accumulation, config.training.max_steps) == (
        512,
        4,
        10,
    )
    assert (config.optimizer.lr, config.optimizer.betas) == (2e-4, (0.9, 0.985))
    assert (config.dataset.sequence_length, config.dataset.sparse_features, config.dataset.seed) == (
        176,
        48,
        2025,
    )
    assert (config.model.model_dim, config.model.num_layers, config.model.mlp_hidden_dim) == (1024, 20, 4608)
    assert (config.profiling.wait, config.profiling.warmup, config.profiling.active) == (1, 1, 5)
    assert config.distributed.mode == "ddp" and config.distributed.bucket_cap_mb == 32


def test_all_overrides_are_applied_in_order() -> None:
    config = load_train_config(
        "tiny", ["training.max_steps=100", "optimizer.lr=1e-3", "training.max_steps=50"]
    )
    assert (config.training.max_steps, config.optimizer.lr) == (50, 1e-3)


def test_an_override_reaches_a_section_that_the_file_lacks(tmp_path: Path) -> None:
    config = load_train_config(write(tmp_path, "training: {max_steps: 8}"), ["streams.num_streams=2"])
    assert config.streams == {"num_streams": 2}


@pytest.mark.parametrize(
    "override", ["training.max_steps", "=3", "training..max_steps=3", "training.max_steps=[", "a.b=1"]
)
def test_a_broken_override_is_named(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_train_config("tiny", [override])
    assert override in str(caught.value)


def test_an_unknown_key_is_refused_with_the_close_one(tmp_path: Path) -> None:
    text = refusal(tmp_path, "training: {batchsize: 4}")
    assert "'batchsize'" in text and "$.training" in text and "did you mean batch_size" in text
    assert "did you mean training" in refusal(tmp_path, "trainin: {}")
    assert "did you mean model_dim" in refusal(tmp_path, "", "model.modeldim=3")


def test_a_wrong_type_is_refused_with_its_path_and_file(tmp_path: Path) -> None:
    text = refusal(tmp_path, "model: {num_layers: many}")
    assert "$.model.num_layers" in text and "train.yaml" in text


def test_a_value_below_its_limit_is_refused(tmp_path: Path) -> None:
    assert "$.training.batch_size" in refusal(tmp_path, "training: {batch_size: 0}")


def test_a_trace_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    assert "$.profiling.trace_filename" in refusal(tmp_path, "profiling: {trace_filename: ../../x.json}")


def test_yaml_errors_name_the_line(tmp_path: Path) -> None:
    assert "train.yaml, line 2, column 8" in refusal(tmp_path, "training: {}\nmodel: ]\n")


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "just words", "!!python/object/apply:os.system ['true']", "\x00"]
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    refusal(tmp_path, text)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    assert "not a training config" in refusal(tmp_path, "#" * (2 << 20))


def test_a_missing_file_names_the_presets() -> None:
    with pytest.raises(MissingError, match=r"tiny[\s\S]*did you mean encoder20"):
        load_train_config("encoder2")


@pytest.mark.parametrize("name", ["tiny", "encoder20", "llm", "llm_wide"])
def test_a_dumped_config_loads_back_equal(tmp_path: Path, name: str) -> None:
    config = load_train_config(name, ["streams.num_streams=3"])
    assert load_train_config(write(tmp_path, dump_train_config(config))) == config


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
