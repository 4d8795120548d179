"""`lab check BASE HEAD` over two folders: judged as the check that recorded them did, or as a single look."""

from __future__ import annotations

from pathlib import Path

from lab.compare.check import floors as kept_floors
from lab.compare.check.confirm import FOLDER as SECOND
from lab.compare.check.confirm import confirmed, shows_all
from lab.compare.check.floors import Floors
from lab.compare.check.gate import Verdict, judge
from lab.compare.check.looks import LOOKS, share_within
from lab.compare.check.progress import Progress
from lab.compare.check.samples import processes
from lab.compare.side import recordings_at
from lab.core.words import plural
from lab.errors import BadDataError

SIDES = ("base", "head")


def judge_again(base: Path, head: Path, allowed: float, *, with_floors: bool = True) -> Verdict:
    """The verdict on the recordings in two folders, one per process.

    Beside the folders of a check lie its floors, its second set and its record: the look that it made last
    has the level here that it had there. What the check's own verdict may say otherwise is noted.
    """
    out = _place(base, head)
    floors = _floors(out) if out and with_floors else None
    first = processes(base), processes(head)
    share, notes = _as_looked(out, base, head, allowed, floors) if out else (1.0, [])
    found = judge(*first, allowed, share=share, floors=floors)
    found.notes += notes
    if found.outcome == "regression":
        _confirm(found, out, floors, most=min(map(len, first)))
    return found


def _place(base: Path, head: Path) -> Path | None:
    """The folder of the check that recorded both sides, if they lie like those of one."""
    base, head = base.resolve(), head.resolve()
    return base.parent if (base.name, head.name) == SIDES and base.parent == head.parent else None


def _floors(out: Path) -> Floors | None:
    path = out / kept_floors.FILE
    return kept_floors.read(path) if path.is_file() else None


def _as_looked(
    out: Path, base: Path, head: Path, allowed: float, floors: Floors | None
) -> tuple[float, list[str]]:
    """The share of the false alarms that the check's last look had, and what a reader should know."""
    try:
        check = Progress.made(out)
    except BadDataError as error:
        return 1.0, [
            f"judged as a single look: the record of the check beside them is of no use ({error.problem})"
        ]
    if check is None:
        return 1.0, []
    asked, looks = check.state.asked, check.state.looks
    files = [file for side in (base, head) for file in recordings_at(side.resolve())]  # links in it stay
    other = []
    if allowed != asked.max_slowdown:
        other.append(f"the check that recorded this asked for --max-slowdown {asked.max_slowdown:.4g}")
    if asked.floors != (floors is not None):
        other.append(
            f"the check that recorded this judged {'with' if asked.floors else 'without'} A/A floors"
        )
    if not check.is_as_recorded(files):
        other.append(
            "these are not the processes of a look that the check made (it was ended between two looks, or "
            "files came, went or changed): judged as the only look, at a lower bar than one of its three"
        )
        return 1.0, other + check.notes()
    last = looks[-1]
    words = plural(last.processes, "process", "processes")
    level = f"judged as the check's look at {words} a side, which has {last.share:.0%} of its false alarms"
    return last.share, [level, *other, *check.notes()]


def _confirm(found: Verdict, out: Path | None, floors: Floors | None, *, most: int) -> None:
    """By the second set beside the first, if it is a whole one: as large as the first, or one that ended at
    a look that showed all. Of a check that was ended, fewer are no second opinion."""
    second = [out / SECOND / name for name in SIDES] if out else []
    if not any(one.is_dir() for one in second):
        found.notes.append("proven by one set of processes: no second one is here to confirm it")
        return
    again = [processes(one) if one.is_dir() and recordings_at(one) else [] for one in second]
    n_base, n_head = map(len, again)
    if min(n_base, n_head) >= most:
        confirmed(found, again[0], again[1], floors, share_within(most, most) if most in LOOKS else 1.0)
        return
    if n_base == n_head and n_base in LOOKS and most in LOOKS:
        share = share_within(n_base, most)
        if shows_all(found, again[0], again[1], floors, share):
            confirmed(found, again[0], again[1], floors, share)
            return
    found.notes.append(
        f"proven by one set of processes: the second one has {n_base} of BASE and {n_head} of HEAD, "
        f"and {most} a side would confirm it"
    )
