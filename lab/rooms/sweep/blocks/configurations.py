"""Every configuration with its status."""

from __future__ import annotations

import pandas as pd

from lab.report.parts import Table
from lab.rooms.sweep.blocks.shared import PILLS
from lab.rooms.sweep.tables import PARTS, SETTING

CONFIG_COLUMNS = [
    *[*SETTING, "repeat", "status", "reason", "total_time_ms", *PARTS.values(), "slowest_rank"],
    *["channels_verdict", "threads_verdict", "algorithm_verdict", "protocol_verdict", "log_channels"],
]


def configs_table(configs: pd.DataFrame) -> Table:
    caption = "Every configuration that was requested or found, medians over ranks"
    ranks = [f"{row.ranks_found} of {row.ranks_expected}" for row in configs.itertuples()]
    shown = configs[CONFIG_COLUMNS].assign(ranks=ranks).rename(columns={"log_channels": "channels in log"})
    filled = [name for name in shown if not (shown[name].isna() | (shown[name] == "")).all()]
    return Table(shown[filled], caption, "tables/configs.csv", pills=PILLS, open_rows=12)
