"""Every setting of the semicrf room. Flags of the guide and of its TIMIT benchmark keep their names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

COMPARISON = "tables/compare.json"  # the form of the published benchmark
MODELS = ("pytorch-crf", "linear", "semicrf")
BACKENDS = ("auto", "naive", "torch", "native")
# The backend that a diagnosis holds each one against; what `auto` means only the device can say.
PLAINER = {"native": "torch", "torch": "naive", "naive": "naive"}
DRIFT = 20.0  # the guide's threshold for the magnitude of a transition or duration parameter
# Names of the guide -> ours. Its `exact` held all edges in memory; every backend here is exact.
GUIDE_BACKENDS = {"exact": "torch", "streaming": "auto"}


Positive = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(gt=0)]
Backend = Literal["auto", "naive", "torch", "native"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configs; `frozen` is repeated below because type checkers do not inherit it."""


class TrainConfig(_Section, frozen=True):
    """One corpus, one encoder, and the heads and backends to compare on them.

    The defaults are the published benchmark's; options.py says what each is.
    """

    data: str = "synthetic"
    models: Annotated[list[Literal["pytorch-crf", "linear", "semicrf"]], msgspec.Meta(min_length=1)] = (
        msgspec.field(default_factory=lambda: ["linear", "semicrf"])
    )
    backends: Annotated[list[Backend], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["auto"]
    )
    max_duration: Positive = 30
    hidden_dim: Annotated[int, msgspec.Meta(ge=2)] = 256
    num_layers: Positive = 3
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.3
    epochs: Positive = 50
    batch_size: Positive = 32
    lr: Rate = 1e-3
    weight_decay: Amount = 1e-5
    clip: Rate = 5.0  # of the gradient's 2-norm
    crf_reg: Amount = 0.0
    fixed_length: Positive | None = None
    over_long: Literal["split", "error", "mask"] = "split"
    objective: Literal["consistent", "guide"] = "consistent"
    validate: bool = True
    log_every: Positive = 1
    seed: Annotated[int, msgspec.Meta(ge=0)] = 2025
    # Of the synthetic corpus; dev and test have a quarter of the utterances each.
    phones: Annotated[int, msgspec.Meta(ge=2, le=39)] = 39
    utterances: Annotated[int, msgspec.Meta(ge=4)] = 512
    mean_segments: Annotated[int, msgspec.Meta(ge=2)] = 30
    step_timeout_s: Rate = 6 * 3600.0


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
    case: str | None = None  # a reproducer (case.npz) to probe instead of a corpus
    partition: str | None = None  # package.module:function, a kernel to probe instead
    import_path: str = ""  # folder that its package is imported from
    repeats: Positive = 2
    orders: Positive = 2
    steps: Positive = 12
    step_timeout_s: Rate = 1800.0


class CheckConfig(_Section, frozen=True):
    """What `check` compares with float64 on this device. auto: its default backend, and torch."""

    backends: Annotated[list[Backend], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["auto"]
    )
    batches: Positive = 200
    seed: Annotated[int, msgspec.Meta(ge=0)] = 2025
    step_timeout_s: Rate = 1800.0
