"""One number per quantity: whatever two commands print of one recording is the same number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.rooms.sweep.gemm.rank import RankJob, read_rank_tables
from lab.rooms.sweep.layout import find_configs
from tests.conftest import SHARED
from tests.simulator.figures import Figure, ask
from tests.simulator.program import Bare, Copy, Op, Pause, Program, Replay, step
from tests.simulator.writers import FORMATS

RECORDINGS = (
    "captures/graphs/flux1_one_file/capture_and_replay.json.gz",
    "captures/graphs/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "captures/graphs/torch_compile_triton/trace.json.gz",
    "captures/graphs/vllm_decode_full/graph_execution.json.gz",
    "captures/h200_decoder/infer_graph.json.gz",
    "captures/h200_decoder/nsys_graph_nodes.sqlite.gz",
    "captures/matmul_small_schema2.rpd.gz",
    "captures/rocpd_ck_batched_gemm_mi300x.db.gz",
    "captures/rocprofv3_aorta_mi350x_dispatch_1_20000.json.gz",
    "cases/recordings/form_kernel_trace.csv",
    "cases/recordings/healthy_kineto_side_stream.json.gz",
    "cases/recordings/healthy_nsys_unified_memory.sqlite.gz",
    "cases/recordings/healthy_outside_ops.json.gz",
    "cases/recordings/idle_copy_beside_steps.json.gz",
    "cases/recordings/overrun_kineto_rocm.json.gz",
    "cases/recordings/ranks_merged_as_sglang_does.json.gz",
    "cases/recordings/steps_overlap_20us.json.gz",
    "kernels_h200/bloom560m_generate.json.gz",
    "kernels_h200/cs336_small_training.json.gz",
    "nsys_h200/transformer_2layer.sqlite.gz",
    "nsys_public/h100_2gpu_1s.sqlite.gz",
    "public/captures/made_rocpd_merged_two_processes.db.gz",
    "public/traces/h100_qwen.json.gz",
    "public/traces/mi300_timesformer.json.gz",
    "rocm/mi300_qwen1.5_0.5b.json.gz",
    "rocm/mi300_resnet_ddp_rank0of8.json.gz",
    "serve/a_base01.json.gz",
    "serve/mfu_gpu0_before.sqlite.gz",
)
# (end of the recording's name, command, begin of the quantity) of another quantity, and which.
DIFFERENT = {
    (
        "a_base01.json.gz",
        "ops_summary",
        "op",
    ): "busy time, as TraceLens has it: two kernels at a time count once",
}


def differing(figures: Sequence[Figure]) -> list[str]:
    """A sentence per quantity of which commands print several numbers; of each process of several."""
    values: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    several = len({figure.process for figure in figures if figure.process is not None}) > 1
    for figure in figures:
        values[(figure.process if several else None, *figure.name)][figure.command] = figure.value
    for name in ("rows", "row_ms") if several else ():
        for command in ("summary", "processes.csv"):
            parts = [one.value for one in figures if (one.command, one.name) == (command, (name,))]
            if parts:
                values[None, name][command] = sum(parts)
    return [
        f"{quantity}: {printed}"
        for quantity, printed in values.items()
        if max(printed.values()) - min(printed.values()) > 1e-6 * abs(max(printed.values())) + 2e-6
    ]


def sheets_of(path: Path) -> list[Figure]:
    """What the Excel reports of a trace say of its operators, ranks together, and of its steps."""
    (config,) = find_configs(path)
    read = read_rank_tables(RankJob(config.traces[0], config.key))
    values: dict[tuple[Any, ...], float] = defaultdict(float)
    for tables in read:
        ops, gemm = tables.sheets["ops_summary"], tables.gemm
        for name, ms in zip(ops.name.tolist(), ops.total_direct_kernel_time_ms.tolist(), strict=True):
            values["op", name, "ms"] += ms
        if gemm is not None and len(gemm) and len(read) == 1 and (gemm.step >= 0).all():
            groups, numbers = tables.groups.as_dict(), tuple(sorted(set(gemm.step.tolist())))
            gflop = float((groups["GFLOPS_first"] * groups["name_count"]).sum())
            if gflop == gflop:  # every shape is known
                values["step", numbers, "tflop"] = gflop / len(numbers) / 1e3
    return [Figure("ops_summary", name, value) for name, value in values.items()]


def all_figures(path: Path, scratch: Path) -> list[Figure]:
    asked = ask(path, scratch, pages=True)
    (row,) = asked.answers[0].json()
    return asked.figures + (sheets_of(path) if row["format"] == "kineto" else [])


@pytest.mark.data
@pytest.mark.parametrize("name", RECORDINGS)
def test_commands_print_one_number_per_quantity(name, tmp_path):
    figures = [
        figure
        for figure in all_figures(SHARED / name, tmp_path)
        if (Path(name).name, figure.command, figure.name[0]) not in DIFFERENT
    ]
    assert len({figure.command for figure in figures}) >= 4
    assert not differing(figures)


@pytest.mark.parametrize("name", FORMATS)
def test_commands_print_one_number_per_quantity_of_simulated_recordings(name, tmp_path):
    steps = (
        step(3, Op((9_000, 2_000), (512, 256, 1024)), Bare(), Copy()),
        step(4, Op(inside=True), Copy(fill=True)),
    )
    job = Program((Op(stream=1), *steps, Pause(), Replay(), Replay())).play(amd=FORMATS[name].amd)
    path = FORMATS[name].write(job, tmp_path / FORMATS[name].file)
    figures = all_figures(path, tmp_path)
    assert len({figure.command for figure in figures}) >= 4
    assert not differing(figures)
