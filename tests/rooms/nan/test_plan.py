"""What would run: one process per experiment, the baseline first, nixnan only on NVIDIA GPUs."""

from __future__ import annotations

import msgspec
import pytest

from lab.core.plan import Site
from lab.errors import UsageError
from lab.rooms.nan.config import EXPERIMENTS, NanConfig, NixnanConfig, label
from lab.rooms.nan.plan import experiments, plan

NVIDIA = Site(vendor="nvidia", gpus=())
HERE = Site(vendor="none")


def config(*names, **more):
    return NanConfig(experiments=experiments(names), **more)


def test_recipes_expand_each_experiment_once_and_the_baseline_comes_first():
    assert experiments(("eager", "priority")) == ("baseline", "eager", "bfloat16", "attention_scale")
    assert experiments(("all",)) == tuple(EXPERIMENTS)


def test_an_unknown_experiment_is_named():
    with pytest.raises(UsageError, match="no experiment 'basline'"):
        experiments(("basline",))


def test_every_experiment_is_a_process_with_a_folder_of_its_own():
    made = plan(config("all"), HERE)
    assert len({step.folder for step in made.steps}) == len(EXPERIMENTS)
    assert all(step.expects == (f"{step.folder}/result.json",) and step.num_gpus == 0 for step in made.steps)
    assert msgspec.json.decode(made.inputs["nan.json"], type=NanConfig) == config("all")


def test_nixnan_runs_the_same_command_unwatched_and_the_baseline_twice():
    made = plan(config("baseline", "eager", sass=True), NVIDIA)
    assert [step.name for step in made.steps] == ["baseline", "baseline-again", "eager"]
    for step in made.steps:
        assert (
            step.tools == ("nixnan",)
            and "lab.rooms.nan.nixnan.running.runner" in step.argv
            and step.argv[-1] == "--no-hooks"
        )
        assert (
            step.argv.index("lab.rooms.nan.nixnan.running.runner")
            < step.argv.index("--")
            < step.argv.index("lab.rooms.nan.workload")
        )
    alone = plan(config("eager", sass=True), NVIDIA)
    assert [step.name for step in alone.steps] == ["eager"] and "nothing to compare" in alone.notes[0]


@pytest.mark.parametrize("site, more", [(Site(vendor="amd"), {}), (HERE, {}), (NVIDIA, {"device": "cpu"})])
def test_nixnan_is_refused_where_there_are_no_instructions_of_its_kind(site, more):
    with pytest.raises(UsageError):
        plan(config("baseline", sass=True, **more), site)


def test_sampling_is_said_to_hide_births():
    made = plan(config("baseline", sass=True, nixnan=NixnanConfig(sampling=8)), NVIDIA)
    assert any("SAMPLING=8" in note for note in made.notes)


def test_a_label_tells_the_knob_that_the_experiment_turns():
    assert label(config("all", scale=0.25), "attention_scale") == "attention_scale@0.25"
    assert label(config("all"), "eager") == "eager"


def test_a_plan_under_nixnan_says_what_it_will_cost_and_what_an_inventory_is_not():
    notes = plan(config("baseline", sass=True, max_new_tokens=4), NVIDIA).notes
    assert any("1 x 4 tokens" in note and "--inventory" in note for note in notes)
    chosen = plan(config("baseline", sass=True, nixnan=NixnanConfig(only_kernels=("k",))), NVIDIA).notes
    assert not any("--inventory" in note for note in chosen)
    assert any(note.startswith("only 1 kernel will be looked at") for note in chosen)
    left = plan(config("baseline", sass=True, nixnan=NixnanConfig(not_kernels=("k", "l"))), NVIDIA).notes
    assert any(note.startswith("2 kernels will be left alone") for note in left)
    listing = plan(config("baseline", sass=True, nixnan=NixnanConfig(inventory=True)), NVIDIA).notes
    assert any("clears nothing" in note for note in listing) and not any("hours" in note for note in listing)
