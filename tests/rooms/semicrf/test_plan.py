"""Plans and command line: what would run, without torch."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.plan import Site
from lab.rooms.semicrf.cli import train_config
from lab.rooms.semicrf.config import PRESETS, CheckConfig, DiagnoseConfig, TrainConfig
from lab.rooms.semicrf.plan import plan_check, plan_diagnose, plan_train
from tests.command import lab
from tests.test_walls import modules_after

CPU = Site(vendor="none")
NVIDIA = Site(
    vendor="nvidia",
    gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}", name="NVIDIA H200", vendor="nvidia") for i in range(2)),
)
KNOBS = {"preset": None, "no_triton": False, "data": "synthetic", "backends": ["auto"]}


def test_one_step_per_head_and_backend():
    config = TrainConfig(models=["linear", "semicrf"], backends=["torch", "native"])
    steps = plan_train(config, NVIDIA).steps
    assert [s.name for s in steps] == ["linear-torch", "linear-native", "semicrf-torch", "semicrf-native"]
    assert all(s.num_gpus == 1 and s.expects[0] == f"steps/{s.name}/result.json" for s in steps)


def test_the_plans_config_is_what_the_workload_reads():
    plan = plan_train(TrainConfig(crf_reg=0.5), CPU)
    assert msgspec.json.decode(plan.inputs["train.json"], type=TrainConfig).crf_reg == 0.5


@pytest.mark.parametrize("site", [CPU, NVIDIA])
def test_a_check_covers_the_backend_that_runs_by_default(site):
    steps = plan_check(CheckConfig(), site).steps
    assert [step.labels["backend"] for step in steps] == ["auto", "torch"]
    assert all("check.json" in step.argv for step in steps)


@pytest.mark.parametrize("site", [CPU, NVIDIA])
def test_a_diagnosis_tests_the_backend_that_runs_by_default_and_one_beside_it(site):
    plan = plan_diagnose(DiagnoseConfig(train=TrainConfig()), site)
    assert [s.name for s in plan.steps] == ["cells", "reference", "probes"]
    assert {s.labels["backend"] for s in plan.steps} == {"auto"} == {plan.config["tested"]}
    assert all("--backend auto" in " ".join(s.argv) for s in plan.steps)


def test_the_definition_has_nothing_plainer_beside_it():
    plan = plan_diagnose(DiagnoseConfig(train=TrainConfig(backends=["naive"])), CPU)
    assert [s.name for s in plan.steps] == ["cells", "probes"]


def test_a_named_kernel_is_all_that_a_diagnosis_then_looks_at():
    plan = plan_diagnose(DiagnoseConfig(train=TrainConfig(), partition="pkg:f", import_path="/here"), NVIDIA)
    (step,) = plan.steps
    assert step.name == "partition" and step.num_gpus == 1 and plan.config["tested"] == "pkg:f"
    assert any("kernel under test: pkg:f" in note for note in plan.notes)


def test_a_head_that_cannot_run_here_is_a_row_with_its_reason():
    plan = plan_train(TrainConfig(models=["pytorch-crf", "linear"]), CPU, skipped=("pytorch-crf",))
    assert plan.skipped == {"pytorch-crf-own": "the package torchcrf (PyPI: pytorch-crf) is not installed"}


def test_flags_go_over_the_preset_and_no_triton_reaches_every_backend():
    config = train_config({**KNOBS, "preset": "smoke", "epochs": 7, "lr": None, "no_triton": True}, gpus=True)
    assert config.epochs == 7 and config.lr == PRESETS["smoke"]["lr"] and config.backends == ["torch"]


def test_the_benchmarks_setting_is_the_default_on_a_gpu():
    config = train_config(KNOBS, gpus=True)
    assert (config.hidden_dim, config.num_layers, config.epochs, config.batch_size, config.max_duration) == (
        256,
        3,
        50,
        32,
        30,
    )
    assert (config.lr, config.weight_decay, config.clip, config.crf_reg) == (1e-3, 1e-5, 5.0, 0.0)


def test_the_guides_flags_are_understood(tmp_path):
    done = lab(
        "run",
        "--dry-run",
        "--json",
        "semicrf",
        "train",
        "--model",
        "semicrf",
        "--max-duration",
        "30",
        "--crf-reg",
        "0.01",
        "--backend",
        "streaming",
        "--no-triton",
        "--fixed-length",
        "200",
        "--log-every",
        "5",
        "--data-dir",
        "synthetic",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)["config"]
    assert (config["crf_reg"], config["fixed_length"], config["log_every"], config["backends"]) == (
        0.01,
        200,
        5,
        ["torch"],
    )


@pytest.mark.parametrize(
    "words, text",
    [
        (["train", "--data", "/no/such/folder"], "no such file or folder"),
        (["train", "--model", "crf"], "'crf' is none of pytorch-crf, linear, semicrf"),
        (["train", "--backend", "torch,torch"], "twice"),
        (["train", "--backend", "torch,exact"], "--backend names torch twice: exact is read as torch"),
        (["diagnose", "--backend", "torch,naive"], "diagnose tests one backend, got torch, naive"),
        (["train", "--backend", "triton"], "'triton' is none of auto, naive, torch, native"),
    ],
)
def test_wrong_words_are_told(words, text, tmp_path):
    done = lab("run", "semicrf", *words, cwd=tmp_path)
    assert done.returncode in (2, 4) and text in done.stderr and not list(tmp_path.iterdir())


def test_the_room_and_its_plans_import_no_torch():
    code = (
        "import lab.rooms.semicrf, lab.rooms.semicrf.cli\nfrom lab.rooms.semicrf.plan import *\n"
        "plan_train(TrainConfig(), Site(vendor='none'))"
    )
    assert not modules_after(code) & {"torch", "numpy", "pandas", "matplotlib"}


def test_the_models_names_come_when_they_are_asked_for():
    pytest.importorskip("torch")
    import lab.rooms.semicrf as room

    assert all(callable(getattr(room, name)) for name in room.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = room.nothing


def test_a_corpus_enters_a_container_read_only_at_one_place(tmp_path):
    (tmp_path / "TIMIT").mkdir()
    done = lab(
        "run", "--image", "cpu", "--dry-run", "--json", "semicrf", "train", "--data", "TIMIT", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["config"]["data"] == "/corpus"
    for step in plan["steps"]:
        assert {"source": str(tmp_path / "TIMIT"), "target": "/corpus", "read_only": True} in step["starts"][
            "mounts"
        ]


def test_a_case_is_probed_and_never_trained():
    plan = plan_diagnose(DiagnoseConfig(train=TrainConfig(), case="/somewhere/case.npz"), CPU)
    assert [s.labels["part"] for s in plan.steps] == ["probes"]


def test_preprocess_takes_its_own_output_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    done = lab("run", "semicrf", "preprocess", "--timit-dir", "empty", "--output-dir", "out", cwd=tmp_path)
    assert done.returncode == 4 and "no folder TRAIN" in done.stderr, done.stderr
