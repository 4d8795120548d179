"""A training config from a preset or a YAML file, with overrides."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from lab.errors import ConfigError, MissingError
from lab.rooms.sweep.config.checks import check_train_config
from lab.rooms.sweep.config.train import TrainConfig

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
    check_train_config(config, config_name)
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
