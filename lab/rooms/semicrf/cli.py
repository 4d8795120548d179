"""`lab run semicrf train|compare|diagnose|check|preprocess`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.semicrf.config import BACKENDS, FAULTS, GUIDE_BACKENDS, MODELS, PRESETS
from lab.terminal.click_types import options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment

    _NamesParam = click.ParamType[list[str]]
else:
    _NamesParam = click.ParamType  # generic only in newer click

Function = Callable[..., Any]


class Names(_NamesParam):
    """`torch,triton`: words of a list, each once."""

    def __init__(self, known: tuple[str, ...], other: dict[str, str] | None = None) -> None:
        self.known, self.other = known, other or {}
        self.name = ",".join((*known, *self.other))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        if isinstance(value, list):
            return value
        words = [self.other.get(word.strip(), word.strip()) for word in value.split(",")]
        for word in words:
            if word not in self.known:
                self.fail(f"{word!r} is none of {', '.join((*self.known, *self.other))}", param, ctx)
        if len(set(words)) != len(words):
            self.fail("a name is given twice", param, ctx)
        return words


TRAINING = (
    click.option(
        "--preset", type=click.Choice(list(PRESETS)), help="Sizes. [default: timit with GPUs, tiny without]"
    ),
    click.option(
        "--data",
        "--data-dir",
        default="synthetic",
        show_default=True,
        help="TIMIT folder (TRAIN, TEST), folder of {train,test}.jsonl, or synthetic.",
    ),
    click.option(
        "--backend",
        "backends",
        type=Names(BACKENDS, GUIDE_BACKENDS),
        default="auto",
        show_default=True,
        help="Backends of the CRF, comma separated.",
    ),
    click.option("--no-triton", is_flag=True, help="The torch backend, in decoding too."),
    click.option("--encoder", type=click.Choice(["bilstm", "transformer"])),
    click.option("--max-duration", type=click.IntRange(min=1), help="Longest segment K, frames."),
    click.option("--hidden-dim", type=click.IntRange(min=2)),
    click.option("--num-layers", type=click.IntRange(min=1)),
    click.option("--epochs", type=click.IntRange(min=1)),
    click.option("--batch-size", type=click.IntRange(min=1)),
    click.option("--lr", type=click.FloatRange(min=0, min_open=True)),
    click.option(
        "--crf-reg", type=click.FloatRange(min=0), help="Weight of parameter_penalty() in the loss."
    ),
    click.option(
        "--fixed-length",
        type=click.IntRange(min=1),
        help="Crop utterances to N frames and leave out shorter ones: nothing is padded.",
    ),
    click.option(
        "--over-long",
        type=click.Choice(["split", "error", "mask"]),
        help="Gold segments longer than --max-duration. [default: split]",
    ),
    click.option(
        "--guards",
        type=click.Choice(["none", "seed"]),
        help="seed: the guide's NEG_INF, epsilon and clamps, to see what they change.",
    ),
    click.option(
        "--objective",
        type=click.Choice(["consistent", "guide"]),
        help="guide: the published gold score, which is not of the partition's model.",
    ),
    click.option("--seed", type=click.IntRange(min=0)),
    click.option(
        "--utterances", type=click.IntRange(min=4), help="Training utterances of the synthetic corpus."
    ),
    click.option("--phones", type=click.IntRange(min=2, max=39), help="Classes of the synthetic corpus."),
)
LOOP = (
    click.option("--log-every", type=click.IntRange(min=1), help="Epochs between two messages."),
    click.option("--ranks", type=click.IntRange(min=1), help="Data-parallel processes."),
    click.option("--validate/--no-validate", default=None, help="Validation points. [default: on]"),
)


def _with(*options: tuple[Any, ...]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed([one for group in options for one in group]):
            function = option(function)
        return function

    return decorate


@click.group("semicrf")
def run_semicrf() -> None:
    """Train, diagnose and check a streaming semi-Markov CRF.

    \b
    lab run semicrf train --preset smoke
    lab run --image cuda semicrf train --data /data/TIMIT --model semicrf --backend torch,triton
    lab run --image cuda semicrf diagnose
    lab run --image cuda semicrf check
    """


@run_semicrf.command("train")
@click.option(
    "--model",
    "models",
    type=Names(MODELS),
    default="linear,semicrf",
    show_default=True,
    help="Heads, comma separated.",
)
@_with(TRAINING, LOOP)
@click.pass_context
def train(ctx: click.Context, /, **knobs: Any) -> Experiment:
    """Train phoneme segmentation with each head and backend: convergence, PER, time, memory."""
    return _train(ctx, knobs, command="train")


@run_semicrf.command("compare")
@click.option(
    "--output-json",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The comparison's JSON goes here too.",
)
@_with(TRAINING, LOOP)
@click.pass_context
def compare(ctx: click.Context, /, output_json: Path | None, **knobs: Any) -> Experiment:
    """pytorch-crf (where installed), linear CRF and semi-CRF on the same corpus, as one JSON and page."""
    from lab.rooms.semicrf.plan import have_torchcrf

    skipped = () if have_torchcrf() or options_of(ctx).image else ("pytorch-crf",)
    return _train(
        ctx, {**knobs, "models": list(MODELS)}, command="compare", skipped=skipped, output_json=output_json
    )


@run_semicrf.command("diagnose")
@click.option("--classic", is_flag=True, help="Only the guide's four steps.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Trainings of every cell (--classic: 5).",
)
@click.option(
    "--orders", type=click.IntRange(min=1), default=2, show_default=True, help="Batch orders of every cell."
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Optimizer steps of every training.",
)
@click.option("--plant", type=click.Choice(list(FAULTS)), help="Plant a fault, to see it named.")
@click.option(
    "--case",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Probe this reproducer (case.npz).",
)
@_with(TRAINING)
@click.pass_context
def diagnose(
    ctx: click.Context,
    /,
    case: Path | None,
    classic: bool,
    repeats: int,
    orders: int,
    steps: int,
    plant: str | None,
    **knobs: Any,
) -> Experiment:
    """Run the guide's diagnostic workflow as one matrix and say in words what is wrong."""
    from lab.core.plan import Experiment
    from lab.rooms.semicrf.config import DiagnoseConfig
    from lab.rooms.semicrf.plan import plan_diagnose

    options = options_of(ctx)
    if classic and case is not None:
        from lab.errors import UsageError

        raise UsageError("--classic trains, and a case has no corpus to train on", fix="drop one of them")
    if not knobs["preset"]:
        knobs["preset"] = "smoke"  # a matrix of many trainings; each need only be long enough to fail
    config = DiagnoseConfig(
        train=train_config(_placed(ctx, {**knobs, "models": ["semicrf"]}), gpus=True),
        plant=plant,
        case=_absolute(case),
        classic=classic,
        repeats=max(repeats, 5) if classic else repeats,
        orders=1 if classic else orders,
        steps=steps,
    )
    return Experiment("semicrf", lambda site, root: plan_diagnose(config, site), options)


@run_semicrf.command("check")
@click.option("--backend", "backends", type=Names(BACKENDS), default="auto", show_default=True)
@click.option("--interpret", is_flag=True, help="Run Triton's kernels in its interpreter: no GPU, slow.")
@click.option(
    "--batches", type=click.IntRange(min=1), default=200, show_default=True, help="Random hostile batches."
)
@click.option("--seed", type=click.IntRange(min=0), default=2025, show_default=True)
@click.pass_context
def check(ctx: click.Context, /, **knobs: Any) -> Experiment:
    """Hold this device's kernels against float64: values, gradients, odd shapes, poisoned memory, hostile
    input.
    """
    from lab.core.plan import Experiment
    from lab.rooms.semicrf.config import CheckConfig
    from lab.rooms.semicrf.plan import plan_check

    config = CheckConfig(**knobs)
    return Experiment("semicrf", lambda site, root: plan_check(config, site), options_of(ctx))


@run_semicrf.command("preprocess")
@click.option("--timit-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--output-dir", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--feature-type", type=click.Choice(["mfcc", "mel"]), default="mfcc", show_default=True)
@click.option("--n-mfcc", type=click.IntRange(min=1), default=13, show_default=True)
@click.option("--n-mels", type=click.IntRange(min=2), default=80, show_default=True)
def preprocess(timit_dir: Path, output_dir: Path, **knobs: Any) -> None:
    """TIMIT folder -> train.jsonl, test.jsonl, segment statistics and the phone mapping."""
    from lab.errors import needs

    with needs("workload"):
        from lab.rooms.semicrf.model.corpus.preprocess import preprocess as convert
    for line in convert(timit_dir, output_dir, **knobs):
        click.echo(line)


def _train(
    ctx: click.Context,
    knobs: dict[str, Any],
    *,
    command: str,
    skipped: tuple[str, ...] = (),
    output_json: Path | None = None,
) -> Experiment:
    from lab.core.files import write_atomic
    from lab.core.plan import Experiment, Plan, Site
    from lab.rooms.semicrf.layout import COMPARISON
    from lab.rooms.semicrf.plan import plan_train

    options = options_of(ctx)
    knobs = _placed(ctx, knobs)

    def make_plan(site: Site, root: Path) -> Plan:
        return plan_train(train_config(knobs, gpus=bool(site.gpus)), site, command=command, skipped=skipped)

    def copy_comparison(root: Path) -> None:
        if output_json is not None:
            write_atomic(output_json, (root / COMPARISON).read_bytes())

    return Experiment("semicrf", make_plan, options, after=copy_comparison)


def train_config(knobs: dict[str, Any], *, gpus: bool) -> Any:
    """Preset, then what the person set; `gpus` chooses the preset where none is named."""
    import msgspec

    from lab.errors import UsageError
    from lab.rooms.semicrf.config import TrainConfig

    knobs = dict(knobs)
    preset = PRESETS[knobs.pop("preset") or ("timit" if gpus else "tiny")]
    if knobs.pop("no_triton"):
        if "triton" in knobs["backends"]:
            raise UsageError(
                "--no-triton and the triton backend contradict each other", fix="drop one of them"
            )
        knobs["backends"] = ["torch" if name == "auto" else name for name in knobs["backends"]]
    given = {name: value for name, value in knobs.items() if value is not None}
    return msgspec.convert({**preset, **given}, TrainConfig)


def _placed(ctx: click.Context, knobs: dict[str, Any]) -> dict[str, Any]:
    """A corpus by its absolute path here; in a container where the image mounts it."""
    if knobs["data"] == "synthetic":
        return knobs
    path = str(_absolute(Path(knobs["data"])))
    if options_of(ctx).image is None:
        return {**knobs, "data": path}
    import os

    from lab.rooms.semicrf.plan import IN_CONTAINER

    os.environ["LAB_CORPUS"] = path
    return {**knobs, "data": IN_CONTAINER}


def _absolute(path: Path | None) -> str | None:
    """Steps work in the run folder, so a path of the person's must not be relative to theirs."""
    if path is None:
        return None
    from lab.errors import MissingError

    if not path.exists():
        raise MissingError("no such file or folder", where=path, fix="--data synthetic needs none")
    return str(path.resolve())
