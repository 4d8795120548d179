"""Sections of a sweep: `lab analyze SWEEP --only ranks,gemm`."""

from __future__ import annotations

import json

from tests.rooms.sweep.gemm.recorded import write_sweep


def test_a_sweep_has_the_account_of_its_ranks_and_the_gemm_pipeline(only, tmp_path):
    sweep = write_sweep(tmp_path / "sweep")
    done = only(sweep, "ranks,gemm", "--json")
    assert done.exception is None, done.output
    document = json.loads(done.stdout)
    assert document["lacking"] == [] and document["status"] == "ok"
    assert (tmp_path / "out/ranks/ranks.html").is_file()
    assert (tmp_path / "out/tracelens_analysis/top5_gemm_kernels_time_variance.csv").is_file()
