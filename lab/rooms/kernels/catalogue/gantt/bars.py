"""The launches of a run's ranks as bars: compute, communication and copies of every stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lab.perfmodel.classes import class_of_launch
from lab.recordings.gantt.bars import FAMILY_OF, Bars, Span, assemble
from lab.recordings.gantt.capture import lines_of
from lab.recordings.tables import Table
from lab.rooms.kernels.catalogue.rank import KINDS, RankData, no_launches


def bars_of(ranks: Sequence[RankData]) -> Bars:
    """All launches of all ranks on a common zero. Raises BadDataError for traces without launches."""
    if not any(len(rank.rows) for rank in ranks):
        raise no_launches(ranks)
    frame: pd.DataFrame = pd.concat([_frame(rank) for rank in ranks], ignore_index=True)
    zero_ns = int(frame["start_ns"].min()) if len(frame) else 0
    frame["start_us"] = (frame["start_ns"] - zero_ns) / 1000
    return assemble(frame, _marks(ranks, zero_ns))


def _frame(rank: RankData) -> pd.DataFrame:
    table = rank.trace.ops if rank.on_gpu else rank.trace.operators
    table = table.take(rank.rows)
    ops, texts, op_id = rank.trace.operators, *_owners(rank)
    own_op = np.where(rank.owner < len(ops), rank.owner, -1)
    bars: pd.DataFrame = pd.DataFrame(
        {
            "rank": rank.rank,
            "device": table.device if rank.on_gpu else -1,
            "stream": table.stream if rank.on_gpu else table.tid,
            "start_ns": table.start_ns,
            "dur_us": table.dur_ns / 1000,
            "family": _families(rank, texts, table.name_id, op_id, table.kind if rank.on_gpu else None),
            "name": rank.trace.text(table.name_id),
            "op": np.array(texts, dtype=object)[op_id],
            "module": _modules(rank),
            "phase": np.array([*rank.marks.phases, ""], dtype=object)[rank.mark],
            "shapes": rank.trace.text(np.append(ops.dims_id, -1)[own_op]),
            "source": _sources(rank, own_op),
        }
    )
    return bars


def _owners(rank: RankData) -> tuple[list[str], np.ndarray]:
    """Texts, "" at the end, and the index of its owner's name (n,) of each launch, replayed ones included."""
    trace = rank.trace
    borrowed = [op.name for op in rank.replayed.ops] if rank.replayed else []
    names = len(trace.strings) + np.arange(len(borrowed))
    op_id: np.ndarray = np.concatenate([trace.operators.name_id, names, [-1]])[rank.owner]
    return [*trace.strings, *borrowed, ""], op_id


def _families(
    rank: RankData, texts: list[str], name_id: np.ndarray, op_id: np.ndarray, kind: np.ndarray | None
) -> np.ndarray:
    """The family (n,) of each launch by its kernel, op and kind; each combination is looked up once."""
    kinds = np.full(len(name_id), -1) if kind is None else kind.astype(np.int64)
    keys = np.stack([name_id, op_id, kinds], axis=1)
    used, group = np.unique(keys, axis=0, return_inverse=True)
    family_of = np.array(
        [FAMILY_OF[class_of_launch(texts[a], texts[b], KINDS.get(c, "cpu_op"))] for a, b, c in used.tolist()],
        dtype=np.int8,
    )
    families: np.ndarray = family_of[group.ravel()] if len(used) else np.empty(0, dtype=np.int8)
    if rank.on_gpu:
        families[np.isin(rank.rows, rank.trace.collectives.kernel)] = FAMILY_OF["comm"]
    return families


def _modules(rank: RankData) -> np.ndarray:
    """The path (n,) of the module around each launch's operator, "" where it is not known.

    As its recorded call says, else the Python stack, else the capture of the graph that replayed it.
    """
    paths = np.array([*(recorded_row.module_path for recorded_row in rank.recorded), ""], dtype=object)
    of_ops = paths[rank.call]
    if rank.modules:
        of_ops = np.where(of_ops == "", np.array(rank.modules, dtype=object), of_ops)
    borrowed = [op.module_path for op in rank.replayed.ops] if rank.replayed else []
    paths_of_launches: np.ndarray = np.concatenate([of_ops, np.array([*borrowed, ""], dtype=object)])[
        rank.owner
    ]
    return paths_of_launches


def _sources(rank: RankData, own_op: np.ndarray) -> np.ndarray:
    """Where each launch (n,) comes from: the model's line as Inductor or the Python stack tell it, else the
    line or file that Inductor generated, "" where nothing is known. own: rows of `ops`, -1 for none."""
    sources = np.full(len(own_op), "", dtype=object)
    if rank.frames is not None and (own_op >= 0).any():
        ops = rank.trace.operators
        used, group = np.unique(own_op, return_inverse=True)
        used_rows = np.maximum(used, 0)
        lines = lines_of(
            rank.frames,
            Table(
                {"pid": ops.pid[used_rows], "tid": ops.tid[used_rows], "start_ns": ops.start_ns[used_rows]}
            ),
        )
        lines[used < 0] = ""
        sources = lines[group.reshape(-1)]
    if rank.compiled is None:
        return sources
    kernels = rank.trace.text(rank.trace.ops.name_id)
    for row in np.flatnonzero(rank.compiled.hashes != "").tolist():
        hash_ = str(rank.compiled.hashes[row])
        origin = rank.compiled.provenance.of(str(kernels[row]), hash_)
        model = "; ".join(origin.lines) if origin else ""
        sources[row] = model or sources[row] or rank.compiled.lines[row] or f"{hash_}.py"
    return sources


def _marks(ranks: Sequence[RankData], zero_ns: int) -> list[Span]:
    """The forwards of the first rank that has any, by what they launched."""
    for rank in ranks:
        start = rank.start_ns()
        table = rank.trace.ops if rank.on_gpu else rank.trace.operators
        end = start + table.dur_ns[rank.rows]
        marks = []
        for index, name in enumerate(rank.marks.names):
            of_mark = rank.mark == index
            if of_mark.any():
                first_ns, last_ns = int(start[of_mark].min()), int(end[of_mark].max())
                marks.append(Span(name, (first_ns - zero_ns) / 1000, (last_ns - zero_ns) / 1000))
        if marks:
            return marks
    return []
