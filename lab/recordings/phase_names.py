"""How programs and frameworks name their steps and the phases of a step: the one list that lab reads.

Names are matched in full, without regard to case; blanks and underscores are alike. Further ones are given
with `--phase`. A name that contains the word somewhere (`my_forward_helper`) is none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

STEP_PREFIX = "ProfilerStep#"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer_step"

# phase -> who names it so -> the names. Other phases than the three are found, and stand for themselves.
NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    FORWARD: {
        "any program": (r"forward([_ ](pass|step))?([_ ]\d+)?", r"## forward ##"),
        "PyTorch": (r"(DistributedDataParallel|FullyShardedDataParallel)\.forward",),
        "Megatron": (r"forward-compute", r"(megatron\.[\w.]+\.)?forward_step(_helper)?"),
        "Lightning": (r"\[pl\]\[profile\](\[Strategy\]\w+\.)?(training|validation|test|predict)_step",),
        "DeepSpeed": (r"DeepSpeedEngine\.forward",),
        "Hugging Face": (r"(\w*Trainer\.)?compute_loss",),
        "torchtitan": (r"Forward \d+",),  # of a microbatch, by torch.distributed.pipelining
        "vLLM": (r"gpu_model_runner: forward",),
    },
    BACKWARD: {
        "any program": (r"backward([_ ](pass|step))?([_ ]\d+)?", r"## backward ##", r"loss\.backward(\(\))?"),
        "Megatron": (r"backward-compute", r"(megatron\.[\w.]+\.)?backward_step(_helper)?"),
        "Lightning": (r"\[pl\]\[profile\](\[Strategy\]\w+\.)?backward",),
        "DeepSpeed": (r"(DeepSpeedEngine|DeepSpeedZeroOptimizer\w*)\.backward",),
        "Hugging Face": (r"(Accelerator|accelerator)\.backward",),
        "torchtitan": (r"Backward \d+",),
    },
    OPTIMIZER: {
        "any program": (
            r"optimizer([_ ](pass|step))?([_ ]\d+)?",
            r"## optimizer ##",
            r"optimizer\.step(\(\))?",
        ),
        "PyTorch": (r"Optimizer\.step#.*",),
        "Megatron": (r"optimizer-(inner-)?step", r"megatron\.[\w.]*Optimizer\.step"),
        "Lightning": (r"\[pl\]\[profile\](\[(Strategy|LightningModule)\]\w+\.)?optimizer_step",),
        "DeepSpeed": (r"(DeepSpeedEngine|DeepSpeedZeroOptimizer\w*)\.step",),
        "Hugging Face": (r"AcceleratedOptimizer\.step",),
    },
    "loss": {"any program": (r"loss",)},
    "zero_grad": {
        "any program": (r"zero_grad", r"optimizer\.zero_grad(\(\))?"),
        "PyTorch": (r"Optimizer\.zero_grad#.*",),
        "Lightning": (r"\[pl\]\[profile\](\[LightningModule\]\w+\.)?optimizer_zero_grad",),
        "DeepSpeed": (r"DeepSpeed\w+\.zero_grad",),
    },
}

# Parts of a step that are numbered, too, are not steps: `dataloader_iter_3`, `optimizer_step 3`.
_PART = (
    r"(?!.*(load|fetch|data|optim|backward|sched|micro|sub|inner|grad|warm)\w{0,12}[ _.:/-]{0,3}(step|iter))"
)
STEP_NAMES: dict[str, tuple[str, ...]] = {
    "any program": (
        _PART + r"(.*[^a-z])?(training|train|eval|forward|measure)?[_ ]?(step|iter(ation)?)[ _#:.-]*\d+",
    ),
    "PyTorch": (r"ProfilerStep#\d+",),
    "Lightning": (r"\[pl\]\[profile\]run_training_batch",),
    "Hugging Face": (r"\w*Trainer\.training_step",),
}

WARMUP_NAMES = (r"warm[-_ ]?up.*",)


def _any(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)


_OF_PHASE = {
    phase: _any([name for names in by_framework.values() for name in names])
    for phase, by_framework in NAMES.items()
}
PHASES = _any([one.pattern for one in _OF_PHASE.values()])
STEPS = _any([name for names in STEP_NAMES.values() for name in names])
_AT_THE_END = re.compile(r"\d+\Z")
WARMUPS = _any(list(WARMUP_NAMES))


def is_step(text: str) -> bool:
    """Whether a range of this name is a step; most texts of a recording are told by a word that they lack."""
    lower = text.lower()
    return ("step" in lower or "iter" in lower or "train" in lower) and STEPS.fullmatch(text) is not None


def step_number(text: str) -> int:
    """N of torch.profiler's ProfilerStep#N, else -1."""
    digits = text.removeprefix(STEP_PREFIX)
    return int(digits) if digits != text and digits.isdecimal() and len(digits) < 10 else -1


def is_warmup(text: str) -> bool:
    return bool(WARMUPS.fullmatch(text))


def step_family(text: str) -> str | None:
    """What names of one kind of step have in common: `train step ` of `train step 7`; None for no step."""
    return _AT_THE_END.sub("", text) if is_step(text) else None


@dataclass(frozen=True)
class PhaseNames:
    """The list above, and a person's own names before it: (phase, or "" for the name itself; a pattern)."""

    custom: tuple[tuple[str, re.Pattern[str]], ...] = ()

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Fits every name of a phase in full."""
        patterns = [f"(?-i:{one.pattern})" for _, one in self.custom]
        return _any([*patterns, PHASES.pattern]) if patterns else PHASES

    def phase_of(self, text: str) -> str:
        """The phase of a range's name, "" for none."""
        for phase, pattern in self.custom:
            if pattern.fullmatch(text):
                return phase or text
        bare = re.sub(r"[\s_]+", "_", text.strip())
        return next(
            (phase for phase, one in _OF_PHASE.items() if one.fullmatch(text) or one.fullmatch(bare)), ""
        )
