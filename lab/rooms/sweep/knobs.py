"""What one setting requests of NCCL or RCCL, how it is written, and which requests the library refuses."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from lab.core.words import plural

# In the order of NCCL's enumerations, as logs before 2.24 number them.
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
# As NCCL spells them in its variables.
_IN_NCCL = "Tree Ring CollNetDirect CollNetChain NVLS NVLSTree PAT LL LL128 Simple"
SPELLED = dict(zip((*ALGORITHMS, *PROTOCOLS), _IN_NCCL.split(), strict=True))
# Which collectives each algorithm has kernels for; ring has them for all. Source: NVIDIA/nccl 2.30,
# src/device/generate.py (algos_of_coll).
_SERVES = {
    "tree": ("all_reduce",),
    "collnet_direct": ("all_gather", "all_reduce", "reduce_scatter"),
    "collnet_chain": ("all_reduce",),
    "nvls": ("all_gather", "all_reduce", "reduce_scatter"),
    "nvls_tree": ("all_reduce",),
    "pat": ("all_gather", "reduce_scatter"),
}
_ANY_PROTOCOL = ("ring", "tree")
_OVER_NODES = ("collnet_direct", "collnet_chain", "nvls_tree")
# nccl_28channels_nvls_tree_simple
_FOLDER = re.compile(
    rf"nccl_(\d+)channels?(?:[_-](?P<algorithm>{'|'.join(sorted(ALGORITHMS, key=len, reverse=True))}))?"
    rf"(?:[_-](?P<protocol>{'|'.join(sorted(PROTOCOLS, key=len, reverse=True))}))?"
)


class Knobs(NamedTuple):
    """One setting; 0 and "" leave the choice to the library, or stand for unknown."""

    threads: int = 0
    channel: int = 0
    algorithm: str = ""
    protocol: str = ""


class Key(NamedTuple):
    """One run of a setting."""

    threads: int = 0
    channel: int = 0
    algorithm: str = ""
    protocol: str = ""
    repeat: int = 1

    @property
    def knobs(self) -> Knobs:
        return Knobs(*self[:4])


def serves(algorithm: str, kind: str) -> bool:
    """Whether a request for `algorithm` reaches collectives of this kind (all_reduce, ...)."""
    return bool(algorithm) and kind in _SERVES.get(algorithm, (kind,))


def folder_of(knobs: Knobs) -> str:
    """`256thread/nccl_28channels_ring_ll128`, the original sweep's names with what else is requested."""
    suffix = "".join(f"_{word}" for word in (knobs.algorithm, knobs.protocol) if word)
    return f"{knobs.threads}thread/nccl_{knobs.channel}channels{suffix}"


def how_in(folder_name: str) -> tuple[str, str]:
    """(algorithm, protocol) in the name of a configuration's folder, "" where it names none."""
    match = _FOLDER.fullmatch(folder_name)
    return (match["algorithm"] or "", match["protocol"] or "") if match else ("", "")


def variables(knobs: Knobs) -> dict[str, str]:
    """NCCL_ALGO and NCCL_PROTO of a setting.

    An algorithm other than ring is set only for the collectives that it serves: alone it would forbid all
    others, and NCCL ends a job that broadcasts its weights. This syntax needs NCCL or RCCL 2.24.
    """
    env = {}
    if knobs.algorithm:
        kinds = _SERVES.get(knobs.algorithm)
        word = SPELLED[knobs.algorithm]
        functions = [kind.title().replace("_", "") for kind in kinds or ()]  # AllReduce
        env["NCCL_ALGO"] = ";".join(f"{function}:{word}" for function in functions) or word
    if knobs.algorithm.startswith("collnet"):
        env["NCCL_COLLNET_ENABLE"] = "1"
    if knobs.protocol:
        env["NCCL_PROTO"] = SPELLED[knobs.protocol]
    return env


def refusal(knobs: Knobs, kinds: Collection[str], *, vendor: str, nodes: int, ranks: int) -> str | None:
    """Why the library refuses this algorithm and protocol, or why they could reach nothing; None if neither.

    kinds: the collectives that move the training's data; ranks: on each node. Source: NVIDIA/nccl 2.30,
    src/graph/tuning.cc (ncclTopoTuneModel).
    """
    algorithm, protocol = knobs.algorithm, knobs.protocol
    if vendor == "none" or not algorithm:
        return None
    if protocol not in ("", "simple") and algorithm not in _ANY_PROTOCOL:
        return f"{algorithm} has kernels for simple only"
    if not any(serves(algorithm, kind) for kind in kinds):
        served, used = (" and ".join(sorted(part)).replace("_", "-") for part in (_SERVES[algorithm], kinds))
        return f"{algorithm} serves {served}, and this training moves its data by {used}"
    if algorithm in _OVER_NODES and nodes == 1:
        return f"{algorithm} works over several nodes only"
    if algorithm == "pat" and ranks > 1:
        return f"pat works with one rank per node, and {plural(ranks, 'rank')} are planned"
    if algorithm.startswith("nvls") and vendor == "amd":
        return f"{algorithm} needs NVLink SHARP"
    return None
