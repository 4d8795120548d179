"""Whether the ranks of one job ran on the same GPUs and libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lab.core.words import printable
from lab.recordings.capture import Capture
from lab.recordings.ranks.explained import ranks_in_words
from lab.stats.columns import distinct

About = Mapping[str, str]


def about(trace: Capture) -> dict[str, str]:
    """What a recording says about its rank's GPU and libraries; nothing for what it does not say."""
    meta = trace.meta
    used = distinct(trace.ops.device)
    names = {meta.devices[at] for at in used.tolist() if 0 <= at < len(meta.devices)}
    facts = {
        "GPU": " and ".join(sorted(names)),
        "torch": meta.torch_version or "",
        "NCCL or RCCL": meta.nccl_version or "",
        "CUDA": str(meta.cuda_version or ""),
        "HIP": str(meta.hip_version or ""),
    }
    return {name: printable(value)[:80] for name, value in facts.items() if value}


def differences(ranks: Mapping[int, About]) -> list[str]:
    """One sentence per fact in which ranks differ: the few against the many."""
    sentences = []
    for name in dict.fromkeys(name for rank in ranks.values() for name in rank):
        values = {rank: one[name] for rank, one in ranks.items() if name in one}
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        usual = counts.most_common(1)[0][0]
        minorities = [
            f"{ranks_in_words(_with(values, value), 'has', 'have')} {value}"
            for value in counts
            if value != usual
        ]
        sentences.append(f"ranks differ in their {name}: {', '.join(minorities)}, the others {usual}")
    return sentences


def _with(values: Mapping[int, str], value: str) -> list[int]:
    return [rank for rank, each in values.items() if each == value]
