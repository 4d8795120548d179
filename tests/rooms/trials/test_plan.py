"""The order of trials, their seeds, and how cells are named and refused."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from lab.core.gpu import Gpu
from lab.core.plan import Site
from lab.errors import ConfigError, LabError, UsageError
from lab.rooms.trials.cells import Matrix, Part, cell, cells_of, checked, read_matrix
from lab.rooms.trials.config import TrialsConfig
from lab.rooms.trials.plan import plan

NOWHERE = Site(vendor="none")


def made(cells=("none", "tf32_off", "nccl_ring"), **more):
    made_of = tuple(cell(one) for one in cells)
    config = TrialsConfig(
        command=("true",), cells=made_of, baseline="none", **{"trials": 30, "fail": "exit!=0", **more}
    )
    return plan(config, NOWHERE)


def test_every_block_holds_every_cell_once_and_in_changing_order():
    steps = made().steps
    blocks = [steps[at : at + 3] for at in range(0, 90, 3)]
    orders = Counter(tuple(step.labels["cell"] for step in block) for block in blocks)
    for number, block in enumerate(blocks):
        assert {step.labels["cell"] for step in block} == {"none", "tf32_off", "nccl_ring"}
        assert {step.labels["trial"] for step in block} == {number}
    assert len(orders) > 3 and [step.labels["order"] for step in steps] == list(range(90))


def test_the_seed_fixes_the_order_and_a_block_shares_one():
    assert made(seed=1).steps == made(seed=1).steps != made(seed=2).steps
    assert {(s.labels["trial"], s.labels["seed"]) for s in made(seed=5).steps} == {
        (n, n + 5) for n in range(30)
    }
    assert {s.labels["seed"] for s in made(seed=5, same_seed=True).steps} == {5}


def test_a_trial_takes_no_gpu_where_there_is_none():
    assert {step.num_gpus for step in made(num_gpus=2).steps} == {0}


def test_cells_are_presets_sums_of_them_and_yaml():
    assert cell("none").env == {} and cell("tf32_off").env == {"NVIDIA_TF32_OVERRIDE": "0"}
    both = cell("tf32_off+nccl_ring")
    assert both.name == "tf32_off-nccl_ring" and set(both.env) == {"NVIDIA_TF32_OVERRIDE", "NCCL_ALGO"}
    own = cell("{env: {A: 1, B: x y}, args: [--lr, 0.1]}")
    assert (
        own.env == {"A": "1", "B": "x y"} and own.args == ("--lr", "0.1") and own.name == "a-1-b-x-y-lr-0.1"
    )


@pytest.mark.parametrize(
    "text",
    [
        "nope",
        "{image: no-such-image}",
        "{env: {'A=B': 1}}",
        "{name: ../x}",
        "{env: [1]}",
        "{",
        "{name: x, a: &a 1, b: *a}",
    ],
)
def test_what_is_no_cell_is_refused(text):
    with pytest.raises(LabError) as error:
        cell(text)
    assert isinstance(error.value, (UsageError, ConfigError))


def test_two_cells_of_one_name_are_refused():
    with pytest.raises(UsageError, match="two cells are named 'none'"):
        checked([cell("none"), cell("none")])


def test_axes_are_multiplied():
    axes = {"a": {"x": Part(env={"A": 1}), "y": Part()}, "b": {"u": Part(args=("-u",)), "v": Part()}}
    found = cells_of(Matrix(command="true", axes=axes, cells=("none",)))
    assert [one.name for one in found] == ["none", "x-u", "x-v", "y-u", "y-v"]
    assert found[1].env == {"A": "1"} and found[1].args == ("-u",)


@pytest.mark.parametrize(
    "text", ["", "[1]", "command: x\nnope: 1\n", "a: &a [1]\nb: *a\n", "command: !!python/name:os.system x"]
)
def test_a_matrix_that_does_not_fit_is_refused(tmp_path, text):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_matrix(path)


def test_aliases_and_large_files_are_refused_before_they_unfold(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("command: x\ncells:\n- &a {name: x}\n- *a\n")
    with pytest.raises(ConfigError, match="aliases are not read"):
        read_matrix(path)
    path.write_text("command: x\n#" + "x" * (1 << 20))
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        read_matrix(path)


def test_cells_have_seeds_gpus_and_nodes_of_their_own():
    gpus = tuple(Gpu(vendor="nvidia", index=n, uuid=f"GPU-{n}") for n in range(2))
    texts = ("none", "{gpu: 1}", "{seed: 70}")
    config = TrialsConfig(
        command=("true",), cells=tuple(cell(one) for one in texts), baseline="none", trials=2, fail="exit!=0"
    )
    steps = plan(config, Site(vendor="nvidia", gpus=gpus)).steps
    by = {(step.labels["cell"], step.labels["trial"]): step for step in steps}
    assert {name for name, _ in by} == {"none", "gpu-1", "seed-70"}
    assert by["gpu-1", 0].gpu == "1" and by["gpu-1", 0].num_gpus == 1 and by["none", 0].gpu is None
    assert [by["seed-70", n].labels["seed"] for n in range(2)] == [70, 71]
    assert [by["none", n].labels["seed"] for n in range(2)] == [0, 1]


@pytest.mark.parametrize(
    "text, resolved, word", [("{node: n1}", True, "--engine slurm"), ("{gpu: 0}", False, "node")]
)
def test_a_place_that_the_engine_cannot_give_is_refused(text, resolved, word):
    config = TrialsConfig(command=("true",), cells=(cell(text),), baseline="x", trials=1, fail="exit!=0")
    with pytest.raises(UsageError) as error:
        plan(config, Site(vendor="none", resolved=resolved))
    assert word in str(error.value)


@pytest.mark.parametrize("text", ["{node: 'n1,n2'}", "{node: '--wrap=x'}", "{seed: -1}", "{gpu: [0]}"])
def test_places_and_seeds_that_are_none_are_refused(text):
    with pytest.raises(LabError):
        cell(text)


def test_two_axes_that_contradict_each_other_are_refused():
    axes = {"a": {"x": Part(gpu=0)}, "b": {"u": Part(gpu=1)}}
    with pytest.raises(UsageError, match="another gpu"):
        cells_of(Matrix(command="true", axes=axes))


def over_images(*texts: str, **more):
    cells = tuple(cell(one) for one in texts)
    return TrialsConfig(
        command=("true",), cells=cells, baseline=cells[0].name, trials=20, fail="exit!=0", cwd="/here", **more
    )


def test_cells_over_images_are_interleaved_and_each_step_names_its_own():
    steps = plan(over_images("none", "{image: cuda}", "{name: b, image: cpu, env: {A: 1}}"), NOWHERE).steps
    found = {(step.labels["cell"], step.image, step.source, step.argv[-1]) for step in steps}
    assert found == {
        ("none", None, None, "/here"),
        ("image-cuda", "cuda", "/here", "/src"),
        ("b", "cpu", "/here", "/src"),
    }
    orders = {tuple(step.image for step in steps[at : at + 3]) for at in range(0, 60, 3)}
    assert len(orders) == 6 and all(set(order) == {None, "cuda", "cpu"} for order in orders)


def test_the_image_of_the_run_is_that_of_cells_that_name_none():
    steps = plan(over_images("none", "{image: cuda}", image="cpu"), NOWHERE).steps
    assert {(step.labels["cell"], step.image, step.source) for step in steps} == {
        ("none", None, "/here"),
        ("image-cuda", "cuda", "/here"),
    }


def test_a_plan_says_what_an_image_changes_besides_itself():
    notes = " ".join(plan(over_images("none", "{image: cpu}"), NOWHERE).notes)
    assert "runs in /src: /here, mounted read-only" in notes and "an image differs in all that" in notes
    assert "image" not in " ".join(plan(over_images("none", "tf32_off"), NOWHERE).notes)


def test_images_are_one_axis_of_a_matrix():
    axes = {
        "at": {"a": Part(image="cpu"), "b": Part(image="cuda")},
        "s": {"x": Part(seed=1), "y": Part(seed=2)},
    }
    found = cells_of(Matrix(command="true", axes=axes))
    assert [(one.name, one.image, one.seed) for one in found] == [
        ("a-x", "cpu", 1),
        ("a-y", "cpu", 2),
        ("b-x", "cuda", 1),
        ("b-y", "cuda", 2),
    ]


def test_a_folder_that_no_container_may_get_is_refused_for_cells_and_said_for_a_run(monkeypatch):
    from lab.rooms.trials.settings import folder_of

    monkeypatch.chdir("/")
    assert folder_of([None], None) == "/" and folder_of([None], "cpu") is None
    with pytest.raises(UsageError, match="cannot be mounted into the containers"):
        folder_of([None, "cpu"], None)
    config = TrialsConfig(
        command=("true",), cells=(cell("none"),), baseline="none", trials=1, fail="exit!=0", image="cpu"
    )
    assert "the command runs in the run folder" in " ".join(plan(config, NOWHERE).notes)


def test_a_preset_beside_a_persons_own_change_is_not_called_without_effect():
    """Nothing reads the preset's variable, perhaps; what reads the other one is not known."""
    assert cell("tf32_off").read_by and cell("{mitigations: [tf32_off]}").read_by
    for more in ("env: {A: 1}", "args: [--slow]", "seed: 3", "gpu: 0", "node: n1", "image: cpu"):
        assert not cell(f"{{name: x, mitigations: [tf32_off], {more}}}").read_by
    assert cell("{mitigations: [flash_off], env: {A: 1}}").settings == ("flash_off",)  # is made in any case


def test_settings_of_a_run_of_an_earlier_version_can_be_read(tmp_path):
    """Its cells have the fields of control arms, which went."""
    from lab.rooms.trials.config import read_settings

    cell = {"name": "none", "slow_as": None, "paused": None}
    settings = {"command": ["x"], "cells": [cell], "baseline": "none", "trials": 1, "fail": "exit!=0"}
    (tmp_path / "trials.json").write_text(json.dumps(settings))
    assert read_settings(tmp_path / "trials.json").cells[0].name == "none"
