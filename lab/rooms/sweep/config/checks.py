"""What a training config means as a whole: its steps, contradicting keys, keys without effect."""

from __future__ import annotations

from collections.abc import Iterator

from lab.core.words import plural
from lab.errors import ConfigError
from lab.rooms.sweep.config.train import ProfilingConfig, TrainConfig


def check_train_config(config: TrainConfig, config_name: str | None = None) -> None:
    """Raise ConfigError for the first pair of keys that contradict each other."""
    for contradiction, fix in _contradictions(config):
        raise ConfigError(contradiction, location=config_name, fix=fix)


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
