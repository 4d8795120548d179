"""Whose doing a kill for memory is, by the kernel's own counts; and what a SIGKILL without one counts as."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.rooms.trials.failure import Reader, parse
from lab.rooms.trials.workload.main import judged
from lab.rooms.trials.workload.memory import Kills, Memory

OWN, HOST = Kills(1, True, 2_000_000_000, False, 1), Kills(1, False, None, False, 1)
NOTHING, ELSEWHERE, UNKNOWN = Kills(0, False, None, False, 0), Kills(None, of_host=1), Kills()


def of(fail, code, kills, *lines, timed_out=False):
    reader = Reader(parse(fail))
    for line in lines:
        reader.line(line)
    return judged(reader, code, timed_out, kills)


def test_a_program_that_hits_its_own_limit_fails():
    assert of("exit!=0", 137, OWN) == ("fail", "exit code 137 (SIGKILL); it hit its memory limit of 2.0 GB")
    assert of("exit!=0", 1, OWN) == (
        "fail",
        "exit code 1; it hit its memory limit of 2.0 GB",
    )  # a worker of it
    assert of("nan in loss", 137, OWN)[0] == "error" and of("exit!=0", 0, OWN) == (
        "pass",
        "although it hit its memory limit of 2.0 GB",
    )


@pytest.mark.parametrize(
    "kills, says",
    [
        (HOST, "the host, or a group above, had no memory left"),
        (Kills(1, True, 2_000_000_000, True, 1), "which several trials share"),
        (NOTHING, "killed from outside or by itself"),
        (ELSEWHERE, "the kernel did so on this host meanwhile"),
        (UNKNOWN, "nothing here says which"),
    ],
)
def test_a_kill_that_is_not_the_programs_doing_is_an_error_unless_fail_names_it(kills, says):
    verdict, why = of("exit!=0", 137, kills)
    assert verdict == "error" and why.startswith("exit code 137 (SIGKILL): ") and says in why
    assert (
        of("exit==137", 137, kills)[0] == "fail" == of("exit!=0 or nan in loss", 137, kills, "loss: nan")[0]
    )


def test_a_host_without_memory_excuses_any_exit_code_and_lab_s_own_kill_is_a_timeout():
    assert of("exit!=0", 1, HOST)[0] == "error" and of("exit!=0", 1, ELSEWHERE)[0] == "fail"
    assert of("exit!=0", 137, NOTHING, timed_out=True) == ("error", "ran past --trial-timeout")


def group(tmp_path, version, kills, hits, *, here="box"):
    """A control group of either version as the kernel shows it, and /proc of a process in it."""
    folder = tmp_path / "sys" / ("memory" if version == 1 else "") / here
    for path in (folder, tmp_path / "proc/self", tmp_path / "proc/77"):
        path.mkdir(parents=True, exist_ok=True)
    lines = "3:cpu:/other\n4:memory:/box\n0::/\n" if version == 1 else "0::/box\n"
    (tmp_path / "proc/self/cgroup").write_text(lines)
    (tmp_path / "proc/vmstat").write_text(f"pgfault 1\noom_kill {kills}\n")
    (tmp_path / "proc/77/cmdline").write_bytes(b"sleep\0")
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n77\n")
    if version == 1:
        (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
        (folder / "memory.failcnt").write_text(f"{hits}\n")
        (folder / "memory.limit_in_bytes").write_text("2000000000\n")
    else:
        (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax {hits}\noom {hits}\noom_kill {kills}\n")
        (folder / "memory.max").write_text("2000000000\n")
    return Memory(tmp_path / "sys", tmp_path / "proc")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("here", ["box", ""])  # by its path, and in a container at the root
def test_the_kernels_counts_are_read_in_both_versions(tmp_path, version, here):
    memory = group(tmp_path, version, 4, 9, here=here)
    assert memory.kills() == Kills(0, False, 2_000_000_000, False, 0)
    group(tmp_path, version, 5, 9, here=here)
    assert memory.kills() == Kills(1, False, 2_000_000_000, False, 1)  # somebody else's shortage
    group(tmp_path, version, 5, 12, here=here)
    assert memory.kills() == Kills(1, True, 2_000_000_000, False, 1)
    if version == 1:  # Docker's limit counts swap as well; seen on a real kernel, hit and not counted
        group(tmp_path, version, 5, 9, here=here)
        peak = tmp_path / "sys/memory" / here / "memory.max_usage_in_bytes"
        for bytes_, is_full in ((1_000_000_000, False), (2_000_000_000, True)):
            peak.write_text(f"{bytes_}\n")
            assert memory.kills().own_limit is is_full
    (tmp_path / "proc/77/cmdline").write_bytes(b"python\0-m\0lab.rooms.trials.workload\0")
    assert memory.kills().shared


def test_a_kernel_that_does_not_say_is_unknown_and_not_clean(tmp_path):
    assert Memory(tmp_path, tmp_path).kills() == Kills(None, of_host=None)


def _own_group():
    """The folder of this process's memory group of version 1, where a group can be made below it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.split(":")[1] == "memory":
            return Path("/sys/fs/cgroup/memory" + line.split(":")[2])
    return Path("/sys/fs/cgroup")


def test_a_real_limit_is_hit_and_said(tmp_path):
    """One process allocates past 90 MiB, four times what its watcher has; a second is killed from outside."""
    mine = _own_group() / f"lab-test-{os.getpid()}"
    try:
        mine.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    limit, kill_me = mine / "memory.limit_in_bytes", "import os; os.kill(os.getpid(), 9)"
    if not (limit.exists() or (mine / "memory.max").exists()):
        mine.rmdir()
        pytest.skip("no memory controller in this control group")
    try:
        (limit if limit.exists() else mine / "memory.max").write_text(str(90 << 20))
        config = tmp_path / "trials.json"
        for name, code in (("hungry-0000", "x = bytearray(1 << 30)"), ("killed-0000", kill_me)):
            cells = [{"name": name[:-5]}]
            config.write_text(_settings([sys.executable, "-c", code], cells))
            (tmp_path / "steps" / name).mkdir(parents=True)
            words = ["--config", str(config), "--cell", name[:-5], "--trial", "0", "--order", "0", "--out"]
            argv = [sys.executable, "-m", "lab.rooms.trials.workload", *words, str(tmp_path / "steps" / name)]
            subprocess.run(["sh", "-c", f'echo $$ > {mine}/cgroup.procs; exec "$@"', "sh", *argv], check=True)
        rows = [
            (tmp_path / "steps" / name / "trial.json").read_text() for name in ("hungry-0000", "killed-0000")
        ]
        assert '"fail"' in rows[0] and "it hit its memory limit of 94.4 MB" in rows[0]
        assert '"error"' in rows[1] and "killed from outside or by itself" in rows[1]
    finally:
        while (mine / "cgroup.procs").read_text():  # what was killed may still be ending
            time.sleep(0.01)
        mine.rmdir()


def _settings(command, cells):
    import msgspec

    from lab.rooms.trials.config import Cell, TrialsConfig

    made = tuple(Cell(**one) for one in cells)
    config = TrialsConfig(command=tuple(command), cells=made, baseline=made[0].name, trials=1, fail="exit!=0")
    return msgspec.json.encode(config).decode()
