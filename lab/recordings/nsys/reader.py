"""From an export, to SQLite or to Parquet, or a .nsys-rep to a capture."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.errors import BadDataError, MissingError
from lab.recordings.capture import Capture, Process, by_process
from lab.recordings.nsys.device_events import read_device_events
from lab.recordings.nsys.export import Export, SqliteExport, pid_of
from lab.recordings.nsys.info import check_presence, read_devices, read_info, stated_lacks
from lab.recordings.nsys.operations import (
    read_api_calls,
    read_graph_nodes,
    read_operations,
    read_os_calls,
    read_waits,
)
from lab.recordings.nsys.ranges import never_closed, read_ranges, with_bare_names
from lab.recordings.nsys.strings import StringIds
from lab.recordings.sqlite import opened
from lab.recordings.tables import Table

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")


def load(path: Path | str) -> Capture:
    """Read an export.

    Raises MissingError without the file; BadDataError if it is empty, not SQLite, truncated, damaged, not an
    nsys export, or of a schema with unknown columns.
    """
    path = Path(path)
    with opened(path) as connection:
        return capture_of(SqliteExport(connection, path))


def capture_of(export: Export) -> Capture:
    """The capture in an export of either kind."""
    export.check()
    lacks = stated_lacks(export)
    strings = StringIds(export)
    read = [
        read_operations(export, strings),
        read_api_calls(export, strings),
        read_ranges(export, strings),
        read_waits(export),
        read_os_calls(export, strings),
        read_graph_nodes(export),
    ]
    (ops, api, ranges, sync, osrt, nodes), processes = _by_process(read)
    ranges = strings.named(ranges, ("text_id", "domain"))
    meta = export.pairs("META_DATA_EXPORT")
    capture = Capture(
        source=export.path,
        collector="nsys",
        version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema=meta.get("EXPORT_SCHEMA_VERSION"),
        ops=strings.named(ops, ("name_id",)),
        api=strings.named(api, ("name_id",)),
        ranges=with_bare_names(ranges, strings),
        sync=sync,
        osrt=strings.named(osrt, ("name_id",)),
        nodes=nodes,
        strings=strings.strings.texts,
        devices=read_devices(export),
        problems=export.problems,
        info=read_info(export),
        processes=processes,
        lacks=lacks + never_closed(ranges, strings.strings.texts),
        device_events=read_device_events(export),
    )
    check_presence(capture)
    return capture


def _by_process(tables: Sequence[Table]) -> tuple[list[Table], tuple[Process, ...]]:
    """The tables and processes with plain pids, told apart by machine and pid."""
    keyed, processes = by_process(tables)
    plain = [Table({**table.as_dict(), "pid": pid_of(table.pid)}) for table in keyed]
    hosts = {process.pid >> 24 for process in processes if process.pid is not None}
    return plain, tuple(
        process
        if process.pid is None
        else replace(
            process,
            pid=process.pid & 0xFFFFFF,
            host=f"machine {process.pid >> 24:x}" if len(hosts) > 1 else None,
        )
        for process in processes
    )


def load_report(path: Path | str) -> Capture:
    """Read a .nsys-rep through `nsys export`; the exported file, with its secrets, is deleted at once.

    Raises MissingError where nsys is not on PATH; BadDataError where the export fails.
    """
    path = Path(path)
    nsys = shutil.which("nsys")
    if nsys is None:
        raise MissingError(
            "only nsys can read a .nsys-rep, and nsys is not on PATH",
            location=path,
            fix="on a machine with nsys: nsys export --type sqlite FILE.nsys-rep; give lab the .sqlite file",
        )
    with tempfile.TemporaryDirectory(prefix="lab-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target)]
        run = subprocess.run([*command, str(path.absolute())], capture_output=True, text=True, check=False)
        if run.returncode or not target.exists():
            output = (run.stderr or run.stdout).strip().splitlines()
            raise BadDataError(
                f"nsys export failed ({run.returncode}): {output[-1] if output else 'no output'}",
                location=path,
            )
        capture = load(target)
    return replace(capture, source=path)
