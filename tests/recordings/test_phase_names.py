"""The one list of names of phases and steps."""

from __future__ import annotations

import re

import pytest

from lab.recordings.phase_names import (
    BACKWARD,
    FORWARD,
    NAMES,
    OPTIMIZER,
    is_step,
    step_family,
)
from lab.recordings.projection import PHASES, STEPS, PhaseNames

KNOWN = {
    FORWARD: [
        *("forward", "Forward 3", "forward pass", "forward_12", "## forward ##", "FORWARD"),
        *("DistributedDataParallel.forward", "forward-compute", "DeepSpeedEngine.forward"),
        *("megatron.core.pipeline_parallel.schedules.forward_step", "GRPOTrainer.compute_loss"),
        "[pl][profile][Strategy]DDPStrategy.training_step",
    ],
    BACKWARD: [
        *("backward", "Backward 0", "backward  pass", "loss.backward()", "backward-compute"),
        *("DeepSpeedEngine.backward", "DeepSpeedZeroOptimizer_Stage3.backward"),
        *("[pl][profile][Strategy]SingleDeviceStrategy.backward", "Accelerator.backward"),
    ],
    OPTIMIZER: [
        *("optimizer", "optimizer_step", "optimizer step", "Optimizer.step#AdamW.step", "optimizer.step"),
        *("DeepSpeedEngine.step", "[pl][profile][LightningModule]Net.optimizer_step", "optimizer-inner-step"),
    ],
    "zero_grad": ["zero_grad", "Optimizer.zero_grad#AdamW.zero_grad"],
    "": [
        "bwd",
        "my_forward_helper",
        "forwarding",
        "step_3",
        "aten::mm",
        "backward_hook",
        "",
        "computing softmax",
    ],
}


@pytest.mark.parametrize(("phase", "name"), [(phase, name) for phase in KNOWN for name in KNOWN[phase]])
def test_a_name_is_the_phase_that_its_framework_means(phase, name):
    assert PhaseNames().phase_of(name) == phase


def test_every_framework_that_the_list_names_has_a_step_or_a_phase():
    frameworks = {framework for names in NAMES.values() for framework in names}
    assert {"Megatron", "Lightning", "DeepSpeed", "Hugging Face", "torchtitan", "PyTorch"} <= frameworks


def test_steps_are_no_phases_but_forward_steps_are_both():
    for name in ("step_3", "ProfilerStep#12", "iteration 7", "[pl][profile]run_training_batch"):
        assert STEPS.fullmatch(name) and not PHASES.fullmatch(name)
    assert STEPS.fullmatch("forward_step_2") and PHASES.fullmatch("forward_step_2")


def test_a_persons_own_names_come_first_and_add_to_the_list():
    names = PhaseNames(((BACKWARD, re.compile("bwd.*")), ("", re.compile("Eval"))))
    assert [names.phase_of(text) for text in ("bwd_1", "Eval", "forward")] == [BACKWARD, "Eval", FORWARD]
    assert [bool(names.pattern.fullmatch(text)) for text in ("bwd_1", "Eval", "eval", "forward", "x")] == [
        *(True, True, False, True, False),
    ]


STEP_FAMILIES = {
    "ProfilerStep#": ["ProfilerStep#12"],
    "step_": ["step_3"],
    "train step: ": ["train step: 9"],
    "rank0/step ": ["rank0/step 7"],
    "my_global_step_": ["my_global_step_12"],
    "megatron/iteration ": ["megatron/iteration 5"],
    "eval_iter.": ["eval_iter.3"],
    "forward_step_": ["forward_step_2"],
    "[pl][profile]run_training_batch": ["[pl][profile]run_training_batch"],
    "SFTTrainer.training_step": ["SFTTrainer.training_step"],
    None: [
        *(
            "dataloader_iter_3",
            "data fetch iter 3",
            "optimizer_step_3",
            "Optimizer step 3",
            "backward_step 2",
        ),
        *("warmup_step_1", "micro step 3", "substep 4", "footstep 3", "literature 3", "step", "aten::mm", ""),
    ],
}


@pytest.mark.parametrize(
    ("family", "name"), [(one, name) for one in STEP_FAMILIES for name in STEP_FAMILIES[one]]
)
def test_steps_are_told_from_numbered_parts_of_steps(family, name):
    assert step_family(name) == family and is_step(name) == (family is not None)


@pytest.mark.parametrize("text", ["load" * 16_000 + "7", "step_" * 13_000 + "x", "step" + "_" * 64_000 + "x"])
def test_a_hostile_name_is_read_in_no_time_that_grows_with_its_square(text):
    assert not is_step(text)
