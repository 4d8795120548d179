"""`lab analyze --only`: sections of a recording, and what is said of those that it cannot have."""

from __future__ import annotations

import click
from click.testing import CliRunner

from lab.cli.main import cli
from lab.cli.registry import SECTIONS
from lab.errors import MissingError, StepFailed
from tests.rooms.kernels.made import generation
from tests.tracegen import TraceWriter


def test_each_section_writes_into_a_folder_of_its_own(only, tmp_path):
    done = only(generation().write(tmp_path / "t.json"), "kernels,phases")
    assert done.exception is None, done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"kernels", "phases"}
    for name in ("kernels", "phases"):
        assert (tmp_path / "out" / name / "report.html").is_file()
    assert (tmp_path / "out/kernels/tables/unique_kernels.csv").is_file()


def test_an_unknown_section_is_refused_with_the_names_of_all(only, tmp_path):
    error = only(generation().write(tmp_path / "t.json"), "phases,nothing").exception
    assert isinstance(error, click.BadParameter) and "'nothing'" in str(error)
    assert ", ".join(SECTIONS) in str(error) and not (tmp_path / "out").exists()


def test_a_section_that_the_input_cannot_have_fails_alone_and_beside_others(only, tmp_path):
    trace = generation().write(tmp_path / "t.json")
    alone = only(trace, "ranks")
    assert isinstance(alone.exception, MissingError) and "one rank alone" in str(alone.exception)
    beside = only(trace, "kernels,ranks")
    assert isinstance(beside.exception, StepFailed) and "ranks: one rank alone" in str(beside.exception)
    assert (tmp_path / "out/kernels/report.html").is_file()


def test_a_recording_without_steps_and_ranges_has_no_phases(only, tmp_path):
    writer = TraceWriter()
    writer.gemm(4, 4, 4, 100, 10)
    error = only(writer.write(tmp_path / "t.json"), "phases").exception
    assert isinstance(error, MissingError) and "so phases are unknown" in str(error)


def test_a_section_leaves_the_findings_of_the_whole_alone(only, tmp_path):
    trace = generation().write(tmp_path / "t.json")
    CliRunner().invoke(cli, ["analyze", str(trace), "-q", "-o", str(tmp_path / "out")])
    whole = (tmp_path / "out/findings.json").read_bytes()
    assert only(trace, "kernels").exception is None
    assert (tmp_path / "out/findings.json").read_bytes() == whole
