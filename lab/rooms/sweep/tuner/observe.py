"""What each class of collectives cost in each run of a sweep, and how it ran there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.recordings.ranks.costs import Class, Cost, costs_of
from lab.recordings.ranks.explain import READY
from lab.rooms.sweep.effective import NCCL_EXTRA_THREADS
from lab.rooms.sweep.ranks.read import Setting
from lab.rooms.sweep.tuner.logs import Choice, Said, read_logs

# Names of kinds in a tuner's file; others have none.
NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
MOST_THREADS = 640  # NCCL's largest block: LL128's


@dataclass(frozen=True)
class Observed:
    """One class of collectives in one run. choice is None where neither log nor block tell how it ran."""

    cost: Cost
    choice: Choice | None
    inferred: bool


@dataclass(frozen=True)
class Ran:
    """One run of a sweep. ready_ms: its step with nobody late, None where it could not be replayed."""

    threads: int
    channels: int
    repeat: int
    ready_ms: float | None
    hosts: int
    classes: dict[Class, Observed]
    withheld: tuple[str, ...]


def observe(settings: Iterable[Setting]) -> list[Ran]:
    """Every run of the sweep with what its collectives cost."""
    found = []
    for one in settings:
        threads, channels = one.config.threads or 0, one.config.channels or 0
        said = read_logs(one.config.nccl_logs)
        classes = {}
        for name, cost in costs_of(one.explained).items():
            choice = said.choice(NAMES.get(name.kind, name.kind), name.num_bytes)
            classes[name] = Observed(cost, choice or inferred(cost, threads, said), choice is None)
        names = {work.host for work in one.account.together.works}
        found.append(
            Ran(
                threads=threads,
                channels=channels,
                repeat=one.config.repeat,
                ready_ms=one.explained.length_ms(READY),
                hosts=-1 if "" in names else len(names),
                classes=classes,
                withheld=one.explained.withheld,
            )
        )
    return found


def inferred(cost: Cost, threads: int, said: Said) -> Choice | None:
    """How calls ran by their kernel's block, where the log has no tuning lines; None where that is no proof.

    A kernel's name does not tell: AllGather_RING_LL stands for every algorithm and protocol. A block of 640
    is LL128's, if nothing can use NVLink SHARP (whose blocks are as large); the requested threads and one
    warp more are the ring's with the simple protocol.
    """
    algorithm = "tree" if "_TREE_" in cost.kernel else "ring"
    if cost.block == MOST_THREADS and said.nvls == 0:
        return Choice(algorithm, "ll128")
    if threads > 0 and cost.block == threads + NCCL_EXTRA_THREADS and algorithm == "ring":
        return Choice(algorithm, "simple")
    return None


def sizes_of(runs: Sequence[Ran]) -> list[Class]:
    """Every class that some run has, in order."""
    return sorted({name for ran in runs for name in ran.classes})
