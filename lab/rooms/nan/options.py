"""The options of `lab run nan` and `lab run nixnan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lab.terminal.click_types import Decorator, with_options


def _choice(flag: str, values: str, text: str | None = None) -> Decorator:
    """An option with one of some words, the first of which is the default."""
    words = values.split()
    return click.option(flag, type=click.Choice(words), default=words[0], show_default=True, help=text)


def _above_zero(flag: str, default: float, text: str) -> Decorator:
    kind = click.FloatRange(min=0, min_open=True)
    return click.option(flag, type=kind, default=default, show_default=True, help=text)


def _count(flag: str, default: int, text: str, **limits: Any) -> Decorator:
    kind = click.IntRange(min=limits.get("min", 0))
    return click.option(flag, type=kind, default=default, show_default=True, help=text)


_MODEL_HELP = "Hub id, folder, tiny or 7b-shape (the last two are offline, with random weights)."
_QUANT_HELP = "Quantization of the baseline. auto: 4bit for models that are loaded, none for random weights."

EXPERIMENTS = with_options(
    click.argument("experiment", nargs=-1, required=True),
    click.option("--model", default="tiny", show_default=True, help=_MODEL_HELP),
    click.option("--layers", type=click.IntRange(min=1), help="Layers of tiny or 7b-shape. [default: 4, 32]"),
    click.option(
        "--prompt",
        multiple=True,
        default=("dizzy",),
        show_default=True,
        help="Repeat for a left-padded batch.",
    ),
    _count("--max-new-tokens", 50, "Tokens to generate, exactly.", min=1),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random weights."),
    _choice("--dtype", "float16 bfloat16 float32", "Type of the baseline's weights and computation."),
    _choice("--attn", "auto eager sdpa flash_attention_2", "Attention of the baseline."),
    _choice("--quant", "auto none 4bit", _QUANT_HELP),
    _choice("--device", "auto cuda cpu", "Where the model runs. auto: the GPU if there is one."),
    _above_zero("--scale", 0.5, "Factor of attention_scale."),
    _above_zero("--clip", 10.0, "Limit of attention_clip."),
    _above_zero("--eps", 1e-3, "Epsilon of layernorm_eps."),
    click.option(
        "--provoke",
        type=click.Choice(["overflow", "scores", "nan-weight", "masked-softmax"]),
        help="Plant a known cause in one layer.",
    ),
    click.option(
        "--provoke-layer", type=click.IntRange(min=0), help="Layer to plant it in. [default: the middle one]"
    ),
)
WATCH = with_options(
    _choice("--counter", "auto kernel bits norm plain", "How the watch counts."),
    _count("--timing", 7, "Forwards timed with and without the watch; 0: none."),
)
NIXNAN = with_options(
    _count("--sampling", 0, "Instrument 1 in N launches of a kernel; 0: all."),
    click.option(
        "--line-info/--no-line-info",
        default=False,
        show_default=True,
        help="Report source lines; needs code built with them.",
    ),
    _count("--max-errors", 0, "Stop after N lines; 0: never."),
    click.option(
        "--histogram", is_flag=True, help="Log ranges of exponents. It tears lines: needs a run of its own."
    ),
    click.option("--bin-spec", type=click.Path(path_type=Path), help="JSON file of exponent bins."),
    click.option(
        "--only-kernel",
        "only_kernels",
        multiple=True,
        help="Instrument only this exact short name; repeatable.",
    ),
    click.option(
        "--not-kernel",
        "not_kernels",
        multiple=True,
        help="Do not instrument this exact short name; repeatable.",
    ),
    click.option("--fun-detail", is_flag=True, help="Write full names of kernels on repeats too."),
    _choice(
        "--attach",
        "auto inject preload",
        "inject: CUDA_INJECTION64_PATH. preload: LD_PRELOAD. auto: inject, then preload if it never "
        "attached.",
    ),
)
