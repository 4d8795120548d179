"""A training config from a preset or a YAML file, with overrides."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from lab.core.words import plural
from lab.errors import ConfigError, MissingError
from lab.rooms.sweep.config.train import ProfilingConfig, TrainConfig

PRESET_DIR = Path(__file__).parents[1] / "presets"
# A training config is a page of text; anything larger is another kind of file.
MAX_CONFIG_BYTES = 1 << 20


def load_train_config(source: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a preset (by name) or a YAML file, apply every `dotted.key=value` in order, and check it.

    Raises MissingError (no such file or preset) and ConfigError (YAML, unknown key, type, contradiction).
    """
    path = _resolve(source)
    data = _read_yaml(path)
    for override in overrides:
        _apply_override(data, override)
    config_name = f"{path} with {', '.join(overrides)}" if overrides else str(path)
    try:
        # Not strict: YAML 1.1 reads 2e-4 as a string.
        config = msgspec.convert(data, TrainConfig, strict=False)
    except msgspec.ValidationError as error:
        unknown = re.search(r"unknown field `(.+?)`(?: - at `(.+?)`)?", str(error))
        if unknown is None:
            raise ConfigError(f"does not fit the schema: {error}", location=config_name) from error
        raise ConfigError(
            f"unknown key {unknown[1]!r} at `{unknown[2] or '$'}`",
            location=config_name,
            fix=_did_you_mean(unknown[1], _all_keys()),
        ) from error
    for contradiction, fix in _contradictions(config):
        raise ConfigError(contradiction, location=config_name, fix=fix)
    return config


def dump_train_config(config: TrainConfig) -> str:
    """The whole config as YAML, defaults included; `load_train_config` reads it back equal."""
    return yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False)


def preset_names() -> list[str]:
    """The names of the presets."""
    return sorted(path.stem for path in PRESET_DIR.glob("*.yaml"))


def _resolve(source: str | Path) -> Path:
    path = Path(source)
    if isinstance(source, str) and source in preset_names():
        return PRESET_DIR / f"{source}.yaml"
    if not path.is_file():
        raise MissingError(
            f"no training config {str(source)!r}: it is neither a preset nor a file",
            location=path,
            fix=f"presets: {', '.join(preset_names())}. {_did_you_mean(str(source), preset_names()) or ''}",
        )
    return path


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"larger than {MAX_CONFIG_BYTES} bytes: not a training config", location=path)
        data = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise MissingError(f"cannot read the training config: {error.strerror}", location=path) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"not valid YAML: {problem}", location=f"{path}{line}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"not a training config: expected sections, found {type(data).__name__}",
            location=path,
            fix=f"write it in the form of a run's train.yaml, or name a preset: {', '.join(preset_names())}",
        )
    return data


def _apply_override(data: dict[str, Any], override: str) -> None:
    """Set one `dotted.key=value` in `data`, in place; the value is read as YAML."""
    config_name = f"override {override!r}"
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(
            "not an override of the form dotted.key=value",
            location=config_name,
            fix="e.g. training.max_steps=20",
        )
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError("the value is not valid YAML", location=config_name) from error
    for part in parts[:-1]:
        child = data.get(part)
        data[part] = data = dict(child) if isinstance(child, Mapping) else {}
    data[parts[-1]] = value


def _all_keys() -> list[str]:
    """The names of all sections and of their keys."""
    sections = msgspec.to_builtins(TrainConfig())
    return [*sections, *(key for section in sections.values() if section for key in section)]


def _did_you_mean(word: str, names: Sequence[str]) -> str | None:
    close = difflib.get_close_matches(word, names, n=2)
    return f"did you mean {' or '.join(close)}?" if close else None


def planned_steps(config: TrainConfig, world_size: int) -> tuple[int, int]:
    """(optimizer steps in all, optimizer steps per epoch) for `world_size` ranks.

    Raises ConfigError when the profiler's windows would not end.
    """
    training = config.training
    samples_per_step = training.batch_size * training.gradient_accumulation * world_size
    per_epoch = max(1, config.dataset.num_samples // samples_per_step)
    total = min(training.max_steps, training.epochs * per_epoch)
    if total < profiler_steps(config.profiling):
        raise ConfigError(
            f"only {plural(total, 'step')} will run ({plural(training.epochs, 'epoch')} of {per_epoch}), "
            f"but the profiler needs {profiler_steps(config.profiling)}: no trace would be written",
            location="dataset.num_samples",
            fix="raise dataset.num_samples or training.epochs, or lower training.batch_size",
        )
    return total, per_epoch


def profiler_steps(profiling: ProfilingConfig) -> int:
    """Optimizer steps that the profiler's windows need; 0 when it is off."""
    window = profiling.wait + profiling.warmup + profiling.active
    return window * profiling.repeat if profiling.enabled else 0


def ignored_keys(config: TrainConfig) -> list[str]:
    """Dotted keys that the config sets and that have no effect here, in the order of the schema."""
    keys = ("output_dir", "additional_compute_streams", "lightweight_op_waves")
    ignored = [f"training.{key}" for key in keys if getattr(config.training, key) is not None]
    sections = ("streams", "dataloader", "tracelens")
    return ignored + [name for name in sections if getattr(config, name) is not None]


def _contradictions(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Pairs of a contradiction between keys and its fix."""
    model, data, profiling = config.model, config.dataset, config.profiling
    needed = profiler_steps(profiling)
    if model.model_dim % model.num_heads:
        text = f"$.model.model_dim {model.model_dim} is not a multiple of $.model.num_heads {model.num_heads}"
        yield text, "choose a num_heads that divides model_dim"
    if config.training.max_steps < needed:
        yield (
            f"$.training.max_steps {config.training.max_steps} is below the {plural(needed, 'step')} of "
            "(wait + warmup + active) * repeat in $.profiling: no trace would be written",
            f"set training.max_steps={needed} or more",
        )
    if data.vocab_size > model.vocab_size:
        yield (
            f"$.dataset.vocab_size {data.vocab_size} is above $.model.vocab_size {model.vocab_size}: "
            "ids would fall outside the embedding",
            "set both to the same value",
        )
    dense = [(part.num_dense_features, part.dense_dim) for part in (model, data)]
    if model.kind == "encoder" and dense[0] != dense[1]:
        text = "num_dense_features and dense_dim differ between $.dataset and $.model"
        yield text, "set both to the same values"
    if not all(0 <= beta < 1 for beta in config.optimizer.betas):
        yield "$.optimizer.betas must be in [0, 1)", "the published values are [0.9, 0.985]"
    if config.scheduler.warmup_steps >= config.scheduler.total_steps:
        yield "$.scheduler.warmup_steps must be below $.scheduler.total_steps", "lower warmup_steps"
    if profiling.enabled and not (profiling.chrome_trace or profiling.tensorboard):
        yield (
            "$.profiling is enabled but neither chrome_trace nor tensorboard is: the trace would be lost",
            "set profiling.chrome_trace=true, or profiling.enabled=false",
        )
