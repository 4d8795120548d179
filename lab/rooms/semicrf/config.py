"""Every setting of the semicrf room. Flags of the guide and of its TIMIT benchmark keep their names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

MODELS = ("pytorch-crf", "linear", "semicrf")
BACKENDS = ("auto", "naive", "torch", "native")
# The backend that a diagnosis holds each one against; what `auto` means only the device can say.
PLAINER = {"native": "torch", "torch": "naive", "naive": "naive"}
# Names of the guide -> ours. Its `exact` held all edges in memory; every backend here is exact.
GUIDE_BACKENDS = {"exact": "torch", "streaming": "auto"}
FAULTS = {
    "overread": "a kernel that reads beyond the mask",
    "race": "a kernel whose message is occasionally stale",
    "stale": "a kernel whose posteriors are finite and wrong, as a stale message leaves them",
    "drift": "an objective that is not a probability, so that parameters drift",
}


def _help(text: str, **limits: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **limits)


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configs; `frozen` is repeated below because type checkers do not inherit it."""


class TrainConfig(_Section, frozen=True):
    """One corpus, one encoder, and the heads and backends to compare on them.

    The defaults are the published benchmark's.
    """

    data: Annotated[str, _help("TIMIT folder, folder of {train,test}.jsonl, or synthetic")] = "synthetic"
    models: Annotated[list[Literal["pytorch-crf", "linear", "semicrf"]], _help("heads", min_length=1)] = (
        msgspec.field(default_factory=lambda: ["linear", "semicrf"])
    )
    backends: Annotated[
        list[Literal["auto", "naive", "torch", "native"]],
        _help("of the linear and semicrf heads", min_length=1),
    ] = msgspec.field(default_factory=lambda: ["auto"])
    max_duration: Annotated[int, _help("longest segment K, frames", ge=1)] = 30
    hidden_dim: Annotated[int, _help("width of the encoder's output", ge=2)] = 256
    num_layers: Annotated[int, _help("layers of the encoder", ge=1)] = 3
    dropout: Annotated[float, _help("dropout probability", ge=0, lt=1)] = 0.3
    epochs: Annotated[int, _help("passes over the training set", ge=1)] = 50
    batch_size: Annotated[int, _help("utterances per step", ge=1)] = 32
    lr: Annotated[float, _help("AdamW peak learning rate, cosine over the epochs", gt=0)] = 1e-3
    weight_decay: Annotated[float, _help("AdamW weight decay", ge=0)] = 1e-5
    clip: Annotated[float, _help("gradient 2-norm limit", gt=0)] = 5.0
    crf_reg: Annotated[float, _help("weight of parameter_penalty() in the loss", ge=0)] = 0.0
    # Crop to this many frames and leave out shorter utterances.
    fixed_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    over_long: Annotated[
        Literal["split", "error", "mask"], _help("gold segments longer than max_duration")
    ] = "split"
    objective: Annotated[
        Literal["consistent", "guide"], _help("guide: the guide's gold score, not of the partition's model")
    ] = "consistent"
    validate: Annotated[bool, _help("validation points on")] = True
    log_every: Annotated[int, _help("epochs between two messages", ge=1)] = 1
    seed: Annotated[int, _help("weights, order and the synthetic corpus", ge=0)] = 2025
    phones: Annotated[int, _help("classes of the synthetic corpus", ge=2, le=39)] = 39
    utterances: Annotated[
        int, _help("training utterances of the synthetic corpus; dev and test: a quarter each", ge=4)
    ] = 512
    mean_segments: Annotated[int, _help("segments of a synthetic utterance on average", ge=2)] = 30
    step_timeout_s: Annotated[float, _help("limit of one training run, s", gt=0)] = 6 * 3600.0


PRESETS: dict[str, dict[str, Any]] = {
    # The least that exercises every part; a CPU core needs seconds.
    "smoke": {
        "max_duration": 8,
        "hidden_dim": 16,
        "num_layers": 1,
        "epochs": 2,
        "batch_size": 8,
        "dropout": 0.0,
        "lr": 2e-2,
        "phones": 5,
        "utterances": 24,
        "mean_segments": 8,
    },
    # Converges in about a minute on a CPU core.
    "tiny": {
        "max_duration": 12,
        "hidden_dim": 48,
        "num_layers": 1,
        "epochs": 10,
        "batch_size": 16,
        "dropout": 0.1,
        "lr": 1e-2,
        "phones": 12,
        "utterances": 128,
        "mean_segments": 12,
    },
    # The published benchmark's setting.
    "timit": {},
}


class DiagnoseConfig(_Section, frozen=True):
    """The guide's workflow as a matrix of short trainings and a list of probes."""

    train: TrainConfig
    plant: Annotated[str | None, _help("a fault to plant, to see it named")] = None
    case: Annotated[str | None, _help("a reproducer (case.npz) to probe instead of a corpus")] = None
    partition: Annotated[str | None, _help("package.module:function, a kernel to probe instead")] = None
    import_path: Annotated[str, _help("folder that its package is imported from")] = ""
    repeats: Annotated[int, _help("trainings per cell of the matrix", ge=1)] = 2
    orders: Annotated[int, _help("batch orders per cell", ge=1)] = 2
    steps: Annotated[int, _help("optimizer steps per training", ge=1)] = 12
    step_timeout_s: Annotated[float, _help("limit of one step, s", gt=0)] = 1800.0


class CheckConfig(_Section, frozen=True):
    """What `check` compares with float64 on this device."""

    backends: Annotated[list[str], _help("auto: this device's default, and torch", min_length=1)] = (
        msgspec.field(default_factory=lambda: ["auto"])
    )
    batches: Annotated[int, _help("random hostile batches", ge=1)] = 200
    seed: Annotated[int, _help("seed of the shapes and inputs", ge=0)] = 2025
    step_timeout_s: Annotated[float, _help("limit, s", gt=0)] = 1800.0
