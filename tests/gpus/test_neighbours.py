"""Who else uses a GPU is said in plans and by lab doctor; a GPU that does not answer is left out by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lab.core.gpu import STEP, Gpu, GpuProcess
from lab.core.options import Options
from lab.engines.local.engine import LocalEngine
from lab.errors import GpuError
from lab.gpus import neighbours
from lab.gpus.amd import amd_gpus
from lab.gpus.discover import look
from lab.gpus.neighbours import notes_on, others, processes_on
from tests.gpus.test_amd import Tree

UUID, OTHER = "GPU-aa-1", "GPU-bb-2"
GPUS = [Gpu(vendor="nvidia", index=0, uuid=UUID), Gpu(vendor="nvidia", index=1, uuid=OTHER)]
ROW = "{}, {}, NVIDIA H100, 570.86.15, 81559, 700.00, 1980, 2619, 9.0, Disabled"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """An nvidia-smi alone on PATH that answers with these lines per kind of query, and no NVML."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(**answers: str) -> None:
        branches = "\n".join(
            f"  --query-{name.replace('_', '-')}*) echo '{text}';;" for name, text in answers.items()
        )
        path = tmp_path / "nvidia-smi"
        path.write_text(f'#!/bin/sh\ncase "$1" in\n{branches}\nesac\n')
        path.chmod(0o755)

    return make


def test_a_process_on_a_gpu_is_named_with_its_memory(smi):
    smi(compute_apps=f"{UUID}, 4242, python3, 61234\nGPU-elsewhere, 7, x, 9")
    assert processes_on(GPUS) == [GpuProcess(gpu=UUID, pid=4242, name="python3", mem_bytes=61234 * 2**20)]
    (note,) = notes_on(GPUS)
    assert note.startswith("GPU 0 is in use: process 4242 (python3) runs on it and holds 61,234 MiB")


def test_memory_without_a_process_is_said_where_it_is_more_than_a_drivers_own(smi):
    smi(compute_apps="", gpu=f"{UUID}, 1023\n{OTHER}, 40000")
    assert processes_on(GPUS) == [GpuProcess(gpu=OTHER, pid=0, mem_bytes=40000 * 2**20)]
    assert "40,000 MiB" in notes_on(GPUS)[0] and notes_on(GPUS)[0].startswith("GPU 1 is in use")


def test_a_free_gpu_gives_no_word(smi):
    smi(compute_apps="", gpu=f"{UUID}, 3")
    assert notes_on(GPUS) == ()


def test_processes_of_a_step_are_no_neighbours_of_it_and_inherit_the_mark():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    marked = subprocess.Popen(["/bin/cat"], env={**os.environ, STEP: "run/one"}, bufsize=0, **pipes)
    rows = [
        GpuProcess(gpu=UUID, pid=marked.pid),
        GpuProcess(gpu=UUID, pid=os.getpid()),
        GpuProcess(gpu=UUID, pid=0),
    ]
    try:
        # Popen may return before /proc shows the environment of the new program: an answer comes after that.
        marked.stdin.write(b"?")
        assert marked.stdout.read(1) == b"?"
        assert [row.pid for row in others(rows, "run/one")] == [os.getpid()]
        assert [row.pid for row in others(rows, "run/other")] == [marked.pid, os.getpid()]
    finally:
        marked.kill()
        marked.communicate()


@pytest.mark.parametrize("answer", ["[Unknown Error]", "[GPU is lost]", "[GPU requires reset]", "ERR!"])
def test_a_gpu_that_does_not_answer_is_left_out_and_named(smi, answer):
    dead = ", ".join(["1", answer, answer, "570.86.15", *[answer] * 6])
    smi(gpu=f"{ROW.format(0, UUID)}\n{dead}")
    found = look({})
    assert [gpu.uuid for gpu in found.gpus] == [UUID] and found.dead == found.notes
    assert found.dead[0].startswith(f"GPU 1 is left out: it does not answer ({answer})")
    site, _ = LocalEngine.prepare(Options())
    assert [gpu.uuid for gpu in site.gpus] == [UUID] and found.dead[0] in site.notes
    with pytest.raises(GpuError, match="matches 1") as caught:
        LocalEngine.prepare(Options(gpus="1-1"))
    assert "GPU 1 is left out" in str(caught.value)
    with pytest.raises(GpuError, match="GPU 1 is left out"):
        look({"CUDA_VISIBLE_DEVICES": "1"})
    smi(gpu=dead)
    with pytest.raises(GpuError, match="no NVIDIA GPU here answers"):
        look({})


def partitions(tmp_path, uniques):
    tree = Tree(tmp_path)
    for number, unique in enumerate(uniques):
        tree.node(number, drm_render_minor=128 + number, gfx_target_version=90402, unique_id=unique)
        tree.write(f"class/kfd/kfd/topology/nodes/{number}/gpu_id", f"{100 + number}\n")
        tree.device_node(128 + number)
    return tree.env


def test_partitions_of_one_gpu_have_leases_of_their_own(tmp_path):
    gpus = amd_gpus(partitions(tmp_path, [7, 7, 8]))
    assert [gpu.uuid[-2:] for gpu in gpus] == ["-0", "-1", "08"] and len({gpu.uuid for gpu in gpus}) == 3
    assert [gpu.parent for gpu in gpus] == [f"GPU-{7:016x}", f"GPU-{7:016x}", None]
    assert [gpu.number for gpu in gpus] == ["0", "1", "2"]


def test_an_amd_gpus_processes_are_those_of_its_own_partition(tmp_path):
    env = partitions(tmp_path, [7, 7])
    for pid, number, used in ((4242, 100, 5 << 30), (4242, 101, 0), (77, 101, 1 << 20)):
        path = tmp_path / f"sys/class/kfd/kfd/proc/{pid}/vram_{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{used}\n")
    first, second = amd_gpus(env)
    assert [(row.pid, row.mem_bytes) for row in processes_on([first], env)] == [(4242, 5 << 30)]
    assert [(row.pid, row.gpu) for row in processes_on([second], env)] == [(77, second.uuid)]


def test_a_container_without_an_amd_node_has_no_amd_gpu(tmp_path):
    env = partitions(tmp_path, [7])
    (tmp_path / "dev/dri/renderD128").unlink()
    assert look({**env, "LAB_IMAGE": "cpu"}).gpus == []


def test_nvml_names_neighbours_in_the_words_of_nvidia_smi(monkeypatch):
    rows = [GpuProcess(gpu=UUID, pid=4242)]
    monkeypatch.setattr(neighbours, "nvml_processes", lambda uuids: rows)
    monkeypatch.setattr(neighbours, "_by_smi", lambda uuids: [GpuProcess(gpu=UUID, pid=4242, name="python3")])
    assert [row.name for row in processes_on(GPUS)] == ["python3"]
    monkeypatch.setattr(neighbours, "_by_smi", lambda uuids: [])
    assert processes_on(GPUS) == rows
