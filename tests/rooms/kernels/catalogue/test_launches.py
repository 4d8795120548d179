"""Launches are grouped by columns; each has what it would have if it were described alone."""

from __future__ import annotations

import msgspec
import pytest

from lab.perfmodel.classes import class_of_launch
from lab.recordings.capture import shared_memory_bytes
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.identity import args_key, sig_id_of
from lab.rooms.kernels.catalogue.launches import GEOMETRY
from lab.rooms.kernels.catalogue.rank import KINDS
from lab.rooms.kernels.schema import Launch
from lab.rooms.kernels.trails import Trail, trails
from tests.recordings.graphs.made import Events, capture_into, decoder, replay_into
from tests.rooms.kernels.made import profile_folder

SHARED = (
    "kernels_h200/bloom560m_generate.json.gz",
    "rocm/mi300_qwen1.5_0.5b.json.gz",
    "captures/graphs/torch_compile_triton/trace.json.gz",
    "captures/h200_decoder/infer_eager_modules.json.gz",
)


def plain(rank, book, row, zero_ns):
    """One launch, described without a look at the others."""
    kernels, trace, owner = rank.trace.ops, rank.trace, int(rank.owner[row])
    op = book.describe(owner) if owner >= 0 else None
    mark = int(rank.mark[row])
    coll = {
        int(kernel): trace.strings[text]
        for kernel, text in zip(trace.collectives.kernel, trace.collectives.collective_id, strict=True)
    }.get(row, "")
    name, kind = trace.strings[kernels.name_id[row]], KINDS[int(kernels.kind[row])]
    geometry = {"smem_bytes": shared_memory_bytes(kernels)}
    sizes = tuple(int(geometry.get(name, getattr(kernels, name, None))[row]) for name in GEOMETRY)
    launch = Launch(
        rank=rank.rank,
        device=int(kernels.device[row]),
        stream=int(kernels.stream[row]),
        ts_us=(int(kernels.start_ns[row]) - zero_ns) / 1000,
        dur_us=int(kernels.dur_ns[row]) / 1000,
        name=name,
        kind=kind,
        class_="comm" if coll else class_of_launch(name, op.name if op else "", kind),
        grid=sizes[:3],
        block=sizes[3:6],
        smem_bytes=sizes[6],
        regs=sizes[7],
        bytes=sizes[8],
        op_id=owner,
        coll=coll,
        phase=rank.marks.phases[mark] if mark >= 0 else "",
        forward=mark,
        correlation=int(kernels.corr[row]),
        row=row,
        op_rule=rank.op_rule[row],
        layer_rule="none",
    )
    key = (name, kind, sizes, op.name if op else "", op.overload if op else None, args_key(op), launch.phase)
    if rank.replayed is not None and rank.replayed.inside[row]:
        launch.layer_rule = rank.replayed.layer_rule[row]
        launch.layer, launch.confidence = rank.replayed.layer[row], rank.replayed.confidence[row]
        key = (*key, launch.op_rule, launch.layer_rule, launch.confidence)
    elif op and rank.layers and rank.layers[owner]:
        launch.layer, launch.layer_rule = rank.layers[owner], launch.op_rule
    if rank.compiled is not None and rank.compiled.hashes[row]:
        launch.kernel_hash = rank.compiled.hashes[row]
        key = (*key, launch.kernel_hash)
    launch.sig_id = sig_id_of(key)
    return launch


def assert_described_alone(found, every=1):
    zero_ns = min(int(rank.start_ns().min()) for rank in found.ranks)
    books = {book.rank.rank: book for book in found.books}
    for launch in found.launches[::every]:
        rank = books[launch.rank].rank
        expected = plain(rank, books[launch.rank], launch.row, zero_ns)
        expected.wait_us = launch.wait_us
        assert msgspec.structs.asdict(launch) == msgspec.structs.asdict(expected)
    assert [one.ts_us for one in found.launches] == [
        ts_us for rank in books for ts_us in sorted(one.ts_us for one in found.launches if one.rank == rank)
    ]


@pytest.mark.parametrize("name", SHARED)
def test_launches_of_real_recordings(name, shared_data):
    found = read_catalogue([Trail(rank=0, trace=shared_data / name)])
    assert_described_alone(found, every=7)


def test_launches_of_two_ranks_with_collectives_and_recorded_calls(tmp_path):
    assert_described_alone(read_catalogue(trails(profile_folder(tmp_path, world_size=2, comm=True))))


def test_launches_that_a_graph_replayed(tmp_path):
    replayed, captured = Events(), Events()
    replay_into(replayed, [one.kernel for one in decoder()])
    capture_into(captured, decoder())
    trail = Trail(rank=0, trace=replayed.write(tmp_path / "replay.json"))
    found = read_catalogue([trail], [captured.write(tmp_path / "capture.json")])
    assert any(one.confidence for one in found.launches)
    assert_described_alone(found)
    # An op counts its launches, each once, whoever else has looked at it.
    by_op = {op.op_id: op.num_launches for op in found.ops}
    assert sum(by_op.values()) == sum(one.op_id >= 0 for one in found.launches)
    (book,) = found.books
    assert book.records() == found.ops
