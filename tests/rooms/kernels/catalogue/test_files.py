"""The files hold what the catalogue says."""

from __future__ import annotations

import json

import pandas as pd

from lab.rooms.kernels.catalogue import files
from lab.rooms.kernels.schema import UNIQUE_COLUMNS, Launch, OpRecord, Signatures
from lab.rooms.kernels.trails import read_json, read_lines
from tests.rooms.kernels.catalogue.traces import catalogue_of
from tests.tracegen import TraceWriter


def test_the_files_hold_what_the_catalogue_says(made, tmp_path):
    files.write_unique(made, tmp_path)
    files.write_launches(made, tmp_path)
    tables = tmp_path / "tables"
    unique = pd.read_csv(tables / "unique_kernels.csv")
    assert tuple(unique.columns) == UNIQUE_COLUMNS and unique["count"].sum() == len(made.launches)
    assert len(list(read_lines(tables / "launches.jsonl", Launch))) == len(made.launches)
    assert {op.op_id for op in read_lines(tables / "ops.jsonl", OpRecord)} == {op.op_id for op in made.ops}
    assert read_json(tables / "signatures.json", Signatures).signatures == made.signatures.signatures
    seed = [json.loads(line) for line in (tables / "unique_kernels.jsonl").read_text().splitlines()]
    assert sum(one["count"] for one in seed) == len(made.launches)
    assert {"name", "grid", "block", "shared memory"} == set(seed[0]["signature"])
    counts = pd.read_csv(tables / "kernel_counts.csv")
    assert counts.columns.tolist()[:4] == ["device", "category", "kernel_name", "count"]
    assert counts["count"].sum() == len(made.launches)


def test_a_name_with_quotes_and_commas_survives_the_csv(tmp_path):
    writer = TraceWriter()
    name = 'weird "kernel", <a, b>\n'
    writer.kernel(name, 10, 5)
    found = catalogue_of(writer.write(tmp_path / "t.json"))
    files.write_unique(found, tmp_path)
    assert pd.read_csv(tmp_path / "tables" / "unique_kernels.csv")["name"].item() == name
