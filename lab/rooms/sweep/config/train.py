"""The training run that is measured: the YAML schema of the public aorta GEMM-overlap configs.

ROCm/aorta, `config/gemm_overlap/`. The defaults are the values published there, except where a field says
otherwise. Keys that have no effect here are accepted, so that such files load, and named by `ignored_keys`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Counts = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]
Words = Annotated[list[str], msgspec.Meta(min_length=1)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections; `frozen` is repeated below because type checkers do not inherit it."""


def doc(text: str, **limits: Any) -> msgspec.Meta:
    """The meaning of a key and the limits of its value."""
    return msgspec.Meta(description=text, **limits)


class TrainingConfig(Section, frozen=True):
    epochs: Annotated[int, doc("passes over dataset.num_samples", ge=1)] = 1
    batch_size: Annotated[int, doc("samples per rank and micro-step", ge=1)] = 512
    gradient_accumulation: Annotated[int, doc("micro-steps per optimizer step", ge=1)] = 4
    mixed_precision: Annotated[
        Literal["none", "bf16", "fp16"],
        doc("dtype of the GEMMs; weights stay float32; fp16 needs a GPU"),
    ] = "bf16"
    max_steps: Annotated[int, doc("optimizer steps at most", ge=1)] = 10
    grad_clip_norm: Annotated[float, doc("gradient 2-norm limit; 0 = measure only", ge=0)] = 1.0
    output_dir: Annotated[str | None, doc("ignored: --out says where")] = None
    log_interval: Annotated[int, doc("optimizer steps between two messages", ge=1)] = 20
    additional_compute_streams: Annotated[int | None, doc("ignored (published: 4)")] = None
    lightweight_op_waves: Annotated[int | None, doc("ignored (published: 3)")] = None


class OptimizerConfig(Section, frozen=True):
    lr: Annotated[float, doc("AdamW peak learning rate", gt=0)] = 2e-4
    weight_decay: Annotated[float, doc("AdamW weight decay", ge=0)] = 0.01
    betas: Annotated[tuple[float, float], doc("AdamW betas, each in [0, 1)")] = (0.9, 0.985)


class SchedulerConfig(Section, frozen=True):
    warmup_steps: Annotated[int, doc("optimizer steps of linear warm-up", ge=0)] = 200
    total_steps: Annotated[int, doc("optimizer step at which the cosine reaches zero", ge=1)] = 2200


class DatasetConfig(Section, frozen=True):
    num_samples: Annotated[int, doc("samples per epoch over all ranks (synthetic)", ge=1)] = 200_000
    sequence_length: Annotated[int, doc("tokens per sample", ge=1)] = 176
    dense_dim: Annotated[int, doc("floats per dense feature", ge=1)] = 256
    sparse_features: Annotated[int, doc("sparse ids per token", ge=1)] = 48
    vocab_size: Annotated[int, doc("ids are drawn from [0, vocab_size)", ge=2)] = 350_000
    num_dense_features: Annotated[int, doc("dense features per token", ge=1)] = 32
    seed: Annotated[int, doc("weights use seed, inputs and dropout use seed + rank", ge=0)] = 2025


class ModelConfig(Section, frozen=True):
    kind: Annotated[
        Literal["encoder", "decoder"], doc("encoder: ranking model as published; decoder: causal LLM")
    ] = "encoder"
    vocab_size: Annotated[int, doc("rows of the embedding", ge=2)] = 350_000
    embedding_dim: Annotated[int, doc("columns of the embedding (encoder only)", ge=1)] = 256
    num_dense_features: Annotated[int, doc("dense features per token (encoder only)", ge=1)] = 32
    dense_dim: Annotated[int, doc("floats per dense feature (encoder only)", ge=1)] = 256
    model_dim: Annotated[int, doc("width of the residual stream", ge=1)] = 1024
    num_heads: Annotated[int, doc("attention heads", ge=1)] = 16
    num_layers: Annotated[int, doc("Transformer layers", ge=1)] = 20
    dropout: Annotated[float, doc("dropout probability (encoder only)", ge=0, lt=1)] = 0.1
    mlp_hidden_dim: Annotated[int, doc("width of the feed-forward layer", ge=1)] = 4608


class FsdpConfig(Section, frozen=True):
    sharding_strategy: Annotated[
        Literal["full_shard", "shard_grad_op"],
        doc("shard weights too, or only gradients and optimizer"),
    ] = "full_shard"
    backward_prefetch: Annotated[
        Literal["BACKWARD_PRE", "BACKWARD_POST"] | None,
        doc("FSDP1 only; FSDP2 always prefetches early"),
    ] = "BACKWARD_PRE"
    use_orig_params: Annotated[bool, doc("FSDP1 only; always so in FSDP2")] = True
    limit_all_gathers: Annotated[bool, doc("FSDP1 only; always so in FSDP2")] = True
    forward_prefetch: Annotated[bool, doc("gather layer i+1 while layer i computes")] = True
    sync_module_states: Annotated[bool, doc("FSDP1 only: copy rank 0's weights to all")] = True
    param_init_device: Annotated[
        Literal["meta", "cpu", "cuda"],
        doc("meta: allocate only on the run's device, after sharding; cpu; cuda: the run's device at once"),
    ] = "meta"


class DistributedConfig(Section, frozen=True):
    backend: Annotated[
        Literal["auto", "nccl", "gloo"],
        doc("auto: nccl (RCCL on AMD) with a GPU, else gloo; gloo = CPU run"),
    ] = "auto"
    mode: Annotated[Literal["ddp", "fsdp"], doc("replicate (DDP) or shard (FSDP) the model")] = "ddp"
    bucket_cap_mb: Annotated[int, doc("DDP gradient bucket, MiB", ge=1)] = 32
    gradient_as_bucket_view: Annotated[bool, doc("DDP: gradients live in the buckets")] = True
    static_graph: Annotated[bool, doc("DDP: the same graph at every step")] = True
    find_unused_parameters: Annotated[bool, doc("DDP: search for parameters without gradient")] = False


class CompileConfig(Section, frozen=True):
    enabled: Annotated[bool, doc("torch.compile the model (torch >= 2)")] = False
    backend: Annotated[str, doc("torch.compile backend")] = "inductor"
    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
        doc("inductor mode; other backends take none"),
    ] = "reduce-overhead"
    fullgraph: Annotated[bool, doc("a graph break is an error")] = False
    dynamic: Annotated[bool, doc("compile for changing shapes")] = False


class LoggingConfig(Section, frozen=True):
    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], doc("least level of messages")] = "INFO"


class ProfilingConfig(Section, frozen=True):
    enabled: Annotated[bool, doc("record Kineto traces")] = True
    wait: Annotated[int, doc("steps without profiler in each window", ge=0)] = 1
    warmup: Annotated[int, doc("steps recorded and thrown away", ge=0)] = 1
    active: Annotated[int, doc("steps in the trace", ge=1)] = 5
    repeat: Annotated[int, doc("windows; each gives one trace per rank", ge=1)] = 1
    record_shapes: Annotated[bool, doc("input shapes of every op (the GEMM groups need them)")] = True
    profile_memory: Annotated[bool, doc("allocations")] = True
    with_stack: Annotated[bool, doc("Python call stacks: traces grow several times")] = True
    with_flops: Annotated[bool, doc("estimated FLOPs of every op")] = True
    cuda_sync: Annotated[bool, doc("streams' waits for events (ours; torch >= 2.1 on NVIDIA)")] = False
    tensorboard: Annotated[bool, doc("also (or only) write tensorboard/*.pt.trace.json.gz")] = False
    chrome_trace: Annotated[bool, doc("write torch_profiler/rank{r}/{stem}_step{N}.json.gz")] = True
    trace_filename: Annotated[
        str, doc("its stem begins every trace's name", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    ] = "customer_trace.json"


class TrainConfig(Section, frozen=True):
    """One training run. The last three sections are accepted and ignored, as in the original.

    streams and tracelens were never read there. dataloader: inputs are made on the device here, so that
    copies from the host do not dominate the step.
    """

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
    streams: dict[str, Any] | None = None
    dataloader: dict[str, Any] | None = None
    tracelens: dict[str, Any] | None = None


class SweepConfig(Section, frozen=True):
    """The sweep: every combination of its four lists, `repeats` times, one training run each."""

    # 0 and "" leave the choice to the library; the options of `lab run sweep` say what each is.
    channels: Counts = msgspec.field(default_factory=lambda: [28, 42, 56, 70])
    threads: Counts = msgspec.field(default_factory=lambda: [256, 512])
    algorithms: Words = msgspec.field(default_factory=lambda: [""])
    protocols: Words = msgspec.field(default_factory=lambda: [""])
    ranks: Annotated[int, msgspec.Meta(ge=1)] | None = None  # on each node
    nodes: Annotated[int, msgspec.Meta(ge=1)] = 1
    config: str | None = None
    overrides: list[str] = []
    repeats: Annotated[int, msgspec.Meta(ge=1)] = 1
    order: Literal["random", "given"] = "random"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 2025
    channels_as: Literal["pin", "max"] = "pin"
    tuner: str | None = None
    tuner_plugin: str | None = None
    step_timeout_s: Annotated[float, doc("limit of one training run", gt=0)] = 1800.0
    pause_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0
