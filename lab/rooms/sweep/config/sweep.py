"""The sweep around the training run: which settings, how often, in which order."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from lab.rooms.sweep.config.train import Section, doc

Counts = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]


class SweepConfig(Section, frozen=True):
    """The sweep: every combination of its four lists, `repeats` times, one training run each."""

    # 0 and "" leave the choice to the library.
    channels: Counts = msgspec.field(default_factory=lambda: [28, 42, 56, 70])
    threads: Counts = msgspec.field(default_factory=lambda: [256, 512])
    algorithms: Annotated[
        list[Literal["", "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]],
        doc("NCCL_ALGO of each setting", min_length=1),
    ] = msgspec.field(default_factory=lambda: [""])
    protocols: Annotated[
        list[Literal["", "ll", "ll128", "simple"]], doc("NCCL_PROTO of each setting", min_length=1)
    ] = msgspec.field(default_factory=lambda: [""])
    ranks: Annotated[int, msgspec.Meta(ge=1)] | None = None  # on each node
    nodes: Annotated[int, msgspec.Meta(ge=1)] = 1
    config: Annotated[str | None, doc("preset name or YAML file; None: chosen by the hardware")] = None
    overrides: Annotated[list[str], doc("dotted.key=value, all applied in order")] = []
    repeats: Annotated[int, doc("runs of every setting", ge=1)] = 1
    order: Annotated[
        Literal["random", "given"], doc("random keeps drift (heat, neighbours) out of the comparison")
    ] = "random"
    seed: Annotated[int, doc("seed of the order", ge=0)] = 2025
    channels_as: Annotated[
        Literal["pin", "max"],
        doc("pin: NCCL_MIN_NCHANNELS = NCCL_MAX_NCHANNELS; max: only MAX, as the original sweep"),
    ] = "pin"
    tuner: Annotated[str | None, doc("tuner file that every run is made under")] = None
    tuner_plugin: Annotated[str | None, doc("NCCL's tuner plugin, as a step sees its path")] = None
    step_timeout_s: Annotated[float, doc("limit of one training run", gt=0)] = 1800.0
    pause_s: Annotated[float, doc("pause between two runs", ge=0)] = 5.0
