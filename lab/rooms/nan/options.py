"""The options of `lab run nan` and `lab run nixnan`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.terminal.options import (
    ABOVE_ZERO,
    ONE_OR_MORE,
    ZERO_OR_MORE,
    choice,
    option,
    seed,
    with_options,
)

_MODEL_HELP = "Hub id, folder, tiny or 7b-shape (the last two are offline, with random weights)."
_QUANT_HELP = "Quantization of the baseline. auto: 4bit for models that are loaded, none for random weights."

EXPERIMENTS = with_options(
    click.argument("experiment", nargs=-1, required=True),
    option("--model", default="tiny", help=_MODEL_HELP),
    click.option("--layers", type=click.IntRange(min=1), help="Layers of tiny or 7b-shape. [default: 4, 32]"),
    option(
        "--prompt",
        multiple=True,
        default=("dizzy",),
        help="Text to continue; several make a left-padded batch.",
    ),
    option("--max-new-tokens", type=ONE_OR_MORE, default=50, help="Tokens to generate, exactly."),
    seed(),
    choice("--dtype", "float16 bfloat16 float32", "Type of the baseline's weights and computation."),
    choice("--attn", "auto eager sdpa flash_attention_2", "Attention of the baseline."),
    choice("--quant", "auto none 4bit", _QUANT_HELP),
    choice("--device", "auto cuda cpu", "Where the model runs. auto: the GPU if there is one."),
    option("--scale", type=ABOVE_ZERO, default=0.5, help="Factor of attention_scale."),
    option("--clip", type=ABOVE_ZERO, default=10.0, help="Limit of attention_clip."),
    option("--eps", type=ABOVE_ZERO, default=1e-3, help="Epsilon of layernorm_eps."),
    click.option(
        "--provoke",
        type=click.Choice(["overflow", "scores", "nan-weight", "masked-softmax"]),
        help="Plant a known cause in one layer.",
    ),
    click.option(
        "--provoke-layer", type=ZERO_OR_MORE, help="Layer to plant it in. [default: the middle one]"
    ),
)
WATCH = with_options(
    choice(
        "--counter",
        "auto kernel bits norm plain",
        "How numbers are counted: kernel (Triton), norm (infinity norms first), bits (in C, on a CPU), "
        "plain (torch, slow). auto: kernel on a GPU, norm where Triton is missing, bits on a CPU.",
    ),
    option(
        "--timing",
        type=ZERO_OR_MORE,
        default=7,
        help="Forwards timed with and without the watch; 0: none.",
    ),
)
NIXNAN = with_options(
    option(
        "--sampling",
        type=ZERO_OR_MORE,
        default=0,
        help="Instrument 1 in N launches of a kernel; 0: all.",
    ),
    option(
        "--line-info/--no-line-info",
        default=False,
        help="Report source lines; needs code built with them.",
    ),
    option("--max-errors", type=ZERO_OR_MORE, default=0, help="Stop after N lines; 0: never."),
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
    click.option(
        "--inventory",
        is_flag=True,
        help="Only list the kernels, as options for --only-kernel. Fast; checks nothing.",
    ),
    click.option("--fun-detail", is_flag=True, help="Write full names of kernels on repeats too."),
    choice(
        "--attach",
        "auto inject preload",
        "inject: CUDA_INJECTION64_PATH. preload: LD_PRELOAD. auto: inject, then preload if it never "
        "attached.",
    ),
)

TRAINING = with_options(
    choice("--on-bad", "replay keep raise", "With train: what to do about a bad step."),
)
