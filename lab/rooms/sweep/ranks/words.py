"""The account of one setting in sentences, most important first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.core.words import plural, ranks_text
from lab.recordings.ranks.account import Account
from lab.recordings.ranks.common import GPU_STEPS, WHOLE
from lab.recordings.ranks.explain import shares
from lab.recordings.ranks.explained import (
    EVEN,
    READY,
    READY_FREE,
    RECORDED,
    host_bound,
    is_whole,
    ranks_in_words,
    steps_text,
)
from lab.recordings.ranks.stragglers import HOST_LATE, SLOW_KERNELS
from lab.rooms.sweep.ranks.read import Setting

LOWER_CLOCK = 0.02  # a GPU's clock below the others' that is worth a sentence
FITS = 0.5  # a clock that explains so much of what kernels take longer fits them
WORTH_SHARE = 0.01  # what a repair must save of a step to be worth a sentence
FULL = ("GPipe", "1F1B")  # schedules whose stages all idle (stages - 1) / (microbatches + stages - 1)


def sentences(setting: Setting) -> list[str]:
    """What the setting's account says."""
    explanation, account = setting.explained, setting.account
    if len(account.ranks) < 2:
        return _alone(setting)
    has_late_host = any(f.cause == HOST_LATE and f.binding for f in explanation.findings)
    return [
        sentence
        for sentence in (
            None if has_late_host else host_bound(explanation),
            *(f"{finding.text[:1].upper()}{finding.text[1:]}." for finding in explanation.findings),
            None if explanation.findings else _no_rank(setting),
            _where_time_goes(setting),
            *pipeline_sentences(setting),
            _what_if(setting),
            _path(setting),
            *gpu_sentences(setting),
            *_clocks(setting),
            _windows(setting),
            *(f"Withheld: {text}." for text in explanation.withheld),
            *(
                f"{text[:1].upper()}{text[1:]}."
                for text in (*explanation.notes, *account.together.pairs.problems)
            ),
        )
        if sentence
    ]


def _alone(setting: Setting) -> list[str]:
    account = setting.account
    if not account.ranks:
        return ["No rank has operations."]
    of, limit = "", ""
    if setting.world_size > 1:
        of = f" of a job of {setting.world_size} ranks"
        limit = " Waiting cannot be told from transfer: that needs the other ranks' traces."
    parts = {
        "compute": ("compute_ns",),
        "collectives": ("transfer_ns", "unpaired_ns"),
        "late launches": ("launch_late_ns",),
    }

    def median_ms(names: Sequence[str]) -> float:
        return float(np.median([sum(row.parts[name] for name in names) for row in account.rows])) / 1e6

    busy = ", ".join(f"{words} {median_ms(names):.2f} ms" for words, names in parts.items())
    step = np.median([row.step_ns for row in account.rows]) / 1e6
    return [
        f"This is one trace, of rank {account.ranks[0]}{of}.{limit}",
        f"{_a_step(account)} takes {step:.2f} ms: {busy}.",
    ]


def _a_step(account: Account) -> str:
    return "The recording" if is_whole(account.together.steps) else "A step"


def _no_rank(setting: Setting) -> str:
    scope = " in what was recorded" if setting.missing else ""
    ranks = plural(len(setting.account.ranks), "rank")
    return f"No rank stands out{scope}: none of {ranks} has more than the others."


def _where_time_goes(setting: Setting) -> str:
    rows = setting.account.rows
    step = float(np.median([row.step_ns for row in rows])) / 1e6

    def part(name: str) -> str:
        return f"{np.median([row.parts[name] for row in rows]) / 1e6:.2f}"

    has_unpaired = any(row.parts["unpaired_ns"] for row in rows)
    unpaired = f"unpaired sends and receives {part('unpaired_ns')}, " if has_unpaired else ""
    over = "ranks" if is_whole(setting.account.together.steps) else "ranks and steps"
    return (
        f"{_a_step(setting.account)} takes {step:.2f} ms (median over {over}): compute {part('compute_ns')}, "
        f"contention {part('contention_ns')}, transfer {part('transfer_ns')}, waiting for others "
        f"{part('wait_ns')}, {unpaired}"
        f"late launches {part('launch_late_ns')}, copies {part('copy_ns')} ms."
    )


def pipeline_sentences(setting: Setting) -> list[str]:
    """Describe each pipeline: its schedule, the bubbles of its stages, and what even stages would give."""
    explanation, texts = setting.explained, []
    for pipeline in explanation.pipelines:
        stages = [[b for b in pipeline.bubbles if b.rank == rank] for rank in pipeline.ranks]
        shares = [sum(b.ns for b in rows) / sum(b.step_ns for b in rows) for rows in stages]
        num_stages, num_batches = len(stages), pipeline.num_microbatches
        ideal = (num_stages - 1) / (num_batches + num_stages - 1)
        slowest = max(stages, key=lambda rows: sum(b.compute_ns for b in rows))[0]
        recorded, even = explanation.length_ms(RECORDED), explanation.length_ms(EVEN)
        gain = (
            f"; with even stages a step takes {even:.1f} for {recorded:.1f} ms" if even and recorded else ""
        )
        ideal_text = f", {100 * ideal:.0f} % where stages are even" if pipeline.schedule in FULL else ""
        spent = ", ".join(f"{100 * share:.0f}" for share in shares)
        schedule = f"{pipeline.schedule} pipeline" if pipeline.schedule else "A pipeline"
        texts.append(
            f"{schedule} of {ranks_text(pipeline.ranks)}, {plural(num_batches, 'microbatch')}: "
            f"by stage {spent} % of a step are bubbles{ideal_text}; stage {slowest.stage} "
            f"(rank {slowest.rank}) computes longest{gain}."
        )
    return texts


def _what_if(setting: Setting) -> str | None:
    explanation = setting.explained
    recorded, ready, free = (explanation.length_ms(name) for name in (RECORDED, READY, READY_FREE))
    if recorded is None or ready is None or free is None:
        return None
    repairs = [row for row in explanation.what_if if len(row.ranks) == 1]
    best = max(repairs, key=lambda row: row.recorded_ms - row.length_ms, default=None)
    alone = ""
    if best is not None and best.recorded_ms - best.length_ms > WORTH_SHARE * best.recorded_ms:
        lengths = f"{best.length_ms:.1f} for {best.recorded_ms:.1f} ms"
        alone = f" with {best.change}, {steps_text([best.step])} takes {lengths};"
    subject = "it" if is_whole(explanation.account.together.steps) else "a step"
    unchanged = [row for row in explanation.what_if if row.change == RECORDED]
    off_ms = max(abs(row.recorded_ms - row.length_ms) for row in unchanged)
    return (
        f"Replayed from its launches (unchanged it is off by {off_ms:.2f} ms):{alone} with all hosts ready "
        f"{subject} takes {ready:.1f} ms, without contention {free:.1f} ms, for {recorded:.1f} ms as "
        "recorded."
    )


def _path(setting: Setting) -> str | None:
    paths = setting.explained.path
    if not paths:
        return None
    step, pieces = max(paths.items(), key=lambda item: sum(piece.ns for piece in item[1]))
    parts = [f"{kind} of rank {rank} {ns / 1e6:.2f} ms" for rank, kind, ns in shares(pieces)[:4] if ns > 1e4]
    return f"Critical path of {steps_text([step])}: {', '.join(parts)}."


def gpu_sentences(setting: Setting) -> list[str]:
    """Which GPU is clocked lower than the others, and why; what slow kernels have to do with it."""
    slow = {finding.rank for finding in setting.explained.findings if finding.cause == SLOW_KERNELS}
    on_gpu = any(work.device == "gpu" for work in setting.account.together.works)
    rows = [row for row in setting.gpus if row["samples"] and row["sm_clock_mhz"] > 0]
    texts = (
        [f"GPU clocks are not all known: {text}." for text in setting.state.reasons] if setting.state else []
    )
    if not rows:
        whose = ranks_text(sorted(slow))
        text = f"Clocks were not sampled beside the run, so why the kernels of {whose} are slower"
        return [*texts, f"{text} is not seen."] if slow and on_gpu else texts
    clock = {row["rank"]: row["sm_clock_mhz"] for row in rows}
    for row in rows:
        peers_mhz = [mhz for rank, mhz in clock.items() if rank != row["rank"]]
        usual = float(np.median(peers_mhz)) if peers_mhz else row["sm_clock_mhz"]
        lower = 1 - row["sm_clock_mhz"] / usual
        if lower > LOWER_CLOCK:
            slow_reason = f" ({row['slowed_by']} of samples)" if row["slowed_by"] else ""
            explains = _explains(setting, row["rank"], usual / row["sm_clock_mhz"])
            mhz = f"{row['sm_clock_mhz']:.0f} MHz, the others at {usual:.0f} MHz"
            texts.append(f"The GPU of rank {row['rank']} ran at {mhz}{slow_reason}{explains}.")
        elif row["rank"] in slow:
            mhz = f"{row['sm_clock_mhz']:.0f} MHz as the others ({usual:.0f} MHz)"
            slower = f"The kernels of rank {row['rank']} are slower"
            texts.append(f"{slower} though its GPU ran at {mhz}: the cause is not seen.")
    cost = setting.state.cost_share if setting.state else float("nan")
    if not np.isnan(cost):
        interval = f"{setting.state.interval_s:g} s" if setting.state else ""
        texts.append(f"Sampling clocks every {interval} took {100 * cost:.1f} % of one CPU core.")
    return texts


def _explains(setting: Setting, rank: int, clock_ratio: float) -> str:
    """What a lower clock has to do with the slower kernels of its rank, "" for a rank without them."""
    slow = [
        finding
        for finding in setting.explained.findings
        if (finding.rank, finding.cause) == (rank, SLOW_KERNELS)
    ]
    if not slow:
        return ""
    slow_steps = [step for finding in slow for step in finding.steps]
    rows = [row for row in setting.account.rows if row.rank == rank and row.step in slow_steps]
    own_ms = float(np.mean([row.parts["compute_ns"] for row in rows])) / 1e6
    more_ms = sum(finding.cost_ms * len(finding.steps) for finding in slow) / len(slow_steps)
    ratio = own_ms / max(own_ms - more_ms, 1e-9)
    if clock_ratio - 1 > FITS * (ratio - 1):
        return ", which fits its slower kernels"
    return (
        f": that makes kernels {clock_ratio:.2f} times as long at most, and its own take {ratio:.2f} times "
        "as long, so most of the cause is not seen (another program on this GPU?)"
    )


def _clocks(setting: Setting) -> list[str]:
    """Ranks whose clocks no collective bounds, or only widely."""
    clocks, texts = setting.account.clocks, []
    loose = [clock.rank for clock in clocks if np.isnan(clock.high_ns)]
    if loose and len(clocks) > 1:
        whose = f"clock{'s' if len(loose) > 1 else ''} of {ranks_in_words(loose, 'is', 'are')}"
        texts.append(f"The {whose} as recorded: no collective with the others tells how far off.")
    wide = [clock for clock in clocks if clock.high_ns - clock.low_ns > 1e6 and not clock.corrected]
    if wide:
        widest_ms = max(clock.high_ns - clock.low_ns for clock in wide) / 1e6
        ranks = ranks_in_words([clock.rank for clock in wide], "is", "are")
        whose = f"clock{'s' if len(wide) > 1 else ''} of {ranks}"
        texts.append(
            f"The {whose} bounded only to within {widest_ms:.1f} ms: a smaller error would not show."
        )
    return texts


def _windows(setting: Setting) -> str | None:
    kind = setting.account.together.window_kind
    if kind == WHOLE:
        marked = any(len(work.steps) for work in setting.account.together.works)
        lacking = "Not every rank of the recording has" if marked else "The recording has no"
        return f"{lacking} step marks: it is one window from the first operation to the last."
    if kind == GPU_STEPS:
        return "GPU work spills over the host's steps: a step here ends with the last kernel it launched."
    return None
