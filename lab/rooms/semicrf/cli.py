"""`lab run semicrf train|compare|diagnose|check|preprocess`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.semicrf.config import BACKENDS, MODELS
from lab.rooms.semicrf.options import LOOP, TRAINING, absolute, names, train_config, with_corpus_path
from lab.terminal.group import Group
from lab.terminal.options import ONE_OR_MORE, choice, option, options_of, seed, with_options

if TYPE_CHECKING:
    from lab.core.plan import Experiment

FOLDER = click.Path(file_okay=False, path_type=Path)
SOURCE = click.Path(exists=True, file_okay=False, path_type=Path)


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
    from lab.rooms.semicrf.plan import have_torchcrf

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
    from lab.core.plan import Experiment
    from lab.errors import UsageError
    from lab.rooms.semicrf.config import DiagnoseConfig
    from lab.rooms.semicrf.plan import plan_diagnose

    settings = {name: values.pop(name) for name in ("repeats", "orders", "steps", "partition")}
    settings["import_path"] = str(Path.cwd()) if settings["partition"] else ""
    # The matrix has many trainings; each need only be long enough to fail.
    values.update(preset=values["preset"] or "smoke", models=["semicrf"])
    train = train_config(with_corpus_path(ctx, values), gpus=True)
    if len(train.backends) > 1:
        raise UsageError(f"diagnose tests one backend, got {', '.join(train.backends)}", fix="a run for each")
    config = DiagnoseConfig(
        train=train,
        case=None if case is None else absolute(case),
        **settings,
    )
    return Experiment("semicrf", lambda site, root: plan_diagnose(config, site), options_of(ctx))


@run_semicrf.command("check")
@names("--backend", BACKENDS, "auto", "Backends to check")
@option("--batches", type=ONE_OR_MORE, default=200, help="Random hostile batches.")
@seed(2025, "Seed of the batches.")
@click.pass_context
def check(ctx: click.Context, /, **values: Any) -> Experiment:
    """Compare this device's kernels with float64: values, gradients, odd shapes, hostile input."""
    from lab.core.plan import Experiment
    from lab.rooms.semicrf.config import CheckConfig
    from lab.rooms.semicrf.plan import plan_check

    config = CheckConfig(**values)
    return Experiment("semicrf", lambda site, root: plan_check(config, site), options_of(ctx))


@run_semicrf.command("preprocess")
@click.option("--timit-dir", type=SOURCE, required=True, help="TIMIT as published: TRAIN, TEST.")
@click.option("--output-dir", type=FOLDER, required=True, help="Folder for the files.")
@choice("--feature-type", "mfcc mel", "MFCCs, or log mel energies.")
@option("--n-mfcc", type=click.IntRange(1, 40), default=13, help="Coefficients per frame, with mfcc.")
@option("--n-mels", type=click.IntRange(min=2), default=80, help="Mel bands.")
def preprocess(timit_dir: Path, output_dir: Path, **values: Any) -> None:
    """TIMIT folder -> train.jsonl, test.jsonl, segment statistics and the phone mapping."""
    from lab.errors import needs

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
    from lab.core.files import write_atomic
    from lab.core.plan import Experiment, Plan, Site
    from lab.rooms.semicrf.config import COMPARISON
    from lab.rooms.semicrf.plan import plan_train

    options = options_of(ctx)
    values = with_corpus_path(ctx, values)

    def make_plan(site: Site, root: Path) -> Plan:
        config = train_config(values, gpus=bool(site.gpus))
        return plan_train(config, site, command=command, skipped=skipped)

    def copy_comparison(root: Path) -> None:
        if output_json is not None:
            write_atomic(output_json, (root / COMPARISON).read_bytes())

    return Experiment("semicrf", make_plan, options, on_success=copy_comparison)
