"""Whether each figure that lab prints is the truth, or is said to be in doubt: never silently different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.recordings.tables import NO_SYMBOL
from tests.simulator.figures import Answers, Figure
from tests.simulator.program import Process
from tests.simulator.truth import Truth

# What a figure rests on; all others rest on the rows of the GPU alone.
AXES = {"owner": ("gpu", "host", "ops"), "step": ("gpu", "host", "ops")}
CONTRADICTIONS = ("K", "P", "U", "W", "Z")  # of rules: what cannot be, whatever else is lost
UNNAMED = (("",), ("(no name recorded)",))  # for kernels whose name is not known
TOLERANCE_MS = 2e-6


def silent(
    asked: Answers, truths: Mapping[int, Truth], *, whole: bool, operators: bool, bounded: bool = True
) -> list[str]:
    """A sentence per figure that differs from the truth though nothing says so, and per wrong exit code.

    truths: of each process, by its pid or rank. whole: the recording is undamaged: every figure has to be
    right, whatever the verdict. bounded: `at least` and `at most` have to hold.
    """
    sentences = []
    together = _together(list(truths.values()))
    for figure in [*asked.figures, *_absent(asked, together)]:
        unknown = figure.name[0] == "owner" and not operators
        nameless = figure.name[-2:-1] in UNNAMED or NO_SYMBOL in str(figure.name)
        if unknown or figure.name[0] == "op" or nameless:
            continue
        alone = figure.process is None or len(truths) == 1
        truth = together if alone else truths.get(figure.process)  # a process that no id names has none
        right = _right(figure, truth) if truth else None
        if right is None or abs(figure.value - right) <= TOLERANCE_MS + 1e-9 * abs(right):
            continue
        if truth and figure.name[0] == "idle_ms" and figure.bound:
            right = truth.idle_recorded_ms
        # Where operators are lost, the one around them has their launches.
        moved = figure.name[0] == "owner" and any(lack["axis"] == "ops" for lack in asked.lacks)
        holds = moved or not bounded or _bounded(figure, right)
        if whole or not ((_in_doubt(asked, figure) and holds) or _without_owner(asked, figure, right)):
            words = f"{figure.bound} {figure.value:.6f}".strip()
            sentences.append(f"{figure.command}, {_words(figure)}: {words}, true {right:.6f}")
    if whole and asked.verdict == "lossy":
        sentences.append(f"undamaged, but called lossy: {[lack['text'] for lack in asked.lacks]}")
    return sentences + _wrong_codes(asked, several=len(truths) > 1)


def _words(figure: Figure) -> str:
    return " ".join(str(part)[:40] for part in figure.name)


def _in_doubt(asked: Answers, figure: Figure) -> bool:
    axes = AXES.get(figure.name[0], ("gpu",))
    return any(lack["axis"] in axes and not lack["untraced"] for lack in asked.lacks)


def _without_owner(asked: Answers, figure: Figure, right: float) -> bool:
    """Launches without an operator, which are said to be: nothing else tells that the last ones are lost."""
    if figure.name[0] != "owner" or not any("have no op:" in answer.stderr for answer in asked.answers):
        return False
    return figure.value >= right if figure.name[1] == "" else figure.value <= right


def _bounded(figure: Figure, right: float) -> bool:
    """A bound is one; without the word, the verdict's doubt stands for itself."""
    if figure.bound == "at least":
        return figure.value <= right + TOLERANCE_MS
    return figure.bound != "at most" or figure.value >= right - TOLERANCE_MS


def _right(figure: Figure, truth: Truth) -> float | None:
    """The true value; None where the truth has no such figure."""
    name: tuple[Any, ...] = figure.name
    if name[0] in ("name", "owner"):
        groups: dict[Any, tuple[int, float]] = truth.by_name if name[0] == "name" else truth.by_owner
        key = name[1] if name[0] == "name" else name[1:3]
        return groups.get(key, (0, 0.0))[name[-1] == "ms"]
    if name[0] == "kernel":
        return truth.kernel_ms if name[1] == "ms" else truth.kernels
    if name[0] != "step":
        value: float | None = getattr(truth, name[0])
        return value
    steps = [truth.steps[number] for number in name[1] if number in truth.steps]
    return sum(getattr(step, name[2]) for step in steps) / len(steps) if steps else None


def _absent(asked: Answers, together: Truth) -> list[Figure]:
    """Kernels and owners that a command does not name, though it names others: 0 launches."""
    absent = []
    for command, kind, groups in (
        ("unique", "name", together.by_name),
        ("unique", "owner", together.by_owner),
        ("kernels.csv", "name", together.by_name),
    ):
        printed = {
            figure.name[1:-1]
            for figure in asked.figures
            if (figure.command, figure.name[0]) == (command, kind)
        }
        if printed:
            keys = [key if isinstance(key, tuple) else (key,) for key in groups]
            absent += [Figure(command, (kind, *key, "launches"), 0) for key in keys if key not in printed]
    return absent


def _together(truths: Sequence[Truth]) -> Truth:
    """All processes of a file: sums; times of several GPUs are not added up by any command."""
    if len(truths) == 1:
        return truths[0]

    def sums(groups: Sequence[dict[Any, tuple[int, float]]]) -> dict[Any, tuple[int, float]]:
        keys = dict.fromkeys(key for group in groups for key in group)
        return {
            key: (
                sum(group.get(key, (0, 0))[0] for group in groups),
                sum(group.get(key, (0, 0))[1] for group in groups),
            )
            for key in keys
        }

    return Truth(
        **{
            name: sum(getattr(truth, name) for truth in truths)
            for name in ("rows", "row_ms", "kernels", "kernel_ms")
        },
        **dict.fromkeys(("busy_ms", "idle_ms", "idle_recorded_ms", "span_ms", "tflop")),
        by_name=sums([truth.by_name for truth in truths]),
        by_owner=sums([truth.by_owner for truth in truths]),
        steps={},
    )


def _wrong_codes(asked: Answers, *, several: bool) -> list[str]:
    """A hole or a contradiction is exit code 1 in every command that prints figures; 4 and 5 mean that there
    is nothing to print. `inspect` prints verdicts; `gemm report` wants collectives of several ranks."""
    torn = [
        lack["rule"]
        for lack in asked.lacks
        if lack["place"] in ("hole", "all") and (not lack["unknown"] or lack["rule"] in CONTRADICTIONS)
    ]
    expected = (1, 4, 5) if torn else (0, 4) if asked.verdict == "complete" else (0, 1, 4)
    if not any(figure.value for figure in asked.figures if figure.command == "inspect"):
        expected = (*expected, 5)
    return [
        f"{answer.command}: exit code {answer.code}, findings {torn}: {answer.stderr.strip()[-200:]}"
        for answer in asked.answers
        if answer.code not in expected
        and not answer.command.startswith("inspect")
        and not (several and answer.command.startswith("gemm") and answer.code == 1)
    ]


def miscounted(asked: Answers, recorded: Process, true: Process) -> list[str]:
    """A sentence per kind of damage of which the findings count another number of rows than were damaged."""
    planted = {
        ("gpu", "W"): max(len(recorded.rows) - len(true.rows), 0),
        ("host", "W"): max(len(recorded.calls) - len(true.calls), 0),
        ("gpu", "Z"): sum(not row.start_ns for row in recorded.rows),
        ("gpu", "U"): sum(row.kind == "kernel" and not row.name for row in recorded.rows),
    }
    counted = {
        key: sum(lack["n"] for lack in asked.lacks if (lack["axis"], lack["rule"]) == key) for key in planted
    }
    return [
        f"rule {rule}: {counted[axis, rule]} of {number} damaged rows"
        for (axis, rule), number in planted.items()
        if counted[axis, rule] != number
    ]
