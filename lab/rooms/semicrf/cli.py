"""`lab run semicrf train|compare|diagnose|check|preprocess`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from lab.core.files import write_atomic
from lab.core.plan import Experiment, Plan, Site
from lab.errors import MissingError, UsageError, needs
from lab.rooms.semicrf.config import (
    BACKENDS,
    COMPARISON,
    GUIDE_BACKENDS,
    MODELS,
    PRESETS,
    CheckConfig,
    DiagnoseConfig,
    TrainConfig,
)
from lab.rooms.semicrf.plan import IN_CONTAINER, have_torchcrf, plan_check, plan_diagnose, plan_train
from lab.terminal.group import Group
from lab.terminal.options import (
    ABOVE_ZERO,
    ONE_OR_MORE,
    Decorator,
    Finite,
    WordList,
    choice,
    option,
    options_of,
    seed,
    with_options,
)


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
    values = dict(values)
    preset = PRESETS[values.pop("preset") or ("timit" if gpus else "tiny")]
    words = {**GUIDE_BACKENDS, **({"auto": "torch", "streaming": "torch"} if values.pop("no_triton") else {})}
    backends = values["backends"] = [words.get(name, name) for name in values["backends"]]
    twice = ", ".join(sorted({name for name in backends if backends.count(name) > 1}))
    if twice:
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
    os.environ["LAB_CORPUS"] = path
    return {**values, "data": IN_CONTAINER}


def absolute(path: Path) -> str:
    """Steps run in the run folder, so a path must not be relative to the caller's. Raises MissingError."""
    if not path.exists():
        raise MissingError("no such file or folder", location=path, fix="--data synthetic needs none")
    return str(path.resolve())


@click.group("semicrf", cls=Group)
def run_semicrf() -> None:
    """Train, diagnose and check a streaming semi-Markov CRF.

    \b
    lab run semicrf train --preset smoke
    lab run --image cuda semicrf train --data /data/TIMIT --model semicrf --backend torch,native
    lab run --image cuda semicrf diagnose
    lab run --image cuda semicrf check
    """


@run_semicrf.command("train")
@names("--model", MODELS, "linear,semicrf", "Heads")
@with_options(*TRAINING, *LOOP)
@click.pass_context
def train(ctx: click.Context, /, **values: Any) -> Experiment:
    """Train phoneme segmentation with each head and backend: convergence, PER, time, memory."""
    return _training(ctx, values, "train")


@run_semicrf.command("compare")
@click.option(
    "--output-json",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the comparison's JSON here as well.",
)
@with_options(*TRAINING, *LOOP)
@click.pass_context
def compare(ctx: click.Context, /, output_json: Path | None, **values: Any) -> Experiment:
    """pytorch-crf (where installed), linear CRF and semi-CRF on the same corpus, as one JSON and page."""
    skipped = () if have_torchcrf() or options_of(ctx).image else ("pytorch-crf",)
    return _training(ctx, {**values, "models": list(MODELS)}, "compare", skipped, output_json)


@run_semicrf.command("diagnose")
@option("--repeats", type=ONE_OR_MORE, default=2, help="Trainings per cell.")
@option("--orders", type=ONE_OR_MORE, default=2, help="Batch orders per cell.")
@option("--steps", type=ONE_OR_MORE, default=12, help="Optimizer steps per training.")
@click.option(
    "--case",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Probe this reproducer (case.npz).",
)
@click.option(
    "--partition",
    metavar="PACKAGE.MODULE:NAME",
    help="Probe this kernel: log Z of (score, transition, duration, lengths), or a known package's.",
)
@with_options(*TRAINING)
@click.pass_context
def diagnose(ctx: click.Context, /, case: Path | None, **values: Any) -> Experiment:
    """Run the guide's diagnostic workflow as one matrix and name what is wrong."""
    settings = {name: values.pop(name) for name in ("repeats", "orders", "steps", "partition")}
    settings["import_path"] = str(Path.cwd()) if settings["partition"] else ""
    # The matrix has many trainings; each need only be long enough to fail.
    values.update(preset=values["preset"] or "smoke", models=["semicrf"])
    train = train_config(with_corpus_path(ctx, values), gpus=True)
    if len(train.backends) > 1:
        raise UsageError(f"diagnose tests one backend, got {', '.join(train.backends)}", fix="a run for each")
    config = DiagnoseConfig(train=train, case=None if case is None else absolute(case), **settings)
    return Experiment("semicrf", lambda site, root: plan_diagnose(config, site), options_of(ctx))


@run_semicrf.command("check")
@names("--backend", BACKENDS, "auto", "Backends to check")
@option("--batches", type=ONE_OR_MORE, default=200, help="Random hostile batches.")
@seed(2025, "Seed of the batches.")
@click.pass_context
def check(ctx: click.Context, /, **values: Any) -> Experiment:
    """Compare this device's kernels with float64: values, gradients, odd shapes, hostile input."""
    config = CheckConfig(**values)
    return Experiment("semicrf", lambda site, root: plan_check(config, site), options_of(ctx))


@run_semicrf.command("preprocess")
@click.option(
    "--timit-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="TIMIT as published: TRAIN, TEST.",
)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for the files.",
)
@choice("--feature-type", "mfcc mel", "MFCCs, or log mel energies.")
@option("--n-mfcc", type=click.IntRange(1, 40), default=13, help="Coefficients per frame, with mfcc.")
@option("--n-mels", type=click.IntRange(min=2), default=80, help="Mel bands.")
def preprocess(timit_dir: Path, output_dir: Path, **values: Any) -> None:
    """TIMIT folder -> train.jsonl, test.jsonl, segment statistics and the phone mapping."""
    with needs("workload"):
        from lab.rooms.semicrf.workload.corpus.timit import preprocess as convert
    for line in convert(timit_dir, output_dir, **values):
        click.echo(line)


def _training(
    ctx: click.Context,
    values: dict[str, Any],
    command: str,
    skipped: tuple[str, ...] = (),
    output_json: Path | None = None,
) -> Experiment:
    values = with_corpus_path(ctx, values)

    def make_plan(site: Site, root: Path) -> Plan:
        config = train_config(values, gpus=bool(site.gpus))
        return plan_train(config, site, command=command, skipped=skipped)

    def copy_comparison(root: Path) -> None:
        if output_json is not None:
            write_atomic(output_json, (root / COMPARISON).read_bytes())

    return Experiment("semicrf", make_plan, options_of(ctx), on_success=copy_comparison)
