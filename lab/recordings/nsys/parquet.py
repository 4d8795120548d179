"""An export of `nsys export --type parquetdir`: a folder with one Parquet file per table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import BadDataError, needs
from lab.recordings.capture import Capture
from lab.recordings.nsys.export import PARQUET, Among, Export, Row
from lab.recordings.nsys.reader import capture_of

# Nothing marks an export as finished, but a finished one has both.
_NEEDED = ("META_DATA_EXPORT", "StringIds")
MOST_ROWS = 1 << 28  # of one table: a small file can promise any number of equal rows


def load_folder(path: Path | str) -> Capture:
    """Read an export of `--type parquetdir`, a folder.

    Raises BadDataError where the export was not finished, or a table is truncated, damaged or of unknown
    columns.
    """
    return capture_of(ParquetExport(Path(path)))


class ParquetExport(Export):
    """The tables of such a folder. Raises BadDataError for one that is unfinished, truncated or damaged."""

    kind = "a folder of Parquet files"

    def __init__(self, path: Path) -> None:
        self._files = {
            file.name.removesuffix(PARQUET): self._opened(file) for file in sorted(path.glob(f"*{PARQUET}"))
        }
        super().__init__(path, {name: set(file.schema_arrow.names) for name, file in self._files.items()})

    def check(self) -> None:
        if missing := [name for name in _NEEDED if name not in self.tables]:
            raise BadDataError(
                f"an unfinished export: {' and '.join(missing)} missing from the folder",
                location=self.path,
                fix="nsys export --type parquetdir --force-overwrite true FILE.nsys-rep",
            )
        super().check()
        # Nothing links an export to its report: only their ages show that it is out of date.
        report = self.path.with_name(self.path.name.removesuffix("_pqtdir") + ".nsys-rep")
        if report.exists() and report.stat().st_mtime > max(self._ages()):
            self.problems.append(f"{report.name} is newer than this export of it: export it again")

    def rows(self, table: str, columns: Sequence[str], among: Among | None = None) -> Iterable[Row]:
        if table not in self.tables:
            return iter(())
        chosen = self._positions(table, among)
        cells = [
            (chosen + 1).tolist() if name == "rowid" else _values(self._column(table, name).take(chosen))
            for name in columns
        ]
        return zip(*cells, strict=True)

    def count(self, table: str) -> int:
        return int(self._files[table].metadata.num_rows)

    def numbers(
        self,
        table: str,
        needed: Mapping[str, str],
        optional: Mapping[str, str] | None = None,
        among: Among | None = None,
    ) -> dict[str, np.ndarray]:
        columns = self.tables[table]
        if absent := sorted(set(needed.values()) - columns - {"rowid"}):
            raise BadDataError(
                f"{table} has no column {', '.join(absent)}: a version that lab does not support",
                location=self.path,
            )
        wanted = dict(needed) | {k: v for k, v in (optional or {}).items() if v in columns}
        chosen = self._positions(table, among)
        try:
            numbers = {
                name: chosen + 1 if column == "rowid" else self._column_of_integers(table, column)[chosen]
                for name, column in wanted.items()
            }
        except (TypeError, ValueError, OverflowError) as error:
            problem = f"{table} has values that are not integers: {error}"
            raise BadDataError(problem, location=self.path) from error
        return dict.fromkeys(optional or {}, np.full(len(chosen), -1)) | numbers

    def _positions(self, table: str, among: Among | None) -> np.ndarray:
        """Positions (m,) of the rows asked for."""
        if among is None:
            return np.arange(self.count(table))
        return np.flatnonzero(np.isin(self._column_of_integers(table, among[0]), among[1]))

    def _column_of_integers(self, table: str, name: str) -> np.ndarray:
        import pyarrow

        column = self._column(table, name)
        if not pyarrow.types.is_integer(column.type) and not pyarrow.types.is_boolean(column.type):
            if column.null_count == len(column):
                return np.full(len(column), -1)
            raise TypeError(f"{name} is of type {column.type}")
        try:
            integers = column.cast(pyarrow.int64())
        except pyarrow.lib.ArrowInvalid as error:
            raise OverflowError(str(error)) from error
        values: np.ndarray = integers.fill_null(-1).to_numpy()
        return values

    def _column(self, table: str, name: str) -> Any:
        import pyarrow

        try:
            return self._files[table].read(columns=[name], use_threads=False).column(0)
        except (pyarrow.lib.ArrowException, OSError) as error:
            raise self._damaged(self.path / f"{table}{PARQUET}", error) from error

    def _opened(self, path: Path) -> Any:
        with needs("analysis"):
            import pyarrow.parquet
        try:
            file = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.lib.ArrowException, OSError) as error:
            raise self._damaged(path, error) from error
        if file.metadata.num_rows > MOST_ROWS:
            raise BadDataError(
                f"{file.metadata.num_rows} rows: more than lab reads ({MOST_ROWS})", location=path
            )
        return file

    def _damaged(self, path: Path, error: Exception) -> BadDataError:
        return BadDataError(
            f"truncated, damaged or still being written: {str(error).splitlines()[0][:200]}",
            location=path,
            fix="nsys export --type parquetdir --force-overwrite true FILE.nsys-rep",
        )

    def _ages(self) -> list[float]:
        return [(self.path / f"{name}{PARQUET}").stat().st_mtime for name in self._files]


def _values(column: Any) -> list[Any]:
    """The values of a column; a name with invalid UTF-8 must not make the whole recording unreadable."""
    import pyarrow

    if not (pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)):
        return list(column.to_pylist())
    raw = column.cast(pyarrow.large_binary()).to_pylist()
    return [None if cell is None else cell.decode("utf-8", "replace") for cell in raw]
