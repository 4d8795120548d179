"""The training workload on CPUs: one process, two gloo ranks, and ranks that fail or are stopped."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from tests.conftest import free_port  # noqa: E402

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[4]
WORKLOAD = ("-m", "lab.rooms.sweep.workload")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *WORKLOAD)
TORCHRUN_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in TORCHRUN_NAMES}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **extra}


def command(out: Path, launcher: tuple[str, ...], overrides: tuple[str, ...]) -> list[str]:
    options = [word for override in overrides for word in ("--override", override)]
    return [sys.executable, *launcher, "--config", "tiny", "--out", str(out), *options]


def train(
    out: Path, *overrides: str, launcher: tuple[str, ...] = TORCHRUN
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(out, launcher, overrides),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def metrics(out: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / f"rank_{rank:02d}_metrics.jsonl").read_text().splitlines()]


def trace_events(out: Path, rank: int) -> list[dict[str, Any]]:
    (path,) = (out / "torch_profiler" / f"rank{rank}").iterdir()
    assert path.name == "trace_step4.json.gz"
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def assert_complete(out: Path, ranks: int) -> None:
    for rank in range(ranks):
        names = {str(event.get("name")) for event in trace_events(out, rank)}
        assert {"ProfilerStep#2", "ProfilerStep#3", "forward", "backward", "optimizer"} <= names
        assert "ProfilerStep#1" not in names
        lines = metrics(out, rank)
        assert [line["global_step"] for line in lines] == [1, 2, 3, 4]
        for line in lines:
            assert (line["rank"], line["world_size"]) == (rank, ranks)
            assert math.isfinite(line["loss"]) and line["grad_norm"] > 0
            spans = line["profile"]["ranges"]
            assert all(
                0 <= span["start_ms"] <= span["end_ms"] <= line["profile"]["total_ms"] for span in spans
            )
        assert (out / f"rank{rank}.log").stat().st_size
    assert not list(out.rglob(".*")), "no draft is left behind"


def test_one_process_without_torchrun_leaves_every_artefact(tmp_path: Path) -> None:
    (tmp_path / "rank_00_metrics.jsonl").write_text("left by an older run\n")
    done = train(tmp_path, "streams.num_streams=2", launcher=WORKLOAD)
    assert done.returncode == 0, done.stderr
    assert_complete(tmp_path, ranks=1)
    assert "step 4/4" in done.stdout and "ignored" in done.stdout and "streams" in done.stdout
    assert (tmp_path / "rank0.log").read_text().count("step 4/4") == 1
    seen = json.loads((tmp_path / "environment.json").read_text())
    assert (
        seen["versions"]["torch"] == torch.__version__
        and seen["backend"] == "gloo"
        and seen["world_size"] == 1
    )
    assert seen["smi_after"]["reason"] or seen["smi_after"]["gpus"]


def train_two_ranks(out: Path, mode: str, kind: str, *overrides: str) -> None:
    """They train, and agree on the gradient."""
    if mode == "fsdp" and not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("FSDP on a CPU needs torch >= 2.6")
    done = train(out, f"distributed.mode={mode}", f"model.kind={kind}", *overrides)
    assert done.returncode == 0, done.stderr
    assert_complete(out, ranks=2)
    first, second = metrics(out, 0), metrics(out, 1)
    # Different inputs, one model: losses differ, the norm of the reduced gradient does not.
    assert all(a["loss"] != b["loss"] for a, b in zip(first, second, strict=True))
    assert all(a["grad_norm"] == b["grad_norm"] for a, b in zip(first, second, strict=True))
    assert any("gloo" in str(event.get("name")) for event in trace_events(out, 1))


def test_two_ranks_train_a_decoder_and_agree_on_the_gradient(tmp_path: Path) -> None:
    train_two_ranks(tmp_path, "fsdp", "decoder")


def test_sharding_does_not_change_the_training(tmp_path: Path) -> None:
    """An encoder's, whose two ranks agree both ways."""
    same_weights = ("fsdp.param_init_device=cpu", "training.gradient_accumulation=2", "model.dropout=0.0")
    for mode in ("ddp", "fsdp"):
        train_two_ranks(tmp_path / mode, mode, "encoder", *same_weights)
    for plain, sharded in zip(metrics(tmp_path / "ddp", 0), metrics(tmp_path / "fsdp", 0), strict=True):
        assert sharded["loss"] == pytest.approx(plain["loss"], rel=1e-4)
        assert sharded["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-3)


def test_a_config_error_ends_in_one_line_with_its_exit_code(tmp_path: Path) -> None:
    done = train(tmp_path, "model.num_layrs=3", launcher=WORKLOAD)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "rank 0 failed: ConfigError: unknown key 'num_layrs' at `$.model`"
    assert "did you mean num_layers" in done.stderr and "Traceback" not in done.stderr
    assert "Traceback" in (tmp_path / "rank0.log").read_text()


def test_a_training_that_diverges_says_so_and_writes_null(tmp_path: Path) -> None:
    overrides = (
        "optimizer.lr=1e30",
        "scheduler.warmup_steps=0",
        "profiling.enabled=false",
        "training.max_steps=3",
    )
    done = train(tmp_path, *overrides, launcher=WORKLOAD)
    assert done.returncode == 0 and "not finite" in done.stdout
    last = metrics(tmp_path, 0)[-1]
    assert last["loss"] is None and last["nonfinite"]["loss"] in ("nan", "inf")


def test_a_rank_that_fails_alone_tells_the_person_and_its_log(tmp_path: Path) -> None:
    (tmp_path / "rank_01_metrics.jsonl").mkdir()
    done = train(tmp_path)
    assert done.returncode != 0
    reason = "rank 1 failed: StorageError: cannot write: Is a directory"
    log = (tmp_path / "rank1.log").read_text()
    assert reason in done.stderr and reason in log and "Traceback" in log


def test_a_rank_that_waits_for_its_peers_stops_within_two_seconds(tmp_path: Path) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    alone = environment(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", **address)
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        out = tmp_path / number.name
        process = subprocess.Popen(command(out, WORKLOAD, ()), env=alone, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 600
            while not (out / "environment.json").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.5)  # into the wait for rank 1
            assert process.poll() is None
            process.send_signal(number)
            assert process.wait(timeout=600) == code
        finally:
            process.kill()
        assert f"stopped by {number.name}" in (out / "rank0.log").read_text()
