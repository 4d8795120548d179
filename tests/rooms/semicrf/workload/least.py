"""The smallest corpus and training that still have all parts."""

from __future__ import annotations

import msgspec

from lab.rooms.semicrf.config import PRESETS, TrainConfig

LEAST = msgspec.structs.replace(
    msgspec.convert(PRESETS["smoke"], TrainConfig),
    phones=3,
    utterances=8,
    mean_segments=4,
    max_duration=4,
    epochs=1,
)
