"""rocprofv3's CSV files: `*_kernel_trace.csv`, with the copies and HIP calls that lie beside it.

The columns are those of rocprofiler-sdk's `source/lib/output/generateCSV.cpp`; older versions lack Stream_Id
and the registers. Agents are named by number only: devices are the agents that ran kernels, in their order.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np

from lab.errors import BadDataError
from lab.recordings.capture import (
    API_COLUMNS,
    KERNEL,
    MEMCPY,
    OPS_COLUMNS,
    RANGE_COLUMNS,
    SYNC_COLUMNS,
    Capture,
    Device,
    Strings,
    filled,
)
from lab.recordings.rocm import blocks, copy_columns, dispatch_lacks, narrow, repeated_dispatches, sound_times
from lab.recordings.tables import Table, concat

HEADER = (b"Kernel_Name", b"Start_Timestamp", b"End_Timestamp")
_KERNELS = re.compile(r"(?P<stem>.*)kernel_trace\.csv(?P<gz>\.gz)?")
_NUMBER = re.compile(r"-?\d+")


def is_kernel_trace(start: bytes) -> bool:
    """Whether a file with this beginning is a kernel trace: its first line names the columns."""
    header = start.split(b"\n", 1)[0]
    return all(column in header for column in HEADER)


def load_csv(path: Path) -> Capture:
    """Read a kernel trace and its neighbours. Raises BadDataError for a row that does not fit its header."""
    strings, problems = Strings(), list[str]()
    kernels = _rows(path)
    copies = _rows(_beside(path, "memory_copy_trace"))
    calls = [row for name in ("hip_api_trace", "hip_runtime_api_trace") for row in _rows(_beside(path, name))]
    agents = _agents([row["Agent_Id"] for row in kernels])
    ops = [_kernel_table(path, kernels, agents, strings, problems)]
    if copies:
        ops.append(_copy_table(path, copies, agents, strings, problems))
    api = _call_table(path, calls, strings, problems)
    ids = _integers(path, kernels, "Dispatch_Id")
    return Capture(
        source=path,
        collector="rocprofv3",
        version=None,
        schema="csv",
        ops=concat([op.as_dict() for op in ops], OPS_COLUMNS),
        api=api,
        ranges=concat([], RANGE_COLUMNS),
        sync=concat([], SYNC_COLUMNS),
        strings=strings.texts,
        devices=tuple(Device(device=index, name=agent) for agent, index in agents.items()),
        problems=[*problems, *repeated_dispatches(ids)],
        info={"vendor": "amd"},
        lacks=tuple(dispatch_lacks(0, ids, calls=len(api) > 0)),
    )


def _beside(path: Path, domain: str) -> Path | None:
    """The file of another domain from the same run: `1_hip_api_trace.csv` of `1_kernel_trace.csv`."""
    match = _KERNELS.fullmatch(path.name)
    if not match:
        return None
    neighbour = path.with_name(f"{match['stem']}{domain}.csv{match['gz'] or ''}")
    return neighbour if neighbour.is_file() else None


def _rows(path: Path | None) -> list[dict[str, str]]:
    if path is None:
        return []
    with _opened(path) as file:
        try:
            return list(_checked(path, csv.DictReader(file)))
        except (csv.Error, UnicodeDecodeError, EOFError, OSError) as error:
            raise BadDataError(f"not a CSV of rocprofv3: {error}", location=path) from error


def _opened(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8", newline=""))
    return path.open(encoding="utf-8", newline="")


def _checked(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[str, str]]:
    for row in reader:
        if None in row or None in row.values():
            raise BadDataError(
                "a row has not as many fields as the header",
                location=f"{path}, line {reader.line_num}",
                fix="the file was cut off: record again, or remove its last line",
            )
        yield row


def _integers(path: Path, rows: Sequence[dict[str, str]], column: str) -> np.ndarray:
    """The column (n,) as integers; -1 where it is empty or not there."""
    texts = [row.get(column, "").strip() for row in rows]
    if odd := next((text for text in texts if text and not _NUMBER.fullmatch(text)), None):
        raise BadDataError(f"{column} is not a whole number: {odd[:40]!r}", location=path)
    try:
        return np.array([int(text) if text else -1 for text in texts], dtype=np.int64)
    except OverflowError as error:
        raise BadDataError(f"a number of {column} is too large", location=path) from error


def _agents(names: Sequence[str]) -> dict[str, int]:
    """Agent -> its device: agents count the host's processors, too, in the order of their numbers."""
    ordered = sorted(set(names), key=lambda name: [int(digits) for digits in re.findall(r"\d+", name)])
    return {name: index for index, name in enumerate(ordered)}


def _shared(
    path: Path, rows: Sequence[dict[str, str]], role: str, problems: list[str]
) -> dict[str, np.ndarray]:
    start_ns, end_ns = (_integers(path, rows, name) for name in ("Start_Timestamp", "End_Timestamp"))
    return {
        "process": np.zeros(len(rows), dtype=np.int32),
        "corr": _integers(path, rows, "Correlation_Id"),
        **sound_times(path, role, start_ns, end_ns, problems),
    }


def _kernel_table(
    path: Path,
    rows: Sequence[dict[str, str]],
    agents: dict[str, int],
    strings: Strings,
    problems: list[str],
) -> Table:
    def number(column: str) -> np.ndarray:
        return _integers(path, rows, column)

    stream = number("Stream_Id")
    sizes = {axis: (number(f"Workgroup_Size_{axis}"), number(f"Grid_Size_{axis}")) for axis in "XYZ"}
    columns = _shared(path, rows, "kernels", problems) | {
        "kind": np.full(len(rows), KERNEL),
        "name_id": np.array([strings.id(row["Kernel_Name"]) for row in rows], dtype=np.int32),
        "device": np.array([agents[row["Agent_Id"]] for row in rows], dtype=np.int32),
        "stream": np.where(stream >= 0, stream, number("Queue_Id")),
        "regs": narrow(number("VGPR_Count")),
        "dynamic_smem_bytes": number("LDS_Block_Size"),
        **{f"block_{axis.lower()}": narrow(block) for axis, (block, _) in sizes.items()},
        **{f"grid_{axis.lower()}": blocks(items, block) for axis, (block, items) in sizes.items()},
    }
    return filled(OPS_COLUMNS, len(rows), columns)


def _copy_table(
    path: Path,
    rows: Sequence[dict[str, str]],
    agents: dict[str, int],
    strings: Strings,
    problems: list[str],
) -> Table:
    names = np.array([strings.id(row.get("Direction", "") or row.get("Kind", "")) for row in rows])
    ends = [(row.get("Destination_Agent_Id", ""), row.get("Source_Agent_Id", "")) for row in rows]
    device = [next((agents[agent] for agent in pair if agent in agents), 0) for pair in ends]
    columns = _shared(path, rows, "copies", problems) | {
        "kind": np.full(len(rows), MEMCPY),
        "name_id": names.astype(np.int32),
        "device": np.array(device, dtype=np.int32),
        "stream": _integers(path, rows, "Stream_Id"),
        **copy_columns(strings.texts, names),
    }
    return filled(OPS_COLUMNS, len(rows), columns)


def _call_table(path: Path, rows: Sequence[dict[str, str]], strings: Strings, problems: list[str]) -> Table:
    columns = _shared(path, rows, "HIP calls", problems) | {
        "name_id": np.array([strings.id(row["Function"]) for row in rows], dtype=np.int32),
        "pid": _integers(path, rows, "Process_Id"),
        "tid": _integers(path, rows, "Thread_Id"),
    }
    return filled(API_COLUMNS, len(rows), columns)
