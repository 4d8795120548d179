"""Semi-CRF against linear CRF where durations matter: the gain in errors and segments, with an interval.

The corpus is the synthetic one with narrow durations (`lab run semicrf compare --durations narrow` trains on
it too): labels in threes of one emission that last 3, 8 or 13 frames, give or take one. No gold segment is
longer than K. Both heads train by the room's own code on the same batches from the same seed, which draws
corpus, weights and order; the epoch is chosen on dev, the figures are of test. Two encoders: none (a linear
layer on each frame, so that only the head can see a duration) and the room's BiLSTM, which can count frames
itself. The interval is Student's over the paired differences, one per seed.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.table import Row, measured
from lab.rooms.semicrf.config import PRESETS, TrainConfig
from lab.rooms.semicrf.workload.corpus.synthetic import LONGEST_NARROW

SEEDS = range(2025, 2033)
STUDENT_95 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Two-sided 95 % quantiles by degrees of freedom."""
ENCODERS = ("none", "bilstm")
HEADS = ("linear", "semicrf")
FIGURES = {"phone_error_rate": "phone error rate", "segment_f1": "segment F1"}
LONGEST, EPOCHS = 16, 20


def main() -> None:
    import torch

    torch.set_num_threads(1)
    logging.getLogger("lab.semicrf").setLevel("WARNING")
    print(
        f"torch {torch.__version__}; {len(SEEDS)} seeds, {EPOCHS} epochs; K = {LONGEST}, longest gold "
        f"segment {LONGEST_NARROW}; means of the test split in %, difference: semi-CRF less linear"
    )
    for encoder in ENCODERS:
        begin = time.perf_counter()
        found = [{head: trained(config_of(encoder, seed), head) for head in HEADS} for seed in SEEDS]
        print(f"\nencoder {encoder} ({time.perf_counter() - begin:.0f} s): {clipped(found)}")
        for figure, name in FIGURES.items():
            words = sentence([[one[head]["test"][figure] for head in HEADS] for one in found])
            measured(Row(f"semi-CRF against linear CRF, encoder {encoder}: {name}, %", cost=words))


def config_of(encoder: str, seed: int) -> TrainConfig:
    """The preset `tiny` for more epochs, with every gold segment inside the model's support."""
    given = {
        "max_duration": LONGEST,
        "durations": "narrow",
        "encoder": encoder,
        "epochs": EPOCHS,
        "seed": seed,
    }
    return msgspec.convert({**PRESETS["tiny"], **given}, TrainConfig)


def trained(config: TrainConfig, head: str) -> dict[str, Any]:
    """The result.json of one training, as `lab run semicrf train` makes it."""
    import torch

    from lab.rooms.semicrf.workload.train import run
    from lab.workload.rank import RankContext

    with tempfile.TemporaryDirectory() as folder:
        alone = RankContext(rank=0, local_rank=0, world_size=1)
        run(config, head, "auto", Path(folder), alone, torch.device("cpu"))
        found: dict[str, Any] = msgspec.json.decode((Path(folder) / "result.json").read_bytes())
    return found


def clipped(found: Sequence[dict[str, Any]]) -> str:
    over = sum(one["semicrf"]["over_long_segments"] for one in found)
    return f"{over} gold segments of all trainings are longer than K" if over else "no gold segment exceeds K"


def sentence(pairs: Sequence[Sequence[float]]) -> str:
    """Both heads' means, the mean paired difference with its interval, and whether that shows."""
    linear, semi = (100 * statistics.fmean(values) for values in zip(*pairs, strict=True))
    mean, half = paired([100 * (b - a) for a, b in pairs])
    shows = "" if abs(mean) > half else "; 0 is inside: it does not show"
    return (
        f"linear {linear:.1f}, semi-CRF {semi:.1f}, "
        f"difference {mean:+.1f} (95 % {mean - half:+.1f} to {mean + half:+.1f}){shows}"
    )


def paired(differences: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval by Student's t."""
    count = len(differences)
    spread = statistics.stdev(differences) / count**0.5
    return statistics.fmean(differences), STUDENT_95[count - 1] * spread


if __name__ == "__main__":
    main()
