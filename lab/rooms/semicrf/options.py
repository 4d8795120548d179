"""The options that the room's commands share, and how they become a config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.semicrf.config import BACKENDS, GUIDE_BACKENDS, PRESETS
from lab.terminal.options import (
    ABOVE_ZERO,
    ONE_OR_MORE,
    Decorator,
    Finite,
    WordList,
    option,
    options_of,
    seed,
)

if TYPE_CHECKING:
    from lab.rooms.semicrf.config import TrainConfig


def names(flag: str, words: Sequence[str], default: str, text: str) -> Decorator:
    """Some of `words`, comma separated; the help lists them all."""
    kind, metavar = WordList(words), ",".join(words)
    return option(
        flag, f"{flag[2:]}s", type=kind, metavar=metavar, default=default, help=f"{text}, comma separated."
    )


HELP = {
    "preset": "Sizes of all that no flag sets. [default: timit with GPUs, tiny without]",
    "data": "TIMIT folder (TRAIN, TEST), folder of {train,test}.jsonl, or synthetic.",
    "fixed": "Crop utterances to N frames and leave out shorter ones: nothing is padded.",
    "over_long": "Gold segments longer than --max-duration. [default: split]",
    "objective": "guide: the published gold score, which is not of the partition's model.",
}
TRAINING = (
    click.option("--preset", type=click.Choice(list(PRESETS)), help=HELP["preset"]),
    option("--data", "--data-dir", default="synthetic", help=HELP["data"]),
    names("--backend", (*BACKENDS, *GUIDE_BACKENDS), "auto", "Backends of the CRF"),
    click.option("--no-triton", is_flag=True, help="The guide's flag: the torch backend for auto."),
    click.option("--max-duration", type=ONE_OR_MORE, help="Longest segment K, frames."),
    click.option("--hidden-dim", type=click.IntRange(min=2), help="Width of the encoder's output."),
    click.option("--num-layers", type=ONE_OR_MORE, help="Layers of the encoder."),
    click.option("--epochs", type=ONE_OR_MORE, help="Passes over the training set."),
    click.option("--batch-size", type=ONE_OR_MORE, help="Utterances per step."),
    click.option("--lr", type=ABOVE_ZERO, help="Peak learning rate of AdamW, cosine over the epochs."),
    click.option("--crf-reg", type=Finite(min=0), help="Weight of parameter_penalty() in the loss."),
    click.option("--fixed-length", type=ONE_OR_MORE, help=HELP["fixed"]),
    click.option("--over-long", type=click.Choice(["split", "error", "mask"]), help=HELP["over_long"]),
    click.option("--objective", type=click.Choice(["consistent", "guide"]), help=HELP["objective"]),
    seed(None, "Seed of the random numbers."),
    click.option("--utterances", type=click.IntRange(min=4), help="Training utterances, synthetic corpus."),
    click.option("--phones", type=click.IntRange(min=2, max=39), help="Classes of the synthetic corpus."),
)
LOOP = (
    click.option("--log-every", type=ONE_OR_MORE, help="Epochs between two messages."),
    click.option("--validate/--no-validate", default=None, help="Validation points. [default: on]"),
)


def train_config(values: dict[str, Any], *, gpus: bool) -> TrainConfig:
    """The preset, then what was set by a flag; `gpus` chooses the preset where none is named.

    Raises UsageError for a backend that two names mean.
    """
    import msgspec

    from lab.errors import UsageError
    from lab.rooms.semicrf.config import TrainConfig

    values = dict(values)
    preset = PRESETS[values.pop("preset") or ("timit" if gpus else "tiny")]
    words = {**GUIDE_BACKENDS, **({"auto": "torch", "streaming": "torch"} if values.pop("no_triton") else {})}
    backends = values["backends"] = [words.get(name, name) for name in values["backends"]]
    if len(set(backends)) < len(backends):
        twice = ", ".join(sorted({name for name in backends if backends.count(name) > 1}))
        read = "exact is read as torch, streaming as auto, and with --no-triton auto as torch"
        raise UsageError(f"--backend names {twice} twice: {read}", fix="name each once")
    settings = {name: value for name, value in values.items() if value is not None}
    return msgspec.convert({**preset, **settings}, TrainConfig)


def with_corpus_path(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """The corpus by its absolute path; in a container by the path where the image mounts it."""
    if values["data"] == "synthetic":
        return values
    path = absolute(Path(values["data"]))
    if options_of(ctx).image is None:
        return {**values, "data": path}
    import os

    from lab.rooms.semicrf.plan import IN_CONTAINER

    os.environ["LAB_CORPUS"] = path
    return {**values, "data": IN_CONTAINER}


def absolute(path: Path) -> str:
    """Steps run in the run folder, so a path must not be relative to the caller's. Raises MissingError."""
    from lab.errors import MissingError

    if not path.exists():
        raise MissingError("no such file or folder", location=path, fix="--data synthetic needs none")
    return str(path.resolve())
