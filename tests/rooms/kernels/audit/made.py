"""A row of the published timing files."""

from __future__ import annotations


def a_row(single_us=4.0, runs=100_000, window_s=0.4, count=1, tier=3, name="k"):
    return {
        "name": name,
        "single_time_us": single_us,
        "benchmark_runs": runs,
        "invocation_count": count,
        "tier": tier,
        "start_timestamp": "2026-02-06 18:32:35.000000",
        "end_timestamp": f"2026-02-06 18:32:35.{int(window_s * 1e6):06d}",
    }
