"""The recorder with stand-ins for nsys: what it keeps and deletes, and when torch.profiler takes over."""

from __future__ import annotations

import json
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from lab.errors import MissingError, StepFailed
from lab.rooms.nsys.workload import record as recorder

SECRET = "ghp_do_not_tell_anyone"
ARGUMENTS = ["--", "--model-size", "tiny", "--device", "cuda"]
# Stands in for nsys: writes what the test wants where `--output` says, and cell.json as the workload would.
STAND_IN = """#!{python}
import json, os, shutil, sys
output = next(word for word in sys.argv if word.startswith("--output="))[len("--output="):]
out = sys.argv[sys.argv.index("--out") + 1]
json.dump({{"argv": sys.argv, "env": sorted(os.environ)}}, open(os.path.join(out, "seen.json"), "w"))
outcome, export, code = {outcome!r}, {export!r}, {code}
if outcome:
    json.dump({{"outcome": outcome}}, open(os.path.join(out, "cell.json"), "w"))
open(output + ".nsys-rep", "wb").write(b"report with the environment")
if export:
    shutil.copyfile(export, output + ".sqlite")
sys.exit(code)
"""


def export_of(path: Path, *, kernels: int = 3) -> Path:
    """The least export: kernels, their names, and the environment that a capture carries."""
    with sqlite3.connect(path) as database:
        database.executescript(f"""
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000'), (3, 'TOKEN={SECRET}');
            CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3'), ('EXPORT_USER', 'me');
            CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
            INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'TOKEN={SECRET}');
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER,
                eventClass INTEGER, globalTid INTEGER,
                correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER,
                deviceId INTEGER, contextId INTEGER,
                greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
                demangledName INTEGER, shortName INTEGER, mangledName INTEGER);
        """)
        tid = (7 << 24) + 7
        for at in range(kernels):
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 2, 0, NULL)",
                (100 * at, 100 * at + 5, tid, at),
            )
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 0, 7, ?, ?, 1, 1, 1)",
                (100 * at + 10, 100 * at + 30, at, 7 << 24),
            )
    return path


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """Puts a stand-in for nsys where the recorder finds it."""

    def install(*, outcome="ok", export=None, code=0):
        path = tmp_path / "nsys"
        path.write_text(
            STAND_IN.format(python=sys.executable, outcome=outcome, export=str(export or ""), code=code)
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("LAB_NSYS", str(path))

    return install


def run(out: Path, *flags: str) -> int:
    """The recorder's exit code for `out`."""
    out.mkdir(exist_ok=True)
    options, arguments = recorder.parse([*flags, "--out", str(out), *ARGUMENTS])
    return recorder.record(options, [*arguments, "--out", str(options.out)])


def told(out: Path) -> dict:
    return json.loads((out / "collector.json").read_text())


@pytest.fixture
def profiler(monkeypatch):
    """Notes the command with which torch.profiler would record, instead of running it."""
    seen = []
    real = recorder.subprocess.run

    def instead(command, **more):
        if "--collector" in command and command[-1] == "kineto":
            seen.append(command)
            return recorder.subprocess.CompletedProcess(command, 0)
        return real(command, **more)

    monkeypatch.setattr(recorder.subprocess, "run", instead)
    return seen


def test_nsys_export_is_scrubbed_named_and_its_report_deleted(tmp_path, nsys):
    nsys(export=export_of(tmp_path / "made.sqlite"))
    assert run(tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "capture.sqlite",
        "cell.json",
        "collector.json",
        "seen.json",
    }
    assert SECRET.encode() not in (tmp_path / "out" / "capture.sqlite").read_bytes()
    assert told(tmp_path / "out")["collector"] == "nsys"


def test_the_original_is_kept_only_if_asked(tmp_path, nsys):
    nsys(export=export_of(tmp_path / "made.sqlite"))
    run(tmp_path / "out", "--keep-original")
    assert (tmp_path / "out" / "capture.nsys-rep").read_bytes() == b"report with the environment"


def test_the_workload_gets_an_allowed_environment_and_flags_without_privileges(tmp_path, nsys, monkeypatch):
    monkeypatch.setenv("MY_PASSWORD", SECRET)
    monkeypatch.setenv("PYTHON_API_TOKEN", SECRET)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    nsys(export=export_of(tmp_path / "made.sqlite"))
    run(tmp_path / "out")
    seen = json.loads((tmp_path / "out" / "seen.json").read_text())
    assert "CUDA_DEVICE_ORDER" in seen["env"] and "PATH" in seen["env"]
    assert not {"MY_PASSWORD", "PYTHON_API_TOKEN"} & set(seen["env"])
    assert {
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi",
        "--cuda-graph-trace=node",
    } <= set(seen["argv"])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"export": None}, "no SQLite export"),
        ({"export": "empty"}, "no kernels"),
        ({"outcome": "", "code": 3}, "exit code 3"),
    ],
)
def test_where_nsys_fails_torch_profiler_takes_over_and_says_why(tmp_path, nsys, profiler, fault, said):
    if fault.get("export") == "empty":
        fault = {"export": export_of(tmp_path / "made.sqlite", kernels=0)}
    nsys(**fault)
    assert run(tmp_path / "out") == 0
    assert len(profiler) == 1 and told(tmp_path / "out")["collector"] == "kineto"
    assert said in told(tmp_path / "out")["reason"]
    assert not list((tmp_path / "out").glob(".nsys*")), "nothing with the environment is left"


def test_a_must_for_nsys_is_not_replaced_in_silence(tmp_path, nsys, profiler, monkeypatch):
    nsys(export=None)
    with pytest.raises(StepFailed, match="no SQLite export"):
        run(tmp_path / "out", "--collector", "nsys")
    monkeypatch.setenv("LAB_NSYS", str(tmp_path / "absent"))
    with pytest.raises(MissingError, match="nsys not found"):
        run(tmp_path / "out", "--collector", "nsys")
    assert not profiler


def test_without_nsys_or_gpu_torch_profiler_records_from_the_start(tmp_path, profiler, monkeypatch):
    monkeypatch.setenv("LAB_NSYS", str(tmp_path / "absent"))
    run(tmp_path / "out")
    assert told(tmp_path / "out")["reason"] == "nsys not found"
    options, arguments = recorder.parse(["--out", str(tmp_path / "out"), "--", "--device", "cpu"])
    recorder.record(options, arguments)
    assert "CPU run" in told(tmp_path / "out")["reason"] and len(profiler) == 2


def test_out_of_memory_under_nsys_is_the_cells_result_and_needs_no_capture(tmp_path, nsys, profiler):
    nsys(outcome="oom", export=export_of(tmp_path / "made.sqlite"))
    assert run(tmp_path / "out") == 0
    assert not (tmp_path / "out" / "capture.sqlite").exists() and not profiler


def test_what_an_earlier_attempt_left_does_not_pass_for_this_ones(tmp_path, nsys, profiler):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "capture.sqlite").write_text("old")
    (tmp_path / "out" / "cell.json").write_text('{"outcome": "ok"}')
    nsys(outcome="", code=1)
    run(tmp_path / "out")
    assert (
        not (tmp_path / "out" / "capture.sqlite").exists() and not (tmp_path / "out" / "cell.json").exists()
    )
