"""The collective beside each GEMM: which one, and whether it was waiting or moving data."""

from __future__ import annotations

import numpy as np
import pytest

from lab.rooms.sweep.gemm.reading.data import read_sweep
from lab.rooms.sweep.gemm.reading.pairs import of_rank, pairs_of
from lab.rooms.sweep.gemm.variance.beside import beside
from lab.rooms.sweep.knobs import Key
from tests.rooms.sweep.gemm.recorded import read, write_sweep


def test_a_collective_waits_until_its_last_rank_has_come(tmp_path):
    found = beside(read(write_sweep(tmp_path, threads=(256,))))
    # rank 0 enters at 200 and waits for rank 1 until 350: its GEMMs at 220 and 300 run beside the waiting
    assert found["phase"].tolist() == ["", "waiting", "waiting"] * 2 + [""] * 6
    assert found["waiting_ns"].tolist() == [0, 20_000, 20_000] * 2 + [0] * 6
    assert found["collective"].tolist() == ["", "allreduce", "allreduce"] * 2 + [""] * 6


@pytest.mark.data
def test_the_longest_collective_beside_every_h200_gemm_is_that_of_a_plain_loop(shared_data):
    config = shared_data / "sweep_h200/512thread/nccl_28channels"
    data = read_sweep(config, workers=2)
    found = beside(data)
    setting = Key(512, 28)
    for rank in (0, 5):
        mine = of_rank(pairs_of(data)[setting], rank)
        rows = data.gemm[data.gemm["rank"] == rank]
        for index, row in rows.iterrows():
            shared = [
                min(row["end_ns"], ts + dur) - max(row["ts_ns"], ts)
                for ts, dur in zip(mine.ts_ns.tolist(), mine.dur_ns.tolist(), strict=True)
            ]
            best = int(np.argmax(shared))
            expected = int(mine.collective_id[best]) if shared[best] > 0 else -1
            assert found.loc[index, "collective_id"] == expected
    covered = found["waiting_ns"] + found["transfer_ns"]
    assert covered.tolist() == data.gemm["comm_ns"].tolist()
