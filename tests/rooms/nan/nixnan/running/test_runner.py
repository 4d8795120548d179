"""A step under nixnan: checks before it, how the tool attaches, and that an unwatched run is not a clean run.

The stand-in is a shared object that behaves like the tool: it prints its banner when it is loaded, empties
LOGFILE, and reports a GPU context only if the driver (here: a script) injects it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from lab.errors import EngineError, StepFailed
from lab.rooms.nan.config import NanConfig, NixnanConfig
from lab.rooms.nan.nixnan.running import runner
from tests.conftest import ROOT

# What a program on a current driver does: cuInit loads what CUDA_INJECTION64_PATH names; LD_PRELOAD attaches
# nothing.
PROGRAM = """
import ctypes, json, os, pathlib, signal, sys, time
tool = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]) if "CUDA_INJECTION64_PATH" in os.environ else None
if tool: tool.attach()
seen = {"cwd": os.getcwd(), "env": dict(os.environ), "argv": sys.argv}
pathlib.Path("seen.json").write_text(json.dumps(seen))
def stopped(*_):
    tool.end()
    sys.exit(130)
signal.signal(signal.SIGINT, stopped)
print("program runs", flush=True)
{more}
if tool: tool.end()
"""


def program(folder: Path, more: str = "") -> list[str]:
    path = folder / "program.py"
    path.write_text(PROGRAM.replace("{more}", more))
    return ["python", str(path)]


def start(tmp_path, env, more="", **config):
    return runner.run(NixnanConfig(**config), tmp_path / "out", program(tmp_path, more), env)


def record(tmp_path) -> dict:
    return json.loads((tmp_path / "out" / "nixnan.json").read_text())


def test_the_tool_is_injected_with_all_its_flags_and_the_step_has_a_folder_of_its_own(tmp_path, env, tool):
    assert start(tmp_path, env, sampling=4, max_errors=9, only_kernels=("void kernel", "other")) == 0
    seen = json.loads((tmp_path / "out" / "seen.json").read_text())
    assert seen["cwd"] == str(tmp_path / "out") and seen["argv"][1:] == ["--root", os.getcwd()]
    assert seen["env"]["CUDA_INJECTION64_PATH"] == str(tool) and "LD_PRELOAD" not in seen["env"]
    flags = {
        name: seen["env"][name] for name in ("SAMPLING", "MAX_ERRORS", "LINE_INFO", "HISTOGRAM", "LOGFILE")
    }
    assert flags == {
        "SAMPLING": "4",
        "MAX_ERRORS": "9",
        "LINE_INFO": "0",
        "HISTOGRAM": "0",
        "LOGFILE": str(tmp_path / "out" / "nixnan.log"),
    }
    assert (tmp_path / "out" / "kernel_whitelist.txt").read_text() == "void kernel\nother\n"
    attempts = record(tmp_path)["attempts"]
    assert [(one["mode"], one["attached"]) for one in attempts] == [("inject", True)]


def test_a_tool_that_never_attached_is_an_error_with_its_cure_and_no_clean_run(tmp_path, env):
    idle = ["python", str(tmp_path / "idle.py")]
    (tmp_path / "idle.py").write_text("print('no GPU used')")
    with pytest.raises(EngineError, match="never attached") as caught:
        runner.run(NixnanConfig(), tmp_path / "out", idle, env)
    assert "CUDA_INJECTION64_PATH and LD_PRELOAD" in caught.value.problem and "--attach inject" in str(
        caught.value.fix
    )
    assert [one["mode"] for one in record(tmp_path)["attempts"]] == ["inject", "preload"]
    assert (tmp_path / "out" / "nixnan.attempt1.log").exists() is False, (
        "an injected tool that no driver loads leaves no log"
    )


def test_preloading_is_the_way_in_only_where_injection_did_not_attach(tmp_path, env):
    """An old driver: the tool attaches from LD_PRELOAD, and CUDA_INJECTION64_PATH means nothing to it."""
    (tmp_path / "old.py").write_text(
        "import ctypes, os\np = os.environ.get('LD_PRELOAD')\nif p: ctypes.CDLL(p).attach()"
    )
    assert runner.run(NixnanConfig(), tmp_path / "out", ["python", str(tmp_path / "old.py")], env) == 0
    assert [(one["mode"], one["attached"]) for one in record(tmp_path)["attempts"]] == [
        ("inject", False),
        ("preload", True),
    ]


def test_a_program_that_fails_keeps_its_exit_code_and_is_not_tried_again(tmp_path, env):
    assert start(tmp_path, env, "sys.exit(7)") == 7
    assert len(record(tmp_path)["attempts"]) == 1


def test_a_crash_over_line_information_is_tried_once_more_without(tmp_path, env):
    crash = (
        "if os.environ['LINE_INFO'] == '1':\n"
        "    open(os.environ['LOGFILE'], 'a').write('#nixnan: SIGSEGV: try LINE_INFO=0\\n')\n"
        "    os._exit(1)"
    )
    assert start(tmp_path, env, crash, line_info=True) == 0
    assert [(one["line_info"], one["exit_code"]) for one in record(tmp_path)["attempts"]] == [
        (True, 1),
        (False, 0),
    ]
    assert "SIGSEGV" in (tmp_path / "out" / "nixnan.attempt1.log").read_text(), (
        "the first attempt's log is kept"
    )


def test_a_log_that_outgrows_its_limit_ends_the_program_and_keeps_the_report(tmp_path, env):
    write = (
        "f = open(os.environ['LOGFILE'], 'a')\n"
        "while True: f.write('#nixnan: x' * 1000 + '\\n'); f.flush(); time.sleep(0.01)"
    )
    with pytest.raises(StepFailed, match="outgrew its limit"):
        start(tmp_path, env, write, log_limit_bytes=100_000, grace_s=200.0)
    assert "nixnan Report" in (tmp_path / "out" / "nixnan.log").read_text()


def test_ctrl_c_reaches_the_program_which_has_time_to_write_its_report(tmp_path, env):
    config = msgspec.json.encode(NanConfig(experiments=("baseline",)))
    (tmp_path / "nan.json").write_bytes(config)
    words = [
        sys.executable,
        "-m",
        "lab.rooms.nan.nixnan.running.runner",
        "--out",
        "out",
        "--",
        *program(tmp_path, "time.sleep(60)"),
    ]
    running = subprocess.Popen(
        words, cwd=tmp_path, env={**env, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    while "program runs" not in running.stdout.readline():
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.wait(300) == 130
    assert "nixnan Report" in (tmp_path / "out" / "nixnan.log").read_text()


def test_a_program_that_ignores_the_interrupt_is_killed_after_the_grace(tmp_path, env):
    stubborn = (
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "open(os.environ['LOGFILE'], 'a').write('x' * 200)\n"
        "time.sleep(600)"
    )
    began = time.monotonic()
    with pytest.raises(StepFailed):
        start(tmp_path, env, stubborn, log_limit_bytes=100, grace_s=0.5)
    assert time.monotonic() - began < 300


def test_a_good_bin_specification_reaches_the_tool_as_a_file(tmp_path, env):
    assert start(tmp_path, env, bin_spec='{"count": 1, "f16": [[-24, -14]]}') == 0
    seen = json.loads((tmp_path / "out" / "seen.json").read_text())
    assert json.loads(Path(seen["env"]["BIN_SPEC_FILE"]).read_text())["count"] == 1


def test_an_inventory_only_lists_kernels_and_prints_the_options_that_watch_them(tmp_path, env, capfd):
    listed = (
        "open(os.environ['LOG_KERNELS'], 'w').write("
        "'#nixnan: kernel [void at::native::softmax_warp_forward<float>(float*)] ...\\n' * 3 + "
        "\"#nixnan: kernel [void it's::gemm(int)] ...\\n\" + 'noise\\n')"
    )
    assert start(tmp_path, env, listed, inventory=True) == 0
    shown = capfd.readouterr().out
    assert "2 kernels by nixnan's short names" in shown
    assert "--only-kernel 'void at::native::softmax_warp_forward'\n" in shown
    assert "--only-kernel 'void it'\\''s::gemm'" in shown
    assert start(tmp_path, env) == 0, "without the option nothing is listed"
    assert "LOG_KERNELS" not in json.loads((tmp_path / "out" / "seen.json").read_text())["env"]
