"""What is planned: captures shared by parts once, twins without a profiler, cells that cannot fit skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.core.gpu import Gpu
from lab.core.plan import Site
from lab.errors import ConfigError, UsageError
from lab.rooms.nsys import config as knobs
from lab.rooms.nsys.cli import config_of, nsys
from lab.rooms.nsys.config import NsysConfig, cells, resolved
from lab.rooms.nsys.plan import plan
from tests.test_walls import HEAVY, modules_after

H200 = Site(vendor="nvidia", gpus=(Gpu(vendor="nvidia", index=0, uuid="GPU-1", mem_bytes=143 * 10**9),))
GTX = Site(vendor="nvidia", gpus=(Gpu(vendor="nvidia", index=0, uuid="GPU-1", mem_bytes=11 * 10**9),))
CPU = Site(vendor="none")


def names(config, site=H200):
    return [step.name for step in plan(config, site, Path("out")).steps]


def test_five_parts_share_fifteen_captures_each_with_a_twin():
    steps = plan(NsysConfig(parts=("a", "b", "c", "d", "e"), context_lengths=(512,)), H200, Path("out")).steps
    recorded = [step for step in steps if step.labels["profiled"]]
    assert len(recorded) == 15 and len(steps) == 30
    assert len({step.folder for step in steps}) == 30


def test_all_is_the_published_matrix_of_sixty_captures():
    assert len(cells(resolved(NsysConfig(parts=knobs.parse_parts("all")), on_gpu=True))) == 60


def test_part_a_needs_forward_passes_alone_and_part_d_training_too():
    assert {cell.type for cell in cells(resolved(NsysConfig(parts=("a",)), on_gpu=True))} == {"forward"}
    assert {cell.type for cell in cells(resolved(NsysConfig(parts=("d",)), on_gpu=True))} == {
        "forward",
        "training",
    }


def test_the_documented_matrix_is_two_sizes_four_contexts_three_types():
    config = NsysConfig(
        model_sizes=("small", "medium"),
        context_lengths=(128, 256, 512, 1024),
        profile_types=knobs.parse_types("forward,forward_backward,training"),
    )
    assert len(cells(resolved(config, on_gpu=True))) == 24


def test_without_a_gpu_the_tiny_size_runs_on_the_cpu():
    done = plan(NsysConfig(parts=("a",)), CPU, Path("out"))
    assert [step.name for step in done.steps] == ["tiny_ctx128_forward_unprofiled", "tiny_ctx128_forward"]
    assert all("--device cpu" in " ".join(step.argv) and step.num_gpus == 0 for step in done.steps)
    assert "but no kernels" in done.notes[0]


def test_nsys_can_only_be_a_must_where_there_is_an_nvidia_gpu():
    with pytest.raises(UsageError, match="nsys needs an NVIDIA GPU"):
        plan(NsysConfig(collector="nsys"), CPU, Path("out"))
    amd = Site(vendor="amd", gpus=(Gpu(vendor="amd", index=0, uuid="x"),))
    done = plan(NsysConfig(parts=("d",)), amd, Path("out"))
    assert "torch.profiler records the same ranges" in done.notes[0]


def test_a_cell_that_surely_does_not_fit_is_skipped_with_its_estimate():
    config = NsysConfig(model_sizes=("small", "2.7B"), profile_types=("forward", "training"))
    skipped = plan(config, GTX, Path("out")).skipped
    # 54.5 GB for training and 13.6 GB for the weights alone, against 11 GB.
    assert set(skipped) == {
        f"2.7b_ctx512_{kind}{twin}" for kind in ("forward", "training") for twin in ("", "_unprofiled")
    }
    assert "54.5 GB" in skipped["2.7b_ctx512_training"]
    assert not plan(config, H200, Path("out")).skipped


def test_existing_results_are_skipped_also_those_that_ran_out_of_memory(tmp_path):
    done = tmp_path / "captures" / "small_ctx512_forward" / "cell.json"
    done.parent.mkdir(parents=True)
    done.write_text('{"outcome": "oom"}')
    config = NsysConfig(model_sizes=("small",), profile_types=("forward", "training"))
    assert list(plan(config, H200, tmp_path, skip_existing=True).skipped) == ["small_ctx512_forward"]


def test_the_flags_of_the_command_line_reach_the_workload():
    flags = {
        "parts": "b,c",
        "model_sizes": "small",
        "context_lengths": "64,32",
        "profile_types": None,
        "batch_size": 2,
        "warmup_steps": 1,
        "measure_steps": 3,
        "annotated_attention": False,
        "softmax": "fused",
        "fused_qkv": True,
        "dtype": "bf16",
        "seed": 7,
        "collector": "kineto",
        "twin": False,
        "keep_original": False,
        "pause_s": 0.0,
    }
    steps = plan(config_of(flags), H200, Path("out")).steps
    assert [step.labels["context"] for step in steps] == [64, 64, 32, 32]
    words = " ".join(steps[0].argv)
    assert "--batch-size 2 --warmup-steps 1 --measure-steps 3 --dtype bf16 --softmax fused --seed 7" in words
    assert (
        "--fused-qkv" in words and "--use-annotated-attention" not in words and "--collector kineto" in words
    )


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (knobs.parse_parts, "a,f"),
        (knobs.parse_parts, ","),
        (knobs.parse_sizes, "huge"),
        (knobs.parse_types, "inference"),
    ],
)
def test_unknown_parts_sizes_and_types_are_refused_by_name(read, text):
    with pytest.raises(UsageError):
        read(text)


def test_parts_may_be_named_as_the_published_scripts_do():
    assert knobs.parse_parts("b_c") == ("b", "c") and knobs.parse_parts("E,a") == ("a", "e")


def test_the_plan_is_the_same_for_a_machine_to_read():
    from lab.cli.main import cli

    done = CliRunner().invoke(cli, ["run", "--image", "cuda", "--dry-run", "--json", "nsys", "--part", "a"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert len(document["steps"]) == 10 and document["config"]["collector"] == "auto"
    assert nsys.name == "nsys"


def test_a_plan_loads_nothing_heavy():
    words = ["run", "--image", "cuda", "--dry-run", "--json", "nsys", "--part", "all"]
    code = f"from lab.cli.main import main\ntry: main({words!r})\nexcept SystemExit: pass"
    assert not modules_after(code) & HEAVY


def test_step_names_that_two_cells_would_share_cannot_be(tmp_path):
    from lab.core.step import check_steps

    steps = plan(NsysConfig(parts=knobs.parse_parts("all")), H200, tmp_path).steps
    check_steps(steps)
    with pytest.raises(ConfigError):
        check_steps([*steps, steps[0]])
