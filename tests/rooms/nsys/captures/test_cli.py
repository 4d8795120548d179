"""`lab nsys summary` and `stats`."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from lab.cli.main import main
from lab.rooms.nsys.captures.stats.reports import REPORTS
from lab.rooms.nsys.cli import nsys as nsys_group
from tests.recordings.sqlgen import Export
from tests.simulator.program import Op, Program, step
from tests.simulator.writers import write_rpd


def call(*arguments):
    return CliRunner().invoke(nsys_group, [str(one) for one in arguments], catch_exceptions=True)


def test_summary_writes_the_text_and_every_report(trained, tmp_path):
    done = call("summary", trained, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "ANALYSIS_SUMMARY.txt").read_text() in done.output
    made = {path.name for path in (tmp_path / "out" / "stats_reports").iterdir()}
    absent = {"cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum", "osrt_sum"}
    assert made == {f"run_{name}.csv" for name in REPORTS.keys() - absent}


def test_summary_as_json_is_all_that_stdout_holds(trained):
    done = json.loads(call("summary", trained, "--json").stdout)
    assert done["attribution"] == "full"
    assert done["phases"][1]["path"] == ["backward"]


def test_stats_prints_one_report_as_plain_csv(trained):
    done = call("stats", trained, "--report", "nvtx_kern_sum")
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert sum(int(row["Kern Inst"]) for row in found if row["NVTX Range"] == ":backward") == 3


def exit_code(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["nsys", *(str(one) for one in arguments)])
    return caught.value.code


def test_each_way_to_fail_has_its_exit_code(trained, tmp_path, capsys):
    (tmp_path / "empty.sqlite").write_bytes(b"")
    (tmp_path / "cut.sqlite").write_bytes(trained.read_bytes()[:5000])
    (tmp_path / "song.mp3").write_bytes(b"ID3")
    no_ranges = Export()
    no_ranges.launch("k", (1, 1), (0, 5), (10, 20))
    no_ranges.write(tmp_path / "no_ranges.sqlite")
    no_kernels = Export()
    no_kernels.range("forward", (1, 1), 0, 10)
    no_kernels.write(tmp_path / "no_kernels.sqlite")
    assert exit_code("summary", tmp_path / "none.sqlite") == 4
    for name in ("empty.sqlite", "cut.sqlite", "song.mp3"):
        assert exit_code("summary", tmp_path / name) == 5
    assert exit_code("summary", tmp_path / "no_kernels.sqlite") == 4
    assert "it has 1 range, 0 API calls" in capsys.readouterr().err
    assert exit_code("stats", tmp_path / "no_kernels.sqlite") == 4
    assert exit_code("stats", trained, "--report", "nonsense") == 2
    assert exit_code("summary", trained, "--phase", "(") == 2
    assert exit_code("stats", trained, "--report", "all") == 4
    assert exit_code("stats", trained) == 0


def test_a_capture_without_ranges_has_kernels_and_one_exit_code_in_every_command(tmp_path, capsys):
    export = Export()
    export.launch("gemm_a", (1, 1), (0, 5), (10, 30))
    path = export.write(tmp_path / "no_ranges.sqlite")
    assert exit_code("summary", path) == 0
    text = capsys.readouterr().out
    assert "the whole capture" in text and "gemm_a" in text
    assert "unknown: no ranges and no operators were recorded: phases cannot be known" in text
    document = json.loads(call("summary", path, "--json").stdout)
    assert document["unknown"] == ["no ranges and no operators were recorded: phases cannot be known"]
    with pytest.raises(SystemExit) as caught:
        main(["analyze", str(path), "-o", str(tmp_path / "page")])
    assert caught.value.code == 0
    assert exit_code("summary", path, "--range", "forward") == 4, "what was asked for is not there"


def test_scrub_makes_a_copy_that_summary_reads_alike(trained, tmp_path):
    assert call("summary", trained, "--scrubbed", tmp_path / "clean.sqlite").exit_code == 0
    before, after = (
        call("summary", path).stdout.splitlines()[1:] for path in (trained, tmp_path / "clean.sqlite")
    )
    assert before == after


def test_a_process_without_the_part_that_was_asked_for_is_named(tmp_path):
    """Its absence from the summary would look like no work."""
    export = Export()
    for pid in (11, 22):
        export.launch("gemm", (pid, 1), (10, 20), (30, 130 + pid), corr=1)
    export.range("backward", (11, 1), 5, 25)
    file = export.write(tmp_path / "two.sqlite")
    done = call("summary", file, "--range", "backward")
    assert done.exit_code == 0 and "process 22 is left out: " in done.stdout
    assert "left out" not in call("summary", file, "--range", "backward", "--process", "11").stdout


@pytest.mark.parametrize("calls", [True, False], ids=["with calls", "without"])
def test_steps_of_which_no_launch_is_known_are_not_steps_without_kernels(tmp_path, capsys, calls):
    export = Export()
    for number in range(3):
        begin = 1000 * number
        export.range(f"step_{number}", (1, 1), begin, begin + 900)
        if calls:
            export.launch("gemm", (1, 1), (begin + 10, begin + 20), (begin + 100, begin + 500))
        else:
            export.kernel("gemm", 1, (begin + 100, begin + 500), 100 + number)
    path = export.write(tmp_path / "steps.sqlite")
    if calls:
        assert exit_code("summary", path) == 0
        return
    assert exit_code("summary", path) == 1
    said = capsys.readouterr()
    assert "no operation is known to belong to a step: classes and matrix products are unknown" in said.out
    assert "of 3 GPU operations none is known to belong to a step" in said.err


@pytest.mark.parametrize(
    ("lost", "advice"), [("calls", "record the API calls too"), ("rows", "rows of the GPU are missing")]
)
def test_steps_without_a_known_operation_say_what_is_missing(lost, advice, tmp_path, capsys):
    """The rows of the steps are lost, or the calls of all rows."""
    (process,) = Program((Op(), step(3, Op()))).play()
    spans = getattr(process, lost)
    spans[:] = [span for span in spans if lost == "rows" and span.step < 0]
    path = write_rpd([process], tmp_path / "trace.rpd")
    assert exit_code("summary", path) == 1
    assert advice in capsys.readouterr().err
