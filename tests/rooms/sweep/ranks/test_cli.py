"""`lab ranks`: what it prints, writes and returns."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.errors import BadDataError, StepFailed
from lab.rooms.sweep.ranks.cli import ranks
from tests.recordings.nccl_made import speed, write
from tests.recordings.test_gpu_state import write_state
from tests.rooms.sweep.tuner.made import CALLS, NELEMS, STEP_US, STEPS, write_run
from tests.tracegen import BASE_NS, TraceWriter


@pytest.fixture(autouse=True)
def its_own_place(tmp_path_factory, monkeypatch):
    """What is kept of a recording goes below the working folder."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


def write_job(
    root: Path, world: int = 3, *, late: dict[int, float] | None = None, only: tuple[int, ...] = ()
) -> Path:
    """Steps of GEMMs and all-reduces; a late rank's host stops for so many us before the 2nd all-reduce."""
    return write_run(
        *(root, 120.0), world=world, late=late or {}, late_calls=(1,), only=only, nelems=(1024,), traces=""
    )


def call(*words: object, ok: bool = True) -> Result:
    here = [] if words[0] == "hang" else ["--workers", "1"]  # in this process: starting others takes longer
    done = CliRunner().invoke(ranks, [*(str(word) for word in words), *here])
    if ok and done.exception:
        raise done.exception
    return done


def rewritten(job: Path, rank: int, change) -> None:
    """The rank's trace with its events changed: `change` takes an event and returns it, or None."""
    path = job / f"rank{rank}/trace_step7.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    changed = [change(event) for event in document["traceEvents"]]
    document["traceEvents"] = [event for event in changed if event is not None]
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def is_collective(event: dict) -> bool:
    return event.get("cat") == "kernel" and "nccl" in event["name"]


def answer(*words: object) -> dict:
    return json.loads(call(*words, "--json").stdout)


def test_json_has_what_scripts_rely_on(tmp_path):
    found = answer(write_job(tmp_path, late={1: 2500.0}))
    assert len(found["steps"]) == STEPS * 3
    parts = ["compute", "contention", "transfer", "wait", "copy"]
    parts += ["launch_late", "launch_gap", "tail", "unexplained"]
    for row in found["steps"]:
        assert sum(row[f"{part}_ns"] for part in parts) == row["step_ns"] == STEP_US * 1000
    assert {row["wait_for"] for row in found["steps"] if row["rank"] != 1} == {1}
    assert found["collectives"] == {"calls": STEPS * CALLS, "complete": STEPS * CALLS}
    keys = {"rank", "offset_us", "low_us", "high_us", "corrected"}
    assert found["clocks"] and all(set(clock) >= keys for clock in found["clocks"])
    (finding,) = found["findings"]
    assert (finding["rank"], finding["cause"]) == (1, "host_late")
    assert set(finding) >= {"rank", "cause", "binding", "cost_ms", "steps"}
    assert finding["cost_ms"] == pytest.approx(2.5, rel=0.05) and finding["steps"] == [5, 6]


def test_without_json_it_writes_tables_pictures_and_a_page(tmp_path):
    done = call(write_job(tmp_path / "job", late={1: 2500.0}), "--out", tmp_path / "out")
    assert "Rank 1: its host launches late" in done.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"account.csv", "waits.csv", "clocks.csv", "what_if.csv", "findings.csv", "path.csv"} <= names
    assert {"ranks.html", "account.png", "step_5.png", "step_6.png"} <= names
    rows = list(csv.DictReader((tmp_path / "out/account.csv").open()))
    assert len(rows) == 6 and rows[0]["step_ns"] == str(STEP_US * 1000)


def test_one_trace_of_a_larger_job_says_what_it_is_and_is_no_failure(tmp_path):
    write_job(tmp_path, world=8, only=(3,))
    done = call(tmp_path / "rank3/trace_step7.json.gz", "--json")
    found = json.loads(done.stdout)
    assert (
        done.exit_code == 0 and found["findings"] and {f["cause"] for f in found["findings"]} == {"missing"}
    )
    done = call(tmp_path / "rank3/trace_step7.json.gz", "--out", tmp_path / "out")
    assert "one trace, of rank 3 of a job of 8 ranks" in done.stdout


def test_a_missing_rank_leaves_an_account_and_exit_code_1(tmp_path):
    write_job(tmp_path, world=3, only=(0, 2))
    done = call(tmp_path, "--json", ok=False)
    assert isinstance(done.exception, StepFailed) and "missing: 1" in str(done.exception)
    assert len(json.loads(done.stdout)["steps"]) == STEPS * 2


def test_a_rank_that_lacks_calls_of_a_shared_step_ends_with_1(tmp_path):
    """The text said it and the exit code was 0."""
    write_job(tmp_path, world=3)
    nth = iter(range(100))
    gone: list[int] = []

    def without_the_fifth(event: dict) -> dict | None:
        if is_collective(event) and next(nth) == 4:
            gone.append(event["args"]["correlation"])
        lost = event.get("args", {}).get("correlation") in gone or event.get("id") in gone
        return None if lost else event

    for _ in range(2):  # its launch comes before it
        rewritten(tmp_path, 2, without_the_fifth)
    done = call(tmp_path, "--json", ok=False)
    assert isinstance(done.exception, StepFailed) and "rank 2 lacks 1 collective" in str(done.exception)
    found = json.loads(done.stdout)
    assert [(f["rank"], f["cause"]) for f in found["findings"] if f["cause"] == "missing"] == [(2, "missing")]
    assert len(found["lacking"]) == 1 and len(found["steps"]) == STEPS * 3


def test_a_sweep_is_told_setting_by_setting(tmp_path):
    for channels in (28, 42):
        write_job(tmp_path / f"256thread/nccl_{channels}channels/torch_profiler")
    found = answer(tmp_path)
    assert [(one["threads"], one["channels"]) for one in found["settings"]] == [(256, 28), (256, 42)]


def test_runs_that_only_a_pattern_tells_apart_are_told_by_what_differs(tmp_path):
    for name in ("first", "second"):
        write_job(tmp_path / name)
    printed = call(tmp_path, "--ranks", r"rank(\d+)/").stdout.splitlines()
    assert [line for line in printed if line.endswith(":")] == ["run first/rank*:", "run second/rank*:"]


def test_cpu_ranks_are_accounted_for_with_ops_for_kernels(tmp_path):
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2, vendor="none")
        for number, at in ((1, 1000), (2, 9000)):
            writer.step(number, at, 8000)
            writer.op("aten::mm", at + 100, 500 + 3000 * rank)
            begin = at + 700 + 3000 * rank
            writer.gloo("all_reduce", 512, begin, at + 3800 - begin)
        writer.write(tmp_path / f"rank{rank}" / "trace_step2.json")
    found = answer(tmp_path)
    for row in found["steps"]:
        assert row["wait_ns"] == (3_000_000 if row["rank"] == 0 else 0)
        assert row["transfer_ns"] == 100_000 and row["compute_ns"] == 500_000 + 3_000_000 * row["rank"]
    assert [(f["rank"], f["cause"]) for f in found["findings"]] == [(1, "slow_kernels")]


def write_dumps(folder: Path) -> Path:
    """Three ranks of which rank 1 never enters the second call."""
    folder.mkdir()
    for rank in range(3):
        entries = [
            {"process_group": ["0", ""], "collective_seq_id": n, "profiling_name": "nccl:all_reduce"}
            | {"state": "completed" if n == 1 else "started", "input_sizes": [[8]], "record_id": n}
            | {"frames": [{"filename": "/app/train.py", "line": 20, "name": "step"}]}
            for n in (1, 2)
            if (rank, n) != (1, 2)
        ]
        config = {"0": {"name": "0", "ranks": "[0, 1, 2]"}}
        document = {"entries": entries, "pg_config": config}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return folder


def test_hangs_are_told_in_the_agreed_form(tmp_path):
    folder = write_dumps(tmp_path / "dumps")
    found = answer("hang", folder)
    assert (found["class"], found["ranks"], found["group"], found["seq"]) == ("not_joined", [1], "0", 2)
    assert found["collective"] == "all_reduce" and found["frame"] == "/app/train.py:20 in step"
    assert "not joined: rank 1 never entered call 2" in call("hang", folder).stdout
    (folder / "rank1.json").unlink()
    assert isinstance(call("hang", folder, ok=False).exception, StepFailed)


def test_names_from_outside_reach_no_terminal_as_they_are(tmp_path):
    write_job(tmp_path, late={1: 2500.0})
    names = {"record_param_comms": "\x1b[2J=HYPERLINK", "aten::mm": "\x1b[31mred"}
    for rank in range(3):
        rewritten(tmp_path, rank, lambda event: {**event, "name": names.get(event["name"], event["name"])})
    done = call(tmp_path, "--out", tmp_path / "out")
    assert "\x1b" not in done.stdout and "launches late" in done.stdout


def test_a_second_trace_of_a_rank_takes_no_other_ranks_number(tmp_path: Path) -> None:
    """It was counted as the next free rank, which pushed the rank of that number aside in turn."""
    job = write_job(tmp_path / "job", late={2: 3000.0})
    known = answer(job)
    for number in (2, 1):
        (job / f"rank{number}").rename(job / f"rank{number + 1}")
    shutil.copytree(job / "rank0", job / "rank1")
    done = call(job, "--json", "-q", ok=False)
    assert isinstance(done.exception, StepFailed) and "rank 0 too" in str(done.exception)
    found = json.loads(done.stdout)
    assert found["steps"] == known["steps"] and found["findings"] == known["findings"]


def test_foreign_files_beside_dumps_are_no_dumps(tmp_path: Path) -> None:
    """A JSON of something else was a case without a hang, and a README ended the command."""
    folder = write_dumps(tmp_path / "dumps")
    known = json.loads(call("hang", folder, "--json").stdout)
    assert (known["class"], known["ranks"]) == ("not_joined", [1])
    (folder / "config.json").write_text('{"model": "x"}')
    (folder / "README").write_text("hello")
    assert json.loads(call("hang", folder, "--json").stdout) == known


def test_a_dump_that_cannot_be_read_is_said_after_the_verdict_over_the_others(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "dumps")
    (folder / "rank2.json").write_text('{"entries": [')
    done = call("hang", folder, ok=False)
    assert isinstance(done.exception, BadDataError) and "rank2.json" in str(done.exception)
    assert "not joined" in done.stdout and "rank 1" in done.stdout


def test_steps_that_not_every_rank_recorded_are_said_and_known_to_the_exit_code(tmp_path: Path) -> None:
    """Half of the waiting went untold, with exit code 0."""
    job = write_job(tmp_path / "job", late={1: 2500.0})
    rewritten(job, 2, lambda event: {**event, "name": event["name"].replace("Step#6", "Step#16")})
    done = call(job, "--json", "-q", ok=False)
    assert isinstance(done.exception, StepFailed)
    assert json.loads(done.stdout)["lacking"] == [
        "ranks 0, 1 recorded no step 16, which others did: waiting in it is not told",
        "rank 2 recorded no step 6, which others did: waiting in it is not told",
    ]


@pytest.mark.parametrize(
    ("mhz", "said"),
    [
        (
            1500,
            "The GPU of rank 1 ran at 1500 MHz, the others at 1980 MHz (software power cap 100 % of "
            "samples), which fits its slower kernels.",
        ),
        (
            1900,
            "The GPU of rank 1 ran at 1900 MHz, the others at 1980 MHz (software power cap 100 % of "
            "samples): that makes kernels 1.04 times as long at most, and its own take 1.30 times as long, "
            "so most of the cause is not seen (another program on this GPU?).",
        ),
        (1980, "its GPU ran at 1980 MHz as the others (1980 MHz): the cause is not seen"),
        (None, "Clocks were not sampled beside the run"),
    ],
)
def test_slow_kernels_are_set_beside_the_clock_of_their_gpu(tmp_path, mhz, said):
    job = write_run(tmp_path / "job", 120.0, world=3, slow={1: 1.3}, gemm_us=1500.0, traces="")
    if mhz:
        write_state(job, {0: [1980] * 5, 1: [mhz] * 5, 2: [1980] * 5}, begin=BASE_NS, bits=4)
    done = call(job, "--out", tmp_path / "out")
    assert said in done.stdout
    if mhz:
        rows = list(csv.DictReader((tmp_path / "out/gpu_clocks.csv").open()))
        assert [row["sm_clock_mhz"] for row in rows] == ["1980.0", f"{mhz}.0", "1980.0"]
        assert "Sampling clocks every 0.1 s took 0.5 % of one CPU core" in done.stdout


def test_a_clock_that_no_collective_tells_is_said_to_be_as_recorded(tmp_path):
    job = write_job(tmp_path / "job")
    alone = TraceWriter(rank=2, world_size=3)
    for step in range(STEPS):
        alone.step(5 + step, 1000 + STEP_US * step, STEP_US)
        alone.gemm(64, 32, 128, 1100 + STEP_US * step, 300)
    alone.write(job / "rank2" / "trace_step7.json.gz")
    said = call(job, "-o", tmp_path / "out", ok=False).stdout
    assert "The clock of rank 2 is as recorded: no collective with the others tells how far off" in said


def test_collectives_of_no_length_do_not_break_the_pairing_and_are_said(tmp_path: Path) -> None:
    """Every third one without a length made 50 calls of 48, and no two ranks met in any of those."""
    job = write_job(tmp_path)
    for rank in range(3):
        nth = iter(range(100))
        rewritten(job, rank, lambda e: {**e, "dur": 0} if is_collective(e) and next(nth) % 3 == 1 else e)  # noqa: B023
    done = call(job, "--json", "-q", ok=False)
    assert isinstance(done.exception, StepFailed)
    assert "rank 1: 2 of 6 collectives are 0 ns long" in str(done.exception)
    found = json.loads(done.stdout)
    assert found["collectives"] == {"calls": STEPS * CALLS, "complete": STEPS * CALLS}
    assert not any(clock["corrected"] for clock in found["clocks"]) and found["findings"] == []


def test_a_rank_without_launches_is_no_all_clear(tmp_path: Path) -> None:
    """Its idle time was unexplained, no rank was named, and the exit code was 0."""
    job = write_job(tmp_path, late={1: 2500.0})
    rewritten(job, 1, lambda event: None if event.get("cat") == "cuda_runtime" else event)
    done = call(job, "--json", "-q", ok=False)
    assert isinstance(done.exception, StepFailed)
    assert "whether its host is late is not told" in str(done.exception)


def test_a_rank_without_step_marks_beside_ranks_that_have_them_is_said(tmp_path: Path) -> None:
    folder = write_job(tmp_path, late={1: 2500.0})
    rewritten(folder, 2, lambda event: None if event["name"].startswith("ProfilerStep#") else event)
    done = call(folder, "--json", ok=False)
    found = json.loads(done.stdout)
    assert isinstance(done.exception, StepFailed) and found["windows"] == "whole recording"
    assert found["lacking"] == ["rank 2 recorded no steps, so the recording is not told step by step"]
    assert {(one["rank"], one["cause"]) for one in found["findings"]} == {(1, "host_late")}
    said = call(folder, "-o", tmp_path / "out", ok=False).stdout
    assert "Not every rank of the recording has step marks" in said and "The recording takes 1" in said
    assert not any(
        words in said for words in ("step -1", "A step takes", "a step takes", "per step", "ms a step")
    )


def test_sends_that_cannot_be_paired_are_known_to_the_exit_code(tmp_path: Path) -> None:
    folder = write_job(tmp_path, late={1: 2500.0})

    def sent(event):
        if "Collective name" not in event.get("args", {}):
            return event
        args = {**event["args"], "Collective name": "send"}
        return {**event, "name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "args": args}

    for rank in range(3):
        rewritten(folder, rank, sent)
    done = call(folder, "--json", ok=False)
    found = json.loads(done.stdout)
    assert isinstance(done.exception, StepFailed) and found["what_if"] == []
    loose = f"{3 * STEPS * CALLS} sends or receives of 18 calls not paired"
    assert found["lacking"] == [f"{loose}: who waits for whom is not told"]
    (late,) = (one for one in found["findings"] if one["cause"] == "host_late")
    assert late["rank"] == 1 and "whether it holds the others up is unknown" in late["text"]


@pytest.mark.data
@pytest.mark.parametrize(
    ("case", "options", "found"),
    [
        ("two_traces_per_rank", (), [[(3, "host_late")], [(1, "host_late")]]),
        ("all_say_rank0", ("--ranks", r"gpu(\d+)/"), [[(3, "host_late")]]),
        ("nsys_slow", (), [[(2, "slow_kernels")]]),
    ],
)
def test_ranks_are_read_however_they_arrive(shared_data, case, options, found) -> None:
    document = json.loads(call(shared_data / "cases/ranks" / case, *options, "--json").stdout)
    settings = document.get("settings", [document])
    assert [[(f["rank"], f["cause"]) for f in one["findings"]] for one in settings] == found
    truth = json.loads((shared_data / "cases/ranks/truth.json").read_text())[case]
    for rank, parts in truth.get("ranks", {}).items():
        rows = [row for row in settings[0]["steps"] if row["rank"] == int(rank)]
        for name, ms in parts.items():
            ns = sum(row[f"{name}_ns"] + (row["contention_ns"] if name == "compute" else 0) for row in rows)
            assert ns / 1e6 == pytest.approx(ms, rel=0.02, abs=0.02)


def test_traces_that_a_pattern_leaves_out_are_known_to_the_exit_code(tmp_path: Path) -> None:
    folder = write_job(tmp_path, late={1: 2500.0})
    done = call(folder, "--ranks", r"rank([01])\b", "--json", ok=False)
    lacking = json.loads(done.stdout)["lacking"]
    assert any("1 trace not matched by --ranks" in text for text in lacking)


SIZE = 4 * NELEMS


def import_files(*words: object, ok: bool = True) -> Result:
    done = CliRunner().invoke(ranks, ["import", *(str(word) for word in words)])
    if ok and done.exception:
        raise done.exception
    return done


def test_a_transfer_is_set_beside_the_same_size_alone(tmp_path):
    write_run(tmp_path / "job", 180.0)
    file = write(tmp_path / "x.json", speed({SIZE // 4: 30.0, SIZE * 4: 270.0}, ranks=2))
    found = json.loads(import_files(file, "--with", tmp_path / "job", "--json").stdout)
    (row,) = found["beside"]
    assert row["alone_us"] == pytest.approx(90.0) and row["ratio"] == pytest.approx(2.0, rel=0.02)
    assert "slower than the fabric allows" in row["text"]


def test_sizes_that_were_not_measured_are_no_comparison(tmp_path):
    write_run(tmp_path / "job", 180.0)
    file = write(tmp_path / "x.json", speed({1024: 3.0}, ranks=2))
    done = import_files(file, "--with", tmp_path / "job", ok=False)
    assert isinstance(done.exception, StepFailed) and "no collective of the recording" in str(done.exception)


def test_a_table_is_written_and_wrong_results_end_with_1(tmp_path):
    document = speed({1024: 3.0})
    document["results"][0]["out_of_place"]["nwrong"] = 1
    done = import_files(write(tmp_path / "x", document), "--out", tmp_path / "out", ok=False)
    assert isinstance(done.exception, StepFailed) and "1 result wrong" in str(done.exception)
    rows = list(csv.DictReader((tmp_path / "out/nccl_tests.csv").open()))
    assert [(row["place"], row["wrong"]) for row in rows] == [("out_of_place", "1"), ("in_place", "0")]
