"""A container's log is complete, however its stream breaks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("docker")
from lab.engines.docker import follow
from lab.engines.docker.follow import LogFollower
from lab.engines.output import LogWriter


class Entries:
    """An engine whose log is known. Following breaks after so many entries as `cuts` say, then it hangs."""

    def __init__(self, entries: list[bytes], cuts: list[int], *, hang: bool = False) -> None:
        self.entries, self.cuts, self.hang = entries, list(cuts), hang
        self.followed = threading.Event()  # as far as the first cut, or the end

    def logs(self, _container, *, follow, **_):
        closed = threading.Event()
        end = self.cuts.pop(0) if follow and self.cuts else None
        found = self.entries[:end] if follow else self.entries

        def entries():
            yield from found
            self.followed.set()
            if follow and self.hang:
                closed.wait(30)

        return Stream(entries(), closed.set)


class Stream:
    def __init__(self, entries, close) -> None:
        self._entries, self.close = entries, close

    def __iter__(self):
        return self._entries


def entries(times: list[int], text: str = "line {}") -> list[bytes]:
    return [f"2026-01-01T00:00:00.{t:09}Z {text.format(n)}\n".encode() for n, t in enumerate(times)]


def followed(engine, root: Path) -> list[str]:
    lines: list[str] = []
    with LogWriter(root / "log", lines.append) as log:
        follower = LogFollower(engine, "c", log)
        follower.start()
        engine.followed.wait(300)
        follower.finish()
        assert follower.error is None
    return lines


@pytest.mark.parametrize("cuts", [[0], [1], [3], [6], [7], [2, 2], [3, 0, 1]])
def test_a_broken_stream_is_taken_up_where_it_broke_without_a_line_twice(tmp_path, cuts):
    """Entries share times, and an older one comes after a newer one, as pieces of a long line do."""
    assert followed(Entries(entries([1, 1, 2, 1, 2, 3, 3]), cuts), tmp_path) == [
        f"line {n}" for n in range(7)
    ]


@pytest.mark.parametrize("cut", [100, 950, 999, 1000])
def test_entries_that_are_all_alike_are_still_counted_exactly(tmp_path, cut):
    assert followed(Entries(entries([7] * 1000, "same"), [cut]), tmp_path) == ["same"] * 1000


def test_a_stream_that_hangs_after_the_end_is_cut_off_and_the_rest_read_plainly(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "QUIET_S", 0.3)
    engine = Entries(entries([1, 2, 3]), [1], hang=True)
    assert followed(engine, tmp_path) == ["line 0", "line 1", "line 2"]
