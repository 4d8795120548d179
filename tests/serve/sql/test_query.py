"""`lab query`: SQL over all runs, closed to everything else."""

from __future__ import annotations

import csv
import io
import json
import os

import pytest
from click.testing import CliRunner

pytest.importorskip("duckdb", reason="needs lab[query]")

import pyarrow as pa
import pyarrow.parquet

from lab.cli.main import cli
from lab.errors import MissingError, StepFailed, UsageError
from lab.serve.sql.ask import SAVED, Question, ask, environment, table_name
from lab.serve.sql.child import answer, cell
from lab.serve.sql.tables import named_in, read_table, together
from tests.serve.made import write_run


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "runs"
    write_run(root, "sweep_a", step_ms=12.5, config={"model": "gpt"})
    write_run(root, "sweep_b", step_ms=10.5, cells={"note": "=cmd()"})
    write_run(root, "nan_c", room="nan", table="births", statuses=("ok", "oom"), verdict="warn")
    return root


def rows(root, sql, **more):
    """Answered in this process: no limits of the operating system."""
    import resource

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        found = answer(Question(root=str(root), sql=sql, **more))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    return found


@pytest.fixture(autouse=True)
def no_limits(monkeypatch):
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)


def test_the_fastest_sweep_is_one_select(root):
    found = rows(root, "select run, step_ms from sweep_configs order by step_ms")
    assert found.rows == [["sweep_b", 10.5], ["sweep_a", 12.5]] and found.complete
    assert found.columns == ["run", "step_ms"]


def test_tables_of_runs_join_with_what_lab_knows_of_them(root):
    found = rows(
        root,
        "select r.model, s.step_ms, r.config->>'$.model', f.value "
        "from runs r join sweep_configs s using (run) join figures f using (run) order by 2",
    )
    assert found.rows == [["tiny", 10.5, "tiny", 10.5], ["gpt", 12.5, "gpt", 12.5]]
    assert rows(root, "select step, status, reason from steps where status <> 'ok'").rows == [
        ["step1", "oom", "out of memory"]
    ]
    assert rows(root, "select file, row from findings where kind = 'figure' and room = 'nan'").rows == [
        ["tables/births.csv", 0]
    ]


def test_ended_runs_without_findings_are_no_silent_gap_in_figures(root):
    (root / "sweep_b" / "findings.json").unlink()
    write_run(root, "sweep_live", statuses=("ok", None), verdict=None)
    found = rows(root, "select run from figures where room = 'sweep'")
    assert found.rows == [["sweep_a"]] and not found.complete
    assert found.notes[0].startswith("1 of 4 runs have no findings") and "sweep_b;" in found.notes[0]
    assert rows(root, "select run from runs").complete


def test_runs_that_cannot_be_read_are_no_silent_gap_in_any_table_but_their_own(root, monkeypatch):
    path = root / "sweep_a" / "manifest.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    told = "left out: sweep_a: the manifest has schema version 99, this lab reads 1"
    for table in ("sweep_configs", "steps", "findings", "figures"):
        assert told in rows(root, f"select * from {table}").notes
    one = rows(root, "select error from runs where state = 'unreadable'")
    assert one.rows == [["the manifest has schema version 99, this lab reads 1"]] and one.notes == []
    monkeypatch.setattr("lab.serve.sql.ask.ask", lambda folder, sql, **more: rows(folder, sql, **more))
    assert isinstance(run("select count(*) from sweep_configs", root).exception, StepFailed)


def test_a_column_that_only_some_runs_have_is_null_elsewhere(root):
    assert rows(root, "select run, note from sweep_configs order by 1").rows == [
        ["sweep_a", None],
        ["sweep_b", "=cmd()"],
    ]


def test_types_that_differ_become_numbers_if_all_are_else_text():
    whole = together([pa.table({"x": [1, 2]}), pa.table({"x": [0.5]}), pa.table({"y": ["a"]})])
    assert whole.column("x").to_pylist() == [1.0, 2.0, 0.5, None]
    mixed = together([pa.table({"x": [1]}), pa.table({"x": ["one"]}), pa.table({"x": pa.nulls(1)})])
    assert mixed.column("x").to_pylist() == ["1", "one", None]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('{secret}')",
        "select * from read_blob('/proc/self/environ')",
        "select * from glob('/*')",
        "select * from read_parquet('https://127.0.0.1:9/x.parquet')",
        "select getenv('HOME')",
        "copy runs to '{out}'",
        "export database '{out}'",
        "install httpfs",
        "set enable_external_access=true",
        "create table x as select 1",
        "delete from runs",
        "call pragma_version()",
        "explain analyze select 1",
        "select 1; copy runs to '{out}'",
        "select * from absent",
    ],
)
def test_sql_reaches_no_file_and_changes_nothing(root, tmp_path, sql):
    secret, out = tmp_path / "secret.csv", tmp_path / "out"
    secret.write_text("a\nsecret\n")
    found = rows(root, sql.format(secret=secret, out=out))
    assert found.error and not found.rows and "secret\n" not in found.error and not out.exists()


def test_only_one_select_is_answered_and_the_answer_says_why(root):
    assert "2 statements" in rows(root, "select 1; select 2").error
    assert "not COPY" in rows(root, "copy runs to 'x'").error
    assert rows(root, "with x as (select 1 as a) select a from x").rows == [[1]]


def test_rows_beyond_the_limit_are_cut_and_said(root):
    found = rows(root, "select * from range(50)", most_rows=10)
    assert len(found.rows) == 10 and found.cut and not found.complete
    assert not rows(root, "select * from range(10)", most_rows=10).cut


def test_an_answer_of_huge_cells_is_cut(root):
    found = rows(root, "select repeat('x', 20000) from range(3)")
    assert [len(one[0]) for one in found.rows] == [len("x" * 10000 + " … (20,000 characters)")] * 3
    assert rows(root, "select repeat('x', 9999) from range(2000)", most_rows=5000).cut


def test_memory_and_time_are_bounded(root):
    found = rows(root, "select list(range) from range(100000000)", memory_mb=64, timeout_s=600)
    assert "more than 64 MB" in found.error and found.limited
    found = rows(root, "select count(*) from range(100000000000) a, range(1000) b", timeout_s=0.3)
    assert found.error == "stopped after 0.3 s" and found.limited


def test_a_damaged_or_huge_table_is_named_and_the_rest_is_answered(root, monkeypatch):
    (root / "sweep_a" / "tables" / "configs.csv").write_text('a,b\n1\n"')
    found = rows(root, "select count(*) from sweep_configs")
    assert (
        found.rows == [[1]]
        and "left out: sweep_a/tables/configs.csv" in found.notes[0]
        and not found.complete
    )
    monkeypatch.setattr("lab.serve.sql.tables.MOST_FILE_BYTES", 20)
    found = rows(root, "select count(*) from sweep_configs")
    assert found.error and len(found.notes) == 2 and "too many to read" in found.notes[1]


def test_a_parquet_file_is_read_and_a_bomb_is_not(root, monkeypatch):
    folder = root / "sweep_a" / "tables"
    pyarrow.parquet.write_table(
        pa.table({"x": [0] * 100_000, "Run": ["mine"] * 100_000}), folder / "bomb.parquet"
    )
    assert rows(root, "select count(*), any_value(run), any_value(Run_2) from sweep_bomb").rows == [
        [100_000, "sweep_a", "mine"]
    ]
    words = "takes more than 1 MiB in memory"
    monkeypatch.setattr("lab.serve.sql.tables.MOST_DECODED", 1 << 20)
    found = rows(root, "select count(*) from sweep_bomb")
    assert words in found.notes[0] and found.limited, "a limit, not a table that nobody has"
    assert found.error == "no file of sweep_bomb could be read"
    pyarrow.parquet.write_table(pa.table({"x": [0] * 2_000_000}), folder / "bomb.parquet")
    with pytest.raises(pa.ArrowInvalid, match=words):
        read_table(root / "sweep_a", "tables/bomb.parquet", 1 << 20)
    long = pa.table({"x": pa.DictionaryArray.from_arrays(pa.array([0] * 1000), pa.array(["x" * 10_000]))})
    pyarrow.parquet.write_table(long, folder / "bomb.parquet", store_schema=False)
    assert (folder / "bomb.parquet").stat().st_size < 20_000
    with pytest.raises(pa.ArrowInvalid, match=words):
        read_table(root / "sweep_a", "tables/bomb.parquet", 1 << 20)


def test_nan_in_a_table_is_a_number_and_no_gap(root):
    (root / "sweep_a" / "tables" / "loss.csv").write_text("step,loss\n0,1.5\n1,nan\n2,\n3,inf\n")
    assert rows(root, "select loss from sweep_loss order by step").rows == [[1.5], ["nan"], [None], ["inf"]]
    assert rows(root, "select count(loss), avg(loss) from sweep_loss where step < 2").rows == [[2, "nan"]]


def planted(root, first, second, file="planted.csv"):
    for run, text in (("sweep_a", first), ("sweep_b", second)):
        (root / run / "tables" / file).write_text(text)


def test_times_in_ns_beside_a_fraction_keep_their_digits_and_say_that_they_are_text(root):
    planted(root, "ts_ns,small\n1700000000000000001,7\n", "ts_ns,small\n1.5,0.5\n")
    found = rows(root, "select ts_ns from sweep_planted order by run")
    assert found.rows == [["1700000000000000001"], ["1.5"]] and not found.complete
    whole = rows(root, "select sum(small) from sweep_planted")
    assert whole.rows == [[7.5]] and whole.complete


def test_numbers_beside_text_are_text_which_is_said_where_the_column_is_asked_for(root):
    planted(root, "Loss,step\n10,1\n9,2\n", "loss,step\nn/a,3\n")
    found = rows(root, "select max(loss) from sweep_planted where loss <> 'n/a'")
    assert found.rows == [["9"]]  # as text
    assert found.notes == [
        "sweep_planted.Loss is text here, and sorts as text: not all files hold the same kind of number"
    ]
    assert rows(root, "select max(step) from sweep_planted").complete


def test_a_time_with_a_zone_is_that_time_in_utc(root):
    planted(root, "seen\n2026-01-01T02:00:00+02:00\n", "seen\n2026-01-01T01:00:00Z\n")
    found = rows(root, "select seen from sweep_planted order by seen")
    assert found.rows == [["2026-01-01 00:00:00"], ["2026-01-01 01:00:00"]] and found.complete


def test_a_hexadecimal_id_is_text_even_where_it_reads_as_a_number(root):
    planted(root, "sig_id\n123e45678901\n", "sig_id\n000000000012\n")
    found = rows(root, "select sig_id from sweep_planted order by run")
    assert found.rows == [["123e45678901"], ["000000000012"]] and found.complete


def test_a_table_that_is_left_out_for_being_a_link_is_named_and_the_answer_incomplete(root, tmp_path):
    table = root / "sweep_b" / "tables" / "configs.csv"
    table.rename(tmp_path / "moved.csv")
    table.symlink_to(tmp_path / "moved.csv")
    found = rows(root, "select run from sweep_configs")
    assert found.rows == [["sweep_a"]] and not found.complete
    assert found.notes == ["left out: sweep_b/tables/configs.csv is a link: put what it leads to there"]
    assert rows(root, "select run from nan_births").complete
    folder = root / "nan_c" / "tables"
    folder.rename(tmp_path / "tables")
    folder.symlink_to(tmp_path / "tables")
    found = rows(root, "select run from nan_births")
    assert found.error
    assert found.notes == ["left out: nan_c/tables is a link: put what it leads to there"]


def test_names_of_tables_are_words_whatever_a_folder_is_called():
    assert table_name("Sweep", "a b-c; drop table x") == "sweep_a_b_c_drop_table_x"
    assert named_in("SELECT * FROM Sweep_Configs", ["sweep_configs", "configs"]) == ["sweep_configs"]


def test_cells_are_values_of_json():
    import datetime
    import decimal

    assert [cell(x) for x in (float("nan"), float("-inf"), 2**70, b"\x01", None, True)] == [
        *("nan", "-inf", str(2**70), "01", None, True)
    ]
    assert cell(decimal.Decimal("1.5")) == "1.5" and cell(datetime.date(2026, 1, 2)) == "2026-01-02"


@pytest.mark.parametrize("name", SAVED)
def test_every_saved_question_is_answered(root, name):
    assert rows(root, SAVED[name]).error == ""


def test_the_child_answers_without_the_callers_secrets(root, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "hush")
    assert "API_TOKEN" not in environment()
    found = ask(root, "select count(*) from runs")
    assert found.rows == [[3]] and found.complete


def run(*words):
    return CliRunner().invoke(cli, ["query", *map(str, words)])


def test_the_command_prints_a_table_csv_and_json(root, monkeypatch):
    monkeypatch.setattr("lab.serve.sql.ask.ask", lambda folder, sql, **more: rows(folder, sql, **more))
    sql = "select run, step_ms, note from sweep_configs order by 1"
    lines = run(sql, root).stdout.splitlines()
    assert lines[0].split() == ["run", "step_ms", "note"] and lines[2].split() == ["sweep_a", "12.5"]
    assert lines[-1] == "2 rows"
    table = list(csv.reader(io.StringIO(run(sql, root, "--csv").stdout)))
    assert table == [["run", "step_ms", "note"], ["sweep_a", "12.5", ""], ["sweep_b", "10.5", "'=cmd()"]]
    assert json.loads(run(sql, root, "--json").stdout)["rows"] == [
        ["sweep_a", 12.5, None],
        ["sweep_b", 10.5, "=cmd()"],
    ]
    assert "sweep_configs: tables/configs.csv of the room sweep (2 files)" in run("--tables", root).stdout


def test_exit_codes_say_whether_the_answer_is_whole(root, monkeypatch):
    monkeypatch.setattr("lab.serve.sql.ask.ask", lambda folder, sql, **more: rows(folder, sql, **more))
    assert isinstance(run("select * from range(9)", root, "--rows", 5).exception, StepFailed)
    assert isinstance(run("select * from absent", root).exception, UsageError)
    assert isinstance(run("", root).exception, UsageError)
    os.truncate(root / "sweep_a" / "tables" / "configs.csv", 0)
    (root / "sweep_a" / "tables" / "configs.csv").write_text('"')
    assert isinstance(run("select * from sweep_configs", root).exception, StepFailed)


def test_control_characters_in_cells_do_not_reach_the_terminal(root, monkeypatch):
    monkeypatch.setattr("lab.serve.sql.ask.ask", lambda folder, sql, **more: rows(folder, sql, **more))
    assert "\x1b" not in run("select chr(27) || '[2J' as x", root).stdout


def test_a_folder_without_runs_is_missing_input_and_no_answer_of_no_rows(tmp_path):
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(cli, ["query", "select * from runs", str(tmp_path / "empty")])
    assert isinstance(done.exception, MissingError) and done.exception.exit_code == 4
    assert "no runs below this folder" in done.exception.problem
