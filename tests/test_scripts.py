"""The old names of the sweep's and nsys' scripts: each calls lab once, with everything that was typed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

ALIASES = {
    "run_tracelens_analysis.sh": ["gemm", "all", "--in-place"],
    "merge_all_traces.sh": ["gemm", "merge", "--in-place", "--format", "original"],
    "extract_all_analyses.sh": ["nsys", "answers"],
    "export_stats_reports.sh": ["analyze"],
    "run_with_nixnan.sh": ["run", "--image", "cuda", "nixnan"],
}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A stand-in for lab that prints its arguments, one a line, and fails with 7."""
    program = tmp_path / "lab"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 7\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("name", ALIASES)
def test_an_old_name_calls_lab_with_every_argument_and_passes_its_exit_code(lab: Path, name: str) -> None:
    typed = ["-c", "28,42", "a folder", "-s"]
    done = subprocess.run(
        [ROOT / "scripts" / name, *typed],
        env={"LAB": str(lab), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [*ALIASES[name], *typed]
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("flags", "typed"),
    [
        ("-c 28 -t 256 -p 2 -s -o OUT -f tiny", "run -o OUT sweep -c 28 -t 256 -p 2 -s -f tiny"),
        ("--output-dir OUT -c 28,42", "run -o OUT sweep -c 28,42"),
        ("-c 28", "run sweep -c 28"),
    ],
)
def test_the_sweep_takes_the_flags_of_the_original(lab: Path, tmp_path: Path, flags: str, typed: str) -> None:
    from click.testing import CliRunner

    from lab.cli.main import cli

    folder = str(tmp_path / "an o")
    words, expected = ([word.replace("OUT", folder) for word in text.split()] for text in (flags, typed))
    program, env = ROOT / "scripts/run_train_various_channels.sh", {"LAB": str(lab), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([program, *words], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == expected and done.returncode == 7
    plan = CliRunner().invoke(cli, ["run", "--dry-run", "--gpus", "none", *expected[1:]])
    assert plan.exit_code == 0 and "THREADS" in plan.output.upper()


def images_here(
    tmp_path: Path, *names: str, docker: str, lab: str = 'echo "$@" >> "$0.said"'
) -> tuple[int, list[str], str]:
    for name, body in (("docker", docker), ("lab", lab)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts/images-here.sh", *names],
        capture_output=True,
        text=True,
        check=False,
        env={"LAB": str(tmp_path / "lab"), "PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    said = tmp_path / "lab.said"
    return done.returncode, said.read_text().splitlines() if said.exists() else [], done.stderr


NO_REGISTRY = 'case "$*" in "image inspect local/"*) exit 0;; "image inspect"*|pull*) exit 1;; esac'


def test_images_are_built_on_stand_ins_where_no_base_can_be_pulled(tmp_path: Path) -> None:
    code, said, _ = images_here(tmp_path, docker=NO_REGISTRY)
    assert code == 0 and said == [
        "images build --quiet cpu --base local/debian-python:bookworm",
        "images build --quiet pascal --base local/debian-python310:bookworm",
        "images build --quiet cuda --base local/debian-python312:bookworm --build-arg NSYS_PACKAGE= "
        "--build-arg CUDA_PACKAGES=",
    ]


def test_images_are_built_on_their_own_bases_where_these_can_be_pulled(tmp_path: Path) -> None:
    code, said, _ = images_here(
        tmp_path, "rocm70", "cpu-torch", docker='case "$*" in "image inspect"*) exit 1;; esac'
    )
    assert code == 0 and said == ["images build --quiet rocm70", "images build --quiet cpu-torch"]


def test_an_image_that_cannot_be_built_is_named_and_the_next_is_built(tmp_path: Path) -> None:
    fails = 'echo "$@" >> "$0.said"; case "$*" in *pascal*) exit 6;; esac'
    code, said, complaint = images_here(tmp_path, "rocm70", "pascal", "cpu", docker=NO_REGISTRY, lab=fails)
    assert code == 1 and "nothing stands in for it" in complaint and "not built: rocm70 pascal" in complaint
    assert said[-1].endswith("cpu --base local/debian-python:bookworm")
