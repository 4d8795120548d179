"""Which algorithm and protocol a collective ran with, and whether a request for them took effect."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from lab.rooms.sweep.effective import NCCL_EXTRA_THREADS
from lab.rooms.sweep.tuner.logs import Choice, Said

# Names of kinds in NCCL's log and in a tuner's file; others have none.
NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
MOST_THREADS = 640  # NCCL's largest block: LL128's
LOG, BLOCK = "log", "block"


class How(NamedTuple):
    """Algorithm and protocol, "" where nothing tells them, several joined by `/`; evidence: what told."""

    algorithm: str = ""
    protocol: str = ""
    evidence: str = ""


def how_of(log_choices: Said, kind: str, num_bytes: int, *, kernel: str, block: int, threads: int) -> How:
    """How the calls of a kind and size ran, by the log of NCCL or RCCL, otherwise by their kernel's block.

    said: the log's choices by whole calls; threads: those requested.
    """
    from_log = log_choices.choices.get((NAMES.get(kind, kind), num_bytes))
    if from_log:
        algorithms, protocols = {c.algorithm for c in from_log}, {c.protocol for c in from_log}
        return How(_joined(algorithms), _joined(protocols), LOG)
    choice = by_block(kernel, block, threads, log_choices)
    return How(choice.algorithm, choice.protocol, BLOCK) if choice else How()


def by_block(kernel: str, block: int, threads: int, log_choices: Said) -> Choice | None:
    """How calls ran by their kernel's block, where the log has no tuning lines; None without proof.

    A kernel's name does not tell: AllGather_RING_LL stands for every algorithm and protocol. A block of 640
    is LL128's, if nothing can use NVLink SHARP (whose blocks are as large); the requested threads and one
    warp more are the ring's with the simple protocol.
    """
    algorithm = "tree" if "_TREE_" in kernel else "ring"
    if block == MOST_THREADS and log_choices.nvls == 0:
        return Choice(algorithm, "ll128")
    if threads > 0 and block == threads + NCCL_EXTRA_THREADS and algorithm == "ring":
        return Choice(algorithm, "simple")
    return None


def word_verdict(requested: str, effective: str) -> str:
    """honoured, ignored (another was used, at least once), or unknown: not requested, or nothing tells."""
    if not requested or not effective:
        return "unknown"
    return "honoured" if requested == effective else "ignored"


def _joined(words: Collection[str]) -> str:
    return "/".join(sorted(words))
