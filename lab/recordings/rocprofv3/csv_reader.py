"""rocprofv3's CSV files: `*_kernel_trace.csv`, with the files of other domains that lie beside it.

The columns are those of rocprofiler-sdk's `source/lib/output/generateCSV.cpp`; older versions lack Stream_Id
and the registers. Devices are the GPUs of `*_agent_info.csv`, else the agents that ran kernels, in their
order.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np

from lab.errors import BadDataError
from lab.recordings.capture import Capture, Device
from lab.recordings.pieces import read_whole
from lab.recordings.rocm import MARKERS, Parts
from lab.recordings.tables import Columns, Table

MOST_BYTES = 2 << 30
HEADER = (b"Kernel_Name", b"Start_Timestamp", b"End_Timestamp")
_CALLS = ("hip_api", "hip_runtime_api", "hip_compiler_api", "hsa_api", "rccl_api")
_KERNELS = re.compile(r"(?P<stem>.*)kernel_trace\.csv(?P<gz>\.gz)?")
_NUMBER = re.compile(r"-?\d+")
# Columns of every version, by domain; the reader fills in the others as not recorded.
_TIMES = ("Correlation_Id", "Start_Timestamp", "End_Timestamp")
_FUNCTION = ("Function", "Process_Id", "Thread_Id", *_TIMES)


def is_kernel_trace(start: bytes) -> bool:
    """Whether a file with this beginning is a kernel trace: its first line names the columns."""
    header = start.split(b"\n", 1)[0]
    return all(column in header for column in HEADER)


def load_csv(path: Path) -> Capture:
    """Read a kernel trace and its neighbours."""
    parts = Parts(path)
    kernels = _Rows.of(path, ("Kernel_Name", "Agent_Id", "Dispatch_Id", *_TIMES))
    copies = _Rows.of(_beside(path, "memory_copy_trace"), _TIMES)
    calls = [_Rows.of(_beside(path, f"{domain}_trace"), _FUNCTION) for domain in _CALLS]
    marks = _Rows.of(_beside(path, "marker_api_trace"), _FUNCTION)
    devices = _devices(_Rows.of(_beside(path, "agent_info"), ("Node_Id", "Agent_Type")), kernels)
    parts.devices += devices.values()
    _add_kernels(kernels, devices, parts)
    _add_copies(copies, devices, parts)
    api = [_add_calls(rows, parts) for rows in (*calls, marks)]
    # Of the marker's calls, those of its core domain are ranges, with their message as Function.
    parts.tables |= {"api": api[:-1], "ranges": parts.tables["ranges"][-1:]}
    parts.judge(0, kernels.numbers("Dispatch_Id"), calls=any(map(len, api[:-1])))
    return parts.capture("rocprofv3", "csv")


def _beside(path: Path, domain: str) -> Path | None:
    """The file of another domain from the same run: `1_hip_api_trace.csv` of `1_kernel_trace.csv`."""
    match = _KERNELS.fullmatch(path.name)
    if not match:
        return None
    neighbour = path.with_name(f"{match['stem']}{domain}.csv{match['gz'] or ''}")
    return neighbour if neighbour.is_file() else None


@dataclass(frozen=True)
class _Rows:
    """The rows of one file; none of a file that is not there."""

    path: Path
    cells: Sequence[dict[str, str]] = field(default_factory=list)

    @staticmethod
    def of(path: Path | None, needed: Sequence[str]) -> _Rows:
        """Raises BadDataError without the columns `needed`, or for a row that does not fit the header."""
        if path is None:
            return _Rows(Path())
        try:
            text = StringIO(read_whole(path, MOST_BYTES).decode("utf-8"), newline="")
            reader, cells = csv.DictReader(text), []
            if absent := [name for name in needed if name not in (reader.fieldnames or ())]:
                problem = f"no column {', '.join(absent)}: not what rocprofv3 writes"
                raise BadDataError(problem, location=path)
            for row in reader:
                if None in row or None in row.values():
                    raise BadDataError(
                        "a row has not as many fields as the header",
                        location=f"{path}, line {reader.line_num}",
                        fix="the file was cut off: record again, or remove its last line",
                    )
                cells.append(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadDataError(f"not a CSV of rocprofv3: {error}", location=path) from error
        return _Rows(path, cells)

    def texts(self, column: str) -> list[str]:
        return [row.get(column, "") for row in self.cells]

    def numbers(self, column: str) -> np.ndarray:
        """The column (n,) as integers; -1 where it is empty or not there."""
        texts = [text.strip() for text in self.texts(column)]
        if odd := next((text for text in texts if text and not _NUMBER.fullmatch(text)), None):
            raise BadDataError(f"{column} is not a whole number: {odd[:40]!r}", location=self.path)
        try:
            return np.array([int(text) if text else -1 for text in texts], dtype=np.int64)
        except OverflowError as error:
            raise BadDataError(f"a number of {column} is too large", location=self.path) from error

    def ids(self, column: str, id_of: Callable[[str], int]) -> np.ndarray:
        return np.array([id_of(text) for text in self.texts(column)], dtype=np.int64)

    def shared(self, role: str, parts: Parts) -> Columns:
        """Process, correlation and times (n,)."""
        names = {"start": "Start_Timestamp", "end": "End_Timestamp", "corr": "Correlation_Id"}
        rows = {name: self.numbers(column) for name, column in names.items()}
        return rows | parts.times(role, rows) | {"process": np.zeros(len(self.cells), dtype=np.int32)}

    def devices(self, column: str, devices: dict[str, Device]) -> np.ndarray:
        return self.ids(column, lambda agent: devices[agent].device if agent in devices else -1)


def _devices(agents: _Rows, kernels: _Rows) -> dict[str, Device]:
    """Agents, as the rows name them, and their GPUs: agents count the host's processors, too."""
    gpus = [row for row in agents.cells if row["Agent_Type"] == "GPU"]
    by_number = {int(row["Node_Id"]): row for row in gpus if _NUMBER.fullmatch(row["Node_Id"])}
    ordered = sorted(set(kernels.texts("Agent_Id")), key=_agent_number)
    # Without agent_info, or with agents that it does not list, only the order of the agents is left.
    if not all(_agent_number(name) in ([number] for number in by_number) for name in ordered):
        return {name: Device(device=index, name=name) for index, name in enumerate(ordered)}
    devices = {}
    for index, (number, row) in enumerate(sorted(by_number.items())):
        units, name = row.get("Cu_Count", ""), row.get("Product_Name") or f"Agent {number}"
        devices[f"Agent {number}"] = Device(
            device=index, name=name, num_sms=int(units) if units.isdecimal() and len(units) < 6 else None
        )
    return devices


def _agent_number(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def _add_kernels(rows: _Rows, devices: dict[str, Device], parts: Parts) -> None:
    names = {"vgprs": "VGPR_Count", "accums": "Accum_VGPR_Count", "shared": "LDS_Block_Size"}
    names |= {f"block_{axis.lower()}": f"Workgroup_Size_{axis}" for axis in "XYZ"}
    names |= {f"items_{axis.lower()}": f"Grid_Size_{axis}" for axis in "XYZ"}
    absent = np.full(len(rows.cells), -1)
    sizes = {name: rows.numbers(column) for name, column in names.items()}
    stream = rows.numbers("Stream_Id")
    columns = {
        **rows.shared("kernels", parts),
        **dict.fromkeys(("static", "graph", "graph_node"), absent),
        **sizes,
        "name_id": rows.ids("Kernel_Name", parts.strings.id),
        "device": rows.devices("Agent_Id", devices),
        # Versions without Stream_Id leave the hardware queue, which streams share: 5 queues for 567 in one
        # file.
        "stream": np.where(stream >= 0, stream, rows.numbers("Queue_Id")),
    }
    parts.add_kernels(columns)


def _add_copies(rows: _Rows, devices: dict[str, Device], parts: Parts) -> None:
    directions = zip(rows.texts("Direction"), rows.texts("Kind"), strict=True)
    names = [parts.strings.id(direction or kind) for direction, kind in directions]
    columns = {
        "name_id": np.array(names, dtype=np.int64),
        "target": rows.devices("Destination_Agent_Id", devices),
        "origin": np.maximum(rows.devices("Source_Agent_Id", devices), 0),
        **rows.shared("copies", parts),
        **dict.fromkeys(("graph", "graph_node"), np.full(len(rows.cells), -1)),
        "stream": rows.numbers("Stream_Id"),
    }
    parts.add_copies(columns)


def _add_calls(rows: _Rows, parts: Parts) -> Table:
    columns = rows.shared("calls", parts) | {
        "name_id": rows.ids("Function", parts.strings.id),
        "pid": rows.numbers("Process_Id"),
        "tid": rows.numbers("Thread_Id"),
    }
    return parts.add_calls(
        columns, np.array([domain in MARKERS for domain in rows.texts("Domain")], dtype=bool)
    )
