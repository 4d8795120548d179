"""What a person mistypes or lacks ends in words: what, where, what to do, and the exit code of that error."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lab.cli.main import cli, main
from lab.errors import LabError
from tests.conftest import ROOT

READERS = (
    ("analyze",),
    ("inspect",),
    ("ranks",),
    ("gemm", "report"),
    ("kernels", "unique"),
    ("nsys", "summary"),
    ("nan", "parse"),
    ("export", "--to", "perfetto", "-o", "out"),
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a file of each kind that is no recording."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace_rank0.json").write_text("{}")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "notes.txt").write_text("hello there")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}')[:2])
    (tmp_path / "folder").mkdir()
    return tmp_path


def failed(*words: str) -> tuple[int, LabError | click.ClickException]:
    """-> exit code, error."""
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(done.exception, (LabError, click.ClickException)), (done.output, done.exc_info)
    return done.exception.exit_code, done.exception


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_name_that_is_not_there_is_answered_with_the_one_that_may_be_meant(words, here):
    code, error = failed(*words, "trace_rnk0.json")
    assert code == 4 and error.location == "trace_rnk0.json"
    assert "did you mean 'trace_rank0.json'" in error.fix


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_path_with_nothing_like_it_is_told_from_where_it_is_read(words, here):
    for name in ("nowhere/q", "nope.json"):
        code, error = failed(*words, name)
        assert code == 4 and f"the path is read from {here}" in error.fix


@pytest.mark.parametrize("words", READERS, ids=" ".join)
@pytest.mark.parametrize("name, code", [("notes.txt", 5), ("cut.json.gz", 5), ("folder", 4)])
def test_what_is_no_recording_is_damaged_or_missing_data_and_never_a_result(words, name, code, here):
    found, error = failed(*words, name)
    assert found == code and name in str(error) and len(str(error).splitlines()) > 1


@pytest.mark.parametrize("words", [one for one in READERS if one != ("nan", "parse")], ids=" ".join)
def test_an_empty_file_is_said_to_be_empty(words, here):
    code, error = failed(*words, "empty.json")
    assert code == 5 and "empty" in str(error)


@pytest.mark.parametrize(
    "words, said",
    [
        (("anlyze",), "Did you mean analyze?"),
        (("run", "swep"), "Did you mean sweep?"),
        (("run", "xyzzy"), "One of: sweep, nan, nixnan,"),
        (("kernels", "uniqu"), "Did you mean unique?"),
        (("images", "chek"), "Did you mean check?"),
        (("doctor", "--jsn"), "--json"),
    ],
)
def test_a_mistyped_command_or_option_is_answered_with_the_one_that_may_be_meant(words, said):
    code, error = failed(*words)
    assert code == 2 and said in error.format_message()


def test_a_list_of_runs_in_a_folder_that_is_not_there_is_no_empty_list(here):
    code, error = failed("runs", "list", "experimnts")
    assert code == 4 and error.problem == "no such folder"
    fresh = CliRunner().invoke(cli, ["runs", "list"])
    assert fresh.exit_code == 0 and "no runs in experiments" in fresh.output


def test_a_dry_run_refuses_the_output_folder_that_the_run_would_refuse(here):
    for more in ((), ("-n",)):
        code, error = failed("run", *more, "--gpus", "none", "-o", ".", "sweep", "-c", "28")
        assert code == 2 and "files that no run of lab made" in error.problem
    assert {path.name for path in here.iterdir()} == {*NAMES}


NAMES = ("trace_rank0.json", "empty.json", "notes.txt", "cut.json.gz", "folder")


def test_a_text_given_as_training_config_is_told_what_one_is(here):
    code, error = failed("run", "-n", "--gpus", "none", "sweep", "-f", "notes.txt")
    assert code == 3 and "train.yaml" in error.fix and "tiny" in error.fix


def test_a_file_name_does_not_command_the_terminal(here):
    (here / "a\x1b[31mb.json").write_text("x")
    done = subprocess.run(
        [sys.executable, "-m", "lab", "analyze", "a\x1b[31mb.json"], capture_output=True, check=False
    )
    assert done.returncode == 5 and b"\x1b" not in done.stderr and b"a\\x1b[31mb.json" in done.stderr


def test_a_question_without_duckdb_names_the_extra(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, error = failed("query", "select 1", ".")
    assert code == 4 and error.fix == "pip install 'lab[query]'"


def test_a_path_is_not_there_also_where_the_folder_of_the_terminal_is_gone(here, monkeypatch):
    gone = here / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, error = failed("kernels", "unique", "x.json")
    assert code == 4 and error.fix is None
    monkeypatch.chdir(here)


@pytest.mark.parametrize("words", [("kernels", "unique"), ("analyze",), ("ranks",)], ids=" ".join)
def test_a_name_that_no_file_can_have_ends_in_words(words, here, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, "a" * 300])
    said = capsys.readouterr().err
    assert ended.value.code == 4 and "File name too long" in said and "fix:" in said


CORE_ONLY = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"numpy", "pandas", "docker", "torch", "matplotlib"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
from lab.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words, package",
    [
        ("diff trace.json trace.json", "numpy"),
        ("nsys summary trace.json", "numpy"),
        ("runs reap", "docker"),
    ],
)
def test_a_missing_package_is_named_with_its_extra_and_no_traceback(tmp_path, words, package):
    for name in ("trace.json", "trace.sqlite"):
        (tmp_path / name).write_text("{}")
    done = with_core_alone(words.split(), tmp_path)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert f"{package!r} is not installed here" in done.stderr and "pip install" in done.stderr


@pytest.mark.data
def test_a_log_of_nixnan_is_read_with_the_core_alone(tmp_path, shared_data):
    log = shared_data / "nixnan/07_pytorch_erfinv_f64_complete.txt"
    parsed = with_core_alone(["nan", "parse", str(log)], tmp_path)
    compared = with_core_alone(["diff", str(log), str(log)], tmp_path)
    assert parsed.returncode == compared.returncode == 0
    assert f"{log}: complete." in parsed.stdout and "0 appeared" in compared.stdout


def with_core_alone(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CORE_ONLY, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "/usr/bin", "PYTHONPATH": str(ROOT)},
        timeout=900,
    )
