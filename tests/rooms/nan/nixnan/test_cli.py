"""`lab nan parse` and `lab diff` of nixnan logs as a person types them."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace

import pandas as pd
import pytest
from click.testing import CliRunner

from lab.cli.main import cli, main
from tests.rooms.nan.nixnan import nixgen
from tests.rooms.nan.nixnan.examples import AGAIN, TWINS, A, B
from tests.rooms.nan.nixnan.nixgen import error, log


def run(command: str, *words: object):
    return CliRunner().invoke(cli, [*command.split(), *map(str, words)])


@pytest.fixture
def lab(capsysbinary):
    """A command line to its end, errors and exit code too; a process of its own would take a second."""

    def typed(command: str, *words: object):
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), *map(str, words)])
        shown = capsysbinary.readouterr()
        return SimpleNamespace(
            returncode=ended.value.code, stdout=shown.out.decode(), stderr=shown.err.decode()
        )

    return typed


def test_json_is_one_object_a_log(tmp_path):
    paths = [nixgen.write(tmp_path / f"{n}.nixnan", log(*A[: 10 * n])) for n in (1, 2)]
    rows = [json.loads(line) for line in run("nan parse", "--json", *paths).stdout.splitlines()]
    assert [row["file"] for row in rows] == [str(path) for path in paths]
    assert {
        "file",
        "lines",
        "error_lines",
        "torn_lines",
        "sites",
        "integrity",
        "counts",
        "report",
        "functions",
    } <= rows[0].keys()
    assert rows[1]["error_lines"] == rows[1]["sites"] == 20 and rows[1]["integrity"] == "complete"
    assert rows[1]["counts"]["f32"] == {"NaN": 20, "infinity": 0, "-infinity": 0, "subnormal": 0, "div0": 0}
    assert rows[1]["functions"] == {"void pytorch_flash::flash_fwd_kernel": 20}


def test_what_is_shown_holds_verdict_counts_causes_and_coverage(tmp_path):
    done = run(
        "nan parse",
        nixgen.write(
            tmp_path / "a",
            log(*TWINS, *[error(k, operand=n) for n, k in ((1, "-infinity"), (2, "-infinity"), (0, "NaN"))]),
        ),
    )
    for words in (
        "complete",
        "masked-intermediate",
        "(-inf) - (-inf)",
        "quantized gemm",
        "lower bounds",
        "#nixnan: error [NaN]",
    ):
        assert words in done.stdout


def test_the_table_of_sites_is_written_as_csv(tmp_path):
    done = run("nan parse", nixgen.write(tmp_path / "a", log(*A)), "--sites", tmp_path / "sites.csv")
    table = pd.read_csv(tmp_path / "sites.csv")
    assert done.exit_code == 0 and len(table) == 200 and table.NaN.sum() == 200


def test_exit_codes_tell_what_is_missing(tmp_path, lab):
    whole, cut = (
        nixgen.write(tmp_path / "a", log(error())),
        nixgen.write(tmp_path / "b", log(error(), end=False)),
    )
    assert lab("nan parse", whole).returncode == 0
    for logs in ((cut,), (whole, cut)):
        done = lab("nan parse", *logs)
        assert done.returncode == 1 and f"1 of {len(logs)} log" in done.stderr and "truncated" in done.stderr
    assert lab("diff", whole, whole).returncode == 0 and lab("diff", whole, cut).returncode == 1
    unreadable = tmp_path / "c.nixnan.gz"
    unreadable.write_bytes(gzip.compress(whole.read_bytes())[:12])
    done = lab("nan parse", unreadable)
    assert done.returncode == 5 and "the compressed file is cut" in done.stderr
    missing = lab("nan parse", tmp_path / "none")
    assert missing.returncode == 4 and "no such log" in missing.stderr and "Traceback" not in missing.stderr


def test_a_file_of_something_else_is_an_error_an_empty_one_a_result_that_clears_nothing(tmp_path, lab):
    nothing, other = nixgen.write(tmp_path / "a", [""]), nixgen.write(tmp_path / "b", ["hello"])
    nothing.write_bytes(b"")
    assert (
        lab("nan parse", nothing).returncode == 1
        and json.loads(run("nan parse", "--json", nothing).stdout)["integrity"] == "empty"
    )
    done = lab("nan parse", other)
    assert done.returncode == 5 and "no line of nixnan's" in done.stderr


def test_a_comparison_with_a_file_of_something_else_is_an_error(tmp_path, lab):
    a, b = nixgen.write(tmp_path / "a.nixnan", log(*A[:10])), nixgen.write(tmp_path / "b.txt", ["hello"])
    for pair in ((a, b), (b, a), (a, a, "--repeat-a", b)):
        done = lab("diff", *pair)
        assert done.returncode == 5 and "no line of nixnan's" in done.stderr and not done.stdout


def test_a_log_given_for_a_run_is_told_apart_from_a_missing_folder(tmp_path, lab):
    a = nixgen.write(tmp_path / "a.nixnan", log(*A[:10]))
    assert "lab nan parse" in lab("nan analyze", a).stderr, "the command for a log"
    assert "no such folder" in lab("nan analyze", tmp_path / "nowhere").stderr


def test_one_log_that_cannot_be_read_does_not_hide_the_others(tmp_path, lab):
    done = lab("nan parse", "--json", tmp_path / "none", nixgen.write(tmp_path / "a", log(error())))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and "error" in rows[0] and rows[1]["integrity"] == "complete"


def test_a_comparison_of_logs_and_of_folders(tmp_path):
    for name, lines in (("a", A), ("again", AGAIN), ("b", B)):
        (tmp_path / name).mkdir()
        nixgen.write(tmp_path / name / "x.nixnan", log(*lines))
    shown = run("diff", tmp_path / "a", tmp_path / "b" / "x.nixnan", "--repeat-a", tmp_path / "again")
    assert (
        shown.exit_code == 0 and "More than the noise" in shown.stdout and "FMUL R0, R1, R2" in shown.stdout
    )
    result = json.loads(run("diff", "--json", tmp_path / "a", tmp_path / "b").stdout)
    assert result["beyond_noise"] is None and result["sites_a"] == 200
    nixgen.write(tmp_path / "a" / "child.nixnan", nixgen.BANNER[:1])
    assert run("diff", tmp_path / "a", tmp_path / "b").exception.exit_code == 2, "which of the two is meant?"


def test_a_folder_without_logs_beside_a_log_is_a_clear_error(tmp_path, lab):
    (tmp_path / "empty").mkdir()
    done = lab("diff", nixgen.write(tmp_path / "a.nixnan", log(*A[:10])), tmp_path / "empty")
    assert done.returncode == 4 and "no nixnan log" in done.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--by", "op"], "--by does not go with"),
        (["--repeat-a", "x", "--repeat-a", "y"], "--repeat-a more than once"),
    ],
)
def test_options_for_recordings_are_refused_for_logs(tmp_path, options, text, lab):
    named_otherwise = nixgen.write(tmp_path / "stderr.txt", log(*A[:10]))
    done = lab("diff", named_otherwise, named_otherwise, *options)
    assert done.returncode == 2 and text in done.stderr


def test_a_folder_is_read_by_first_lines_too_and_what_is_left_out_is_named(tmp_path):
    for name, lines in (("a.nixnan", 2), ("job.log", 3), ("out.txt", 1)):
        events = [error("NaN", sass=f"FADD R{n}, R2, R3") for n in range(lines)]
        nixgen.write(tmp_path / name, [*["step 1"] * (name == "out.txt"), *log(*events)])
    (tmp_path / "notes.txt").write_text("no line of the tool\n")
    rows = [json.loads(line) for line in run("nan parse", "--json", tmp_path).stdout.splitlines()]
    assert [row["error_lines"] for row in rows if "error_lines" in row] == [2, 3, 1]
    assert [row["file"] for row in rows if "skipped" in row] == [str(tmp_path / "notes.txt")]
