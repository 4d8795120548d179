"""All ranks of a sweep in one frame: every rank's rows, with the setting, rank and file that they are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.rooms.sweep.gemm.columns import INSTANCES
from lab.rooms.sweep.gemm.reading.frames import groups, instances
from lab.rooms.sweep.tables import KEY
from tests.rooms.sweep.gemm.recorded import read, write_sweep


def test_every_row_is_that_of_its_ranks_own_table(tmp_path: Path) -> None:
    data = read(write_sweep(tmp_path))
    frame, sheet = instances(tmp_path, data.ranks), groups(data.ranks)
    assert list(frame) == INSTANCES and list(sheet)[: len(KEY) + 1] == [*KEY, "rank"]
    seen = 0
    for key, ranks in data.ranks.items():
        for rank, one in ranks.items():
            for table, found in ((one.gemm, frame), (one.groups, sheet)):
                assert table is not None and len(table)
                is_mine = (found["rank"] == rank).to_numpy()
                for name, value in zip(KEY, key, strict=True):
                    is_mine = is_mine & (found[name].astype(object) == value).to_numpy()
                columns = table.as_dict()
                for name in set(columns) & set(found) - {*KEY, "rank"}:
                    mine = found.loc[is_mine, name].to_numpy(dtype=object)
                    same = [a == b or (a != a and b != b) for a, b in zip(mine, columns[name], strict=True)]
                    assert all(same), name
            rows = frame[(frame["rank"] == rank) & (frame["threads"] == key.threads)]
            assert set(rows["file"]) == {str(one.figures.path.relative_to(tmp_path))}
            seen += len(rows)
    assert seen == len(frame) and np.array_equal(frame.index, np.arange(seen))


def test_without_a_readable_rank_the_columns_are_there(tmp_path: Path) -> None:
    assert list(instances(tmp_path, {})) == INSTANCES and instances(tmp_path, {}).empty
    assert list(groups({})) == [*KEY, "rank"]
