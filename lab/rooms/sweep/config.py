"""Every knob of the sweep room: the training that is measured, and the sweep around it.

`TrainConfig` reads the YAML schema of the public aorta GEMM-overlap configs (ROCm/aorta,
`config/gemm_overlap/`); its defaults are the values published there, except where a field says otherwise.
Keys that mean nothing here are accepted, so that such files load, and named by `ignored_keys`.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from lab.errors import ConfigError, MissingError

PRESET_DIR = Path(__file__).parent / "presets"
# A training config is a page of text; anything bigger is some other file.
MAX_CONFIG_BYTES = 1 << 20


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections; `frozen` is repeated below because type checkers do not inherit it."""


def _help(text: str, **limits: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **limits)


class TrainingConfig(_Section, frozen=True):
    epochs: Annotated[int, _help("passes over dataset.num_samples", ge=1)] = 1
    batch_size: Annotated[int, _help("samples per rank and micro-step", ge=1)] = 512
    gradient_accumulation: Annotated[int, _help("micro-steps per optimizer step", ge=1)] = 4
    mixed_precision: Annotated[
        Literal["none", "bf16", "fp16"], _help("dtype of the GEMMs; weights stay float32; fp16 needs a GPU")
    ] = "bf16"
    max_steps: Annotated[int, _help("optimizer steps at most", ge=1)] = 10
    grad_clip_norm: Annotated[float, _help("gradient 2-norm limit; 0 = measure only", ge=0)] = 1.0
    output_dir: Annotated[str | None, _help("ignored: --out says where")] = None
    log_interval: Annotated[int, _help("optimizer steps between two messages", ge=1)] = 20
    additional_compute_streams: Annotated[int | None, _help("ignored (published: 4)")] = None
    lightweight_op_waves: Annotated[int | None, _help("ignored (published: 3)")] = None


class OptimizerConfig(_Section, frozen=True):
    lr: Annotated[float, _help("AdamW peak learning rate", gt=0)] = 2e-4
    weight_decay: Annotated[float, _help("AdamW weight decay", ge=0)] = 0.01
    betas: Annotated[tuple[float, float], _help("AdamW betas, each in [0, 1)")] = (0.9, 0.985)


class SchedulerConfig(_Section, frozen=True):
    warmup_steps: Annotated[int, _help("optimizer steps of linear warm-up", ge=0)] = 200
    total_steps: Annotated[int, _help("optimizer step at which the cosine reaches zero", ge=1)] = 2200


class DatasetConfig(_Section, frozen=True):
    num_samples: Annotated[int, _help("samples per epoch over all ranks (synthetic)", ge=1)] = 200_000
    sequence_length: Annotated[int, _help("tokens per sample", ge=1)] = 176
    dense_dim: Annotated[int, _help("floats per dense feature", ge=1)] = 256
    sparse_features: Annotated[int, _help("sparse ids per token", ge=1)] = 48
    vocab_size: Annotated[int, _help("ids are drawn from [0, vocab_size)", ge=2)] = 350_000
    num_dense_features: Annotated[int, _help("dense features per token", ge=1)] = 32
    seed: Annotated[int, _help("weights use seed, inputs and dropout use seed + rank", ge=0)] = 2025


class ModelConfig(_Section, frozen=True):
    kind: Annotated[
        Literal["encoder", "decoder"], _help("encoder: ranking model as published; decoder: causal LLM")
    ] = "encoder"
    vocab_size: Annotated[int, _help("rows of the embedding", ge=2)] = 350_000
    embedding_dim: Annotated[int, _help("columns of the embedding (encoder only)", ge=1)] = 256
    num_dense_features: Annotated[int, _help("dense features per token (encoder only)", ge=1)] = 32
    dense_dim: Annotated[int, _help("floats per dense feature (encoder only)", ge=1)] = 256
    model_dim: Annotated[int, _help("width of the residual stream", ge=1)] = 1024
    num_heads: Annotated[int, _help("attention heads", ge=1)] = 16
    num_layers: Annotated[int, _help("Transformer layers", ge=1)] = 20
    dropout: Annotated[float, _help("dropout probability (encoder only)", ge=0, lt=1)] = 0.1
    mlp_hidden_dim: Annotated[int, _help("width of the feed-forward layer", ge=1)] = 4608


class FsdpConfig(_Section, frozen=True):
    sharding_strategy: Annotated[
        Literal["full_shard", "shard_grad_op"], _help("shard weights too, or only gradients and optimizer")
    ] = "full_shard"
    backward_prefetch: Annotated[
        Literal["BACKWARD_PRE", "BACKWARD_POST"] | None, _help("FSDP1 only; FSDP2 always prefetches early")
    ] = "BACKWARD_PRE"
    use_orig_params: Annotated[bool, _help("FSDP1 only; always so in FSDP2")] = True
    limit_all_gathers: Annotated[bool, _help("FSDP1 only; always so in FSDP2")] = True
    forward_prefetch: Annotated[bool, _help("gather layer i+1 while layer i computes")] = True
    sync_module_states: Annotated[bool, _help("FSDP1 only: copy rank 0's weights to all")] = True
    param_init_device: Annotated[
        Literal["meta", "cpu", "cuda"],
        _help("meta: allocate only on the run's device, after sharding; cpu; cuda: the run's device at once"),
    ] = "meta"


class DistributedConfig(_Section, frozen=True):
    backend: Annotated[
        Literal["auto", "nccl", "gloo"],
        _help("auto: nccl (RCCL on AMD) with a GPU, else gloo; gloo = CPU run"),
    ] = "auto"
    mode: Annotated[Literal["ddp", "fsdp"], _help("replicate (DDP) or shard (FSDP) the model")] = "ddp"
    bucket_cap_mb: Annotated[int, _help("DDP gradient bucket, MiB", ge=1)] = 32
    gradient_as_bucket_view: Annotated[bool, _help("DDP: gradients live in the buckets")] = True
    static_graph: Annotated[bool, _help("DDP: the same graph at every step")] = True
    find_unused_parameters: Annotated[bool, _help("DDP: search for parameters without gradient")] = False


class CompileConfig(_Section, frozen=True):
    enabled: Annotated[bool, _help("torch.compile the model (torch >= 2)")] = False
    backend: Annotated[str, _help("torch.compile backend")] = "inductor"
    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
        _help("inductor mode; other backends take none"),
    ] = "reduce-overhead"
    fullgraph: Annotated[bool, _help("a graph break is an error")] = False
    dynamic: Annotated[bool, _help("compile for changing shapes")] = False


class StreamsConfig(_Section, frozen=True):
    """Ignored: nothing here was read by the original either."""

    num_streams: int = 6
    high_priority: tuple[str, ...] = ("allreduce", "reducescatter")
    stream_assignments: dict[str, Any] = {}


class DataloaderConfig(_Section, frozen=True):
    """Ignored: the inputs are made on the device, so that copies from the host do not dominate the step."""

    num_workers: int = 8
    pin_memory: bool = True


class LoggingConfig(_Section, frozen=True):
    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], _help("least level of messages")] = "INFO"


class ProfilingConfig(_Section, frozen=True):
    enabled: Annotated[bool, _help("record Kineto traces")] = True
    wait: Annotated[int, _help("steps without profiler in each window", ge=0)] = 1
    warmup: Annotated[int, _help("steps recorded and thrown away", ge=0)] = 1
    active: Annotated[int, _help("steps in the trace", ge=1)] = 5
    repeat: Annotated[int, _help("windows; each gives one trace per rank", ge=1)] = 1
    record_shapes: Annotated[bool, _help("input shapes of every op (the GEMM groups need them)")] = True
    profile_memory: Annotated[bool, _help("allocations")] = True
    with_stack: Annotated[bool, _help("Python call stacks: traces grow several times")] = True
    with_flops: Annotated[bool, _help("estimated FLOPs of every op")] = True
    tensorboard: Annotated[bool, _help("also (or only) write tensorboard/*.pt.trace.json.gz")] = False
    chrome_trace: Annotated[bool, _help("write torch_profiler/rank{r}/{stem}_step{N}.json.gz")] = True
    trace_filename: Annotated[
        str, _help("its stem begins every trace's name", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    ] = "customer_trace.json"


class TracelensConfig(_Section, frozen=True):
    """Ignored: the analysis is a step of its own."""

    enabled: bool = False


class TrainConfig(_Section, frozen=True):
    """One training run; sections that are None were not given and mean nothing here."""

    training: TrainingConfig = TrainingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    dataset: DatasetConfig = DatasetConfig()
    model: ModelConfig = ModelConfig()
    fsdp: FsdpConfig = FsdpConfig()
    distributed: DistributedConfig = DistributedConfig()
    compile: CompileConfig = CompileConfig()
    logging: LoggingConfig = LoggingConfig()
    profiling: ProfilingConfig = ProfilingConfig()
    streams: StreamsConfig | None = None
    dataloader: DataloaderConfig | None = None
    tracelens: TracelensConfig | None = None


class SweepConfig(_Section, frozen=True):
    """The sweep: every (channels, threads) pair, `repeats` times, one training run each."""

    channels: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1)]], _help("NCCL/RCCL channel counts", min_length=1)
    ] = msgspec.field(default_factory=lambda: [28, 42, 56, 70])
    threads: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1)]], _help("NCCL/RCCL threads per block", min_length=1)
    ] = msgspec.field(default_factory=lambda: [256, 512])
    ranks: Annotated[int, msgspec.Meta(ge=1)] | None = None  # on each node
    nodes: Annotated[int, _help("hosts", ge=1)] = 1
    config: Annotated[str | None, _help("preset name or YAML file; None: chosen by the hardware")] = None
    overrides: Annotated[list[str], _help("dotted.key=value, all applied in order")] = []
    repeats: Annotated[int, _help("runs of every pair", ge=1)] = 1
    order: Annotated[
        Literal["random", "given"], _help("random keeps drift (heat, neighbours) out of the comparison")
    ] = "random"
    seed: Annotated[int, _help("seed of the order", ge=0)] = 2025
    channels_as: Annotated[
        Literal["pin", "max"],
        _help("pin: NCCL_MIN_NCHANNELS = NCCL_MAX_NCHANNELS; max: only MAX, as the original sweep"),
    ] = "pin"
    step_timeout_s: Annotated[float, _help("limit of one training run, s", gt=0)] = 1800.0
    pause_s: Annotated[float, _help("pause between two runs, s", ge=0)] = 5.0


def load_train_config(source: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a preset (by name) or a YAML file, apply every `dotted.key=value` in order, and check it.

    Raises MissingError (no such file or preset) and ConfigError (YAML, unknown key, type, contradiction).
    """
    path = _resolve(source)
    data = _read_yaml(path)
    _refuse_unknown(data, TrainConfig, "$", path)
    for override in overrides:
        _apply_override(data, override)
    where = f"{path} (with overrides)" if overrides else str(path)
    try:
        # Not strict: YAML 1.1 reads 2e-4 as a string.
        config = msgspec.convert(data, TrainConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"does not fit the schema: {error}", where=where) from error
    check_train_config(config, where)
    return config


def dump_train_config(config: TrainConfig) -> str:
    """The whole config as YAML, defaults included; `load_train_config` reads it back equal."""
    return yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False)


def ignored_keys(config: TrainConfig) -> list[str]:
    """Dotted keys that the config sets and that have no effect here, in the order of the schema."""
    keys = ("output_dir", "additional_compute_streams", "lightweight_op_waves")
    found = [f"training.{key}" for key in keys if getattr(config.training, key) is not None]
    sections = ("streams", "dataloader", "tracelens")
    return found + [name for name in sections if getattr(config, name) is not None]


def preset_names() -> list[str]:
    """The presets that `load_train_config` knows by name."""
    return sorted(path.stem for path in PRESET_DIR.glob("*.yaml"))


def profiler_steps(profiling: ProfilingConfig) -> int:
    """Optimizer steps that the profiler's windows need; 0 when it is off."""
    return (
        (profiling.wait + profiling.warmup + profiling.active) * profiling.repeat if profiling.enabled else 0
    )


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
            f"only {total} steps will run ({training.epochs} epochs of {per_epoch}), "
            f"the profiler needs {profiler_steps(config.profiling)}: no trace would be written",
            where="dataset.num_samples",
            fix="raise dataset.num_samples or training.epochs, or lower training.batch_size",
        )
    return total, per_epoch


def check_train_config(config: TrainConfig, where: str | None = None) -> None:
    """Raise ConfigError for the first pair of keys that contradict each other."""
    for contradiction, fix in _contradictions(config):
        raise ConfigError(contradiction, where=where, fix=fix)


def _contradictions(config: TrainConfig) -> list[tuple[str, str]]:
    model, data, profiling = config.model, config.dataset, config.profiling
    needed = profiler_steps(profiling)
    encoder = model.kind == "encoder"
    checks = [
        (
            model.model_dim % model.num_heads != 0,
            f"$.model.model_dim {model.model_dim} is not a multiple of $.model.num_heads {model.num_heads}",
            "choose a num_heads that divides model_dim",
        ),
        (
            config.training.max_steps < needed,
            f"$.training.max_steps {config.training.max_steps} is below the {needed} steps of "
            "(wait + warmup + active) * repeat in $.profiling: no trace would be written",
            f"set training.max_steps={needed} or more",
        ),
        (
            data.vocab_size > model.vocab_size,
            f"$.dataset.vocab_size {data.vocab_size} is above $.model.vocab_size {model.vocab_size}: "
            "ids would fall outside the embedding",
            "set both alike",
        ),
        (
            encoder
            and (data.num_dense_features, data.dense_dim) != (model.num_dense_features, model.dense_dim),
            "num_dense_features and dense_dim differ between $.dataset and $.model",
            "set both alike",
        ),
        (
            not all(0 <= beta < 1 for beta in config.optimizer.betas),
            "$.optimizer.betas must lie in [0, 1)",
            "the published values are [0.9, 0.985]",
        ),
        (
            config.scheduler.warmup_steps >= config.scheduler.total_steps,
            "$.scheduler.warmup_steps must be below $.scheduler.total_steps",
            "lower warmup_steps",
        ),
        (
            profiling.enabled and not (profiling.chrome_trace or profiling.tensorboard),
            "$.profiling is enabled but neither chrome_trace nor tensorboard is: the trace would be lost",
            "set profiling.chrome_trace=true, or profiling.enabled=false",
        ),
    ]
    return [(text, fix) for wrong, text, fix in checks if wrong]


def _resolve(source: str | Path) -> Path:
    path = Path(source)
    if isinstance(source, str) and source in preset_names():
        return PRESET_DIR / f"{source}.yaml"
    if not path.is_file():
        raise MissingError(
            f"no training config {str(source)!r}: neither a preset nor a file",
            where=path,
            fix=f"presets: {', '.join(preset_names())}{_did_you_mean(str(source), preset_names())}",
        )
    return path


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"larger than {MAX_CONFIG_BYTES} bytes: not a training config", where=path)
        data = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise MissingError(f"cannot read the training config: {error.strerror}", where=path) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"not valid YAML: {problem}", where=f"{path}{line}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"expected sections at $, found {type(data).__name__}", where=path)
    return data


def _apply_override(data: dict[str, Any], override: str) -> None:
    """Set one `dotted.key=value` in `data`, in place; the value is read as YAML."""
    where = f"override {override!r}"
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError("an override reads dotted.key=value", where=where, fix="e.g. training.max_steps=20")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError("the value is not valid YAML", where=where) from error
    nested: Any = value
    for part in reversed(parts):
        nested = {part: nested}
    _refuse_unknown(nested, TrainConfig, "$", where)
    for part in parts[:-1]:
        child = data.get(part)
        data[part] = data = dict(child) if isinstance(child, Mapping) else {}
    data[parts[-1]] = value


def _refuse_unknown(data: Any, struct: type[msgspec.Struct], at: str, where: str | Path) -> None:
    """Raise ConfigError for the first key of `data` that `struct` or its sections do not have."""
    if not isinstance(data, Mapping):
        return  # msgspec says this better, with the type it expected
    hints = typing.get_type_hints(struct)
    for key, value in data.items():
        if key not in hints:
            fix = f"keys here: {', '.join(hints)}{_did_you_mean(str(key), list(hints))}"
            raise ConfigError(f"unknown key {key!r} at `{at}`", where=where, fix=fix)
        section = _struct_in(hints[key])
        if section is not None:
            _refuse_unknown(value, section, f"{at}.{key}", where)


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The Struct in `S` or `S | None`; None for any other hint."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, msgspec.Struct)), None)


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=2)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
