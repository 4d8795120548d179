"""What the pages say: lists, runs, comparisons; value by value on made runs."""

from __future__ import annotations

import json
import os
from datetime import timedelta

import pytest

from lab.core.run import MANIFEST
from lab.serve.index import Index, key_of
from lab.serve.web.differences import changed, figure_lines, previous_run
from lab.serve.web.files import file_lines, verified
from lab.serve.web.listing import PAGE, Wish, fact_of, listing
from tests.serve.made import DAY, write_run, write_runs


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "runs"


def no_clocks(_):
    return {}


def listed(root, activities=None, **wish):
    rows = Index(root, rest_s=0).refresh()
    return listing(rows, Wish(**wish), activities or {}, {row.folder: fact_of(row) for row in rows})


def names(found) -> list[str]:
    return [one.row.folder for group in found.groups for one in group.rows]


def test_the_fastest_sweep_is_found_by_filter_and_sort(root):
    for at, (room, value) in enumerate([("sweep", 12.0), ("sweep", 9.0), ("nan", 1.0), ("sweep", 11.0)]):
        write_run(root, f"{room}_{at}", room=room, step_ms=value, at=DAY + timedelta(hours=at))
    found = listed(root, q="room:sweep", sort="figure", desc=False, figure="Step")
    assert names(found) == ["sweep_1", "sweep_3", "sweep_0"] and (found.matching, found.total) == (3, 4)
    assert names(listed(root)) == ["sweep_3", "nan_2", "sweep_1", "sweep_0"], "newest first"


def test_words_columns_quotes_and_minus_filter(root):
    write_run(root, "a", lead="28 channels are fastest.", config={"model": "gpt"})
    write_run(root, "b", statuses=("oom",), verdict="warn", driver="550.9")
    assert names(listed(root, q="GPT")) == ["a"]
    assert names(listed(root, q='"28 channels" -oom model:gpt')) == ["a"]
    assert names(listed(root, q="verdict:warn")) == names(listed(root, q="-verdict:ok")) == ["b"]
    assert names(listed(root, q="driver:550 memory")) == ["b"]
    assert names(listed(root, q="nosuchcolumn:x")) == [] and listed(root, q="zzz").total == 2


def test_runs_without_the_value_are_last_either_way(root):
    write_run(root, "a", step_ms=2)
    write_run(root, "b", verdict=None)
    write_run(root, "c", step_ms=1)
    assert names(listed(root, sort="figure", desc=True))[-1] == "b"
    assert names(listed(root, sort="figure", desc=False)) == ["c", "a", "b"]


def test_groups_count_all_that_matches(root):
    for at in range(4):
        write_run(root, f"r{at}", room="ab"[at % 2], step_ms=float(at), at=DAY + timedelta(hours=at))
    found = listed(root, group="room", figure="Step")
    assert {group.name: group.count for group in found.groups} == {"a": 2, "b": 2}


def test_groups_are_of_settings_configurations_and_versions_too(root):
    for at, channels in enumerate([8, 16, 8]):
        write_run(root, f"r{at}", config={"channels": channels}, at=DAY + timedelta(hours=at))
    assert {one.name: one.count for one in listed(root, group="config channels").groups} == {"8": 2, "16": 1}
    assert {one.name: one.count for one in listed(root, group="version torch").groups} == {"2.11.0": 3}
    settings = {one.name: one.count for one in listed(root, group="setting").groups}
    assert settings == {"sweep: model tiny, channels 8": 2, "sweep: model tiny, channels 16": 1}
    assert names(listed(root, q="channels:16")) == ["r1"] and names(listed(root, q="torch:2.10")) == []
    assert names(listed(root, sort="config channels", desc=False))[2] == "r1", "8 comes before 16"


def test_versions_sort_as_people_count(root):
    for name, version in (("a", "2.9.1"), ("b", "2.11.0"), ("c", "2.10.0")):
        write_run(root, name, versions={"torch": version})
    assert names(listed(root, sort="version torch")) == ["b", "c", "a"]
    for name, share in (("x", 0.5), ("y", 0.25)):
        write_run(root, name, config={"share": share})
    assert names(listed(root, sort="config share", q="share", desc=False)) == ["y", "x"], "as numbers"


def test_no_figure_takes_the_place_of_a_column(root):
    write_run(
        root, "a", verdict="fail", figures=[("verdict", "ok", None, "", ""), ("room", "nan", 1.0, "", "")]
    )
    assert names(listed(root, q="verdict:fail room:sweep")) == ["a"] and not names(listed(root, q="room:nan"))


def test_numbers_of_two_units_are_not_put_together(root):
    for at, (text, value, unit) in enumerate(
        [("900 µs", 900.0, "µs"), ("1 ms", 1.0, "ms"), ("2 ms", 2.0, "ms")]
    ):
        write_run(root, f"r{at}", at=DAY + timedelta(hours=at), figures=[("Took", text, value, unit, "")])
    found = listed(root, sort="figure", figure="Took")
    assert names(found) == ["r2", "r1", "r0"] and found.elsewhere == 1


def test_a_lossy_recording_is_not_called_complete(root):
    write_run(
        root,
        "a",
        figures=[("recording", "lossy", None, "", ""), ("Took", "2 ms", 2.0, "ms", "at least in all")],
    )
    write_run(root, "b", figures=[("recording", "complete", None, "", "")])
    index = Index(root, rest_s=0)
    assert index.find("a").integrity == "the recording is lossy; figures are lower bounds"
    assert index.find("b").integrity == "complete, as analysed"
    assert [one.shown for one in index.find("a").figures] == ["lossy", "≥ 2 ms"]


def test_a_long_list_comes_in_pages(root):
    write_runs(root, PAGE + 5)
    assert len(names(listed(root))) == PAGE and len(names(listed(root, page=2))) == 5
    assert listed(root, page=99).page == 2


def test_a_run_that_goes_on_is_on_top(root):
    write_run(root, "a", statuses=("ok", None))
    found = listed(root, {"a": "running"})
    assert [one.row.folder for one in found.live] == ["a"] and names(
        listed(root, {"a": "running"}, q="state:running")
    ) == ["a"]
    assert not listed(root, {"a": "left by its driver"}).live


def test_what_differs_from_the_run_before(root):
    write_run(root, "old", at=DAY, versions={"torch": "2.10.0"}, config={"model": "gpt"})
    write_run(root, "other", at=DAY + timedelta(hours=1), config={"model": "tiny"})
    write_run(root, "new", at=DAY + timedelta(hours=2), driver="590.0", config={"model": "gpt"})
    index = Index(root, rest_s=0)
    new = index.find("new")
    earlier = previous_run(index.refresh(), new)
    assert earlier.folder == "old", "of the same model, though another run is nearer"
    found = {(one.group, one.name): one.values for one in changed(earlier, new, no_clocks)}
    assert found == {("versions", "torch"): ["2.10.0", "2.11.0"], ("machine", "driver"): ["580.1", "590.0"]}
    assert previous_run(index.refresh(), index.find("old")) is None


def test_figures_side_by_side_with_their_change(root):
    write_run(root, "a", step_ms=10.0)
    write_run(root, "b", step_ms=11.0)
    write_run(root, "c", verdict=None)
    index = Index(root, rest_s=0)
    write_run(root, "d", step_ms=10.0, figures=[("Share", "30 %", 30.0, "%", "")])
    write_run(root, "e", step_ms=10.0, figures=[("Share", "27 %", 27.0, "%", "at least in all")])
    write_run(root, "f", step_ms=10.0, figures=[("Share", "0.2", 0.2, "", "")])
    index = Index(root, rest_s=0)
    (line,) = figure_lines([index.find(name) for name in "abc"])
    assert [one and one.shown for one in line.figures] == ["10 ms", "11 ms", None]
    assert line.changes == ["+0.0 %", "+10.0 %", ""]
    share = next(one for one in figure_lines([index.find(name) for name in "def"]) if one.label == "Share")
    assert share.changes == ["+0 points", "-3 points", ""], "no percentage of a percentage, no two units"
    assert share.figures[1].shown == "≥ 27 %"


def test_files_say_whether_they_are_as_recorded(root):
    folder = write_run(root, "a")
    (folder / "steps/step0/run_output.log").write_text("changed and longer than it was\n")
    (folder / "steps/step1/run_output.log").unlink()
    (folder / ".hidden").write_text("x")
    (folder / "linked").symlink_to(folder / MANIFEST)
    lines, cut = file_lines(folder)
    states = {one.name: one.state for one in lines}
    assert states["steps/step0/run_output.log"] == "size changed from 18"
    assert states["steps/step1/run_output.log"] == "missing"
    assert states["report.html"] == "not in the manifest" and cut == "1 link is not followed"
    assert ".hidden" not in states and "linked" not in states


def test_a_file_beyond_the_list_is_not_called_missing(root, monkeypatch):
    folder = write_run(root, "a")
    monkeypatch.setattr("lab.serve.web.files.MOST_FILES", 2)
    lines, cut = file_lines(folder)
    states = {one.name: one.state for one in lines}
    assert states["steps/step1/run_output.log"] == "size as recorded" and cut.startswith("more than 2 files")
    assert "missing" not in states.values()


def test_a_folder_that_cannot_be_read_is_said(root, monkeypatch):
    folder = write_run(root, "a")
    (folder / "steps" / "step0" / "run_output.log").unlink()
    (folder / "steps" / "step0").rmdir()
    scanned = os.scandir

    def gone(path):
        if str(path).endswith("steps"):
            raise PermissionError(13, "Permission denied", str(path))
        return scanned(path)

    monkeypatch.setattr("os.scandir", gone)
    assert file_lines(folder)[1] == "steps could not be looked at: Permission denied"


def test_a_hash_is_compared_with_the_manifest(root):
    folder = write_run(root, "a")
    assert verified(folder, "steps/step0/run_output.log")["ok"] is True
    (folder / "steps/step0/run_output.log").write_bytes(b"loss 0.7\nloss 0.5\n")
    found = verified(folder, "steps/step0/run_output.log")
    assert found["ok"] is False and found["words"] == "NOT the file that the manifest records"
    assert verified(folder, "report.html") | {"sha256": ""} == {
        "file": "report.html",
        "sha256": "",
        "ok": False,
        "words": "not in the manifest: nothing to compare with",
    }


def test_a_list_that_did_not_change_is_not_sent_again(root):
    pytest.importorskip("starlette", reason="needs lab[serve]")
    from lab.serve.web.guard import LOCAL
    from lab.serve.web.server import made_app
    from tests.serve.web.asgi import get

    write_run(root, "a", statuses=("ok", None))
    index = Index(root, rest_s=0)
    app = made_app(index, cookie="c", hosts=LOCAL, spent=lambda _: None)
    signed = {"cookie": f"c={app.secret}"}
    first = get(app, "/rows", **signed)
    tag = first.headers["etag"]
    assert get(app, "/rows", if_none_match=tag, **signed).status == 304
    assert get(app, "/rows?q=x", if_none_match=tag, **signed).status == 200
    write_run(root, "b")
    again = get(app, "/rows", if_none_match=tag, **signed)
    assert again.status == 200 and "sweep" in again.text and ">b<" in again.text
    key = key_of(index.find("a"))
    found = json.loads(get(app, f"/run/{key}/verify?file=steps/step0/run_output.log", **signed).body)
    assert found["ok"] is True


def test_ranks_that_belong_to_no_run_are_offered_together(root):
    pytest.importorskip("starlette", reason="needs lab[serve]")
    from lab.serve.web.guard import LOCAL
    from lab.serve.web.server import made_app
    from tests.serve.web.asgi import get

    for name in ("job/rank0/trace.json", "job/rank1/trace.json", "other/a.trace.json", "other/b.trace.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    app = made_app(Index(root, rest_s=0), cookie="c", hosts=LOCAL, spent=lambda _: None)
    text = get(app, "/", cookie=f"c={app.secret}").text
    assert "file=job%2Frank0%2Ftrace.json&amp;file=job%2Frank1%2Ftrace.json" in text
    assert ">2 ranks together<" in text and text.count("ranks together") == 1, "b is no rank of a's job"
