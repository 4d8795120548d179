"""Which files of a folder are captures of which cell: lab's own layout, and the published result tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lab.errors import BadDataError
from lab.rooms.nsys.config import TYPES, Cell, ProfileType, spec_of
from lab.rooms.nsys.flops import SIZES, ModelSpec

CAPTURES = ("capture.sqlite", "capture.json.gz")
ENDINGS = (".sqlite", ".json.gz", ".json", ".nsys-rep")
PUBLISHED_CONTEXT = 512


class Published(NamedTuple):
    """A folder of the published tree: its parts, the names in it, their profile type where they lack it."""

    folder: str
    parts: tuple[str, ...]
    template: str
    type: ProfileType | None = None


_PUBLISHED = (
    Published("part_a", ("a",), "{size}_forward_ctx{context}", "forward"),
    Published("part_b_c", ("b", "c"), "{size}_{type}_annotated{other_context}"),
    Published("part_d", ("d",), "{size}_{type}_step{other_context}"),
    Published("part_e", ("e",), "{size}_attention_analysis{other_context}", "forward"),
    Published("", (), "{size}_ctx{context}_{type}"),
)
_GROUPS = {
    "size": rf"(?P<size>{'|'.join(map(re.escape, SIZES))})",
    "type": rf"(?P<type>{'|'.join(TYPES)})",
    "context": r"(?P<context>\d+)",
    "other_context": r"(?:_ctx(?P<context>\d+))?",
}


class CellSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of the workload that the analysis needs, as recorded in its cell.json."""

    model_size: str
    context_length: int
    profile_type: ProfileType
    batch_size: int = 4
    fused_qkv: bool = False
    dtype: str = "fp32"
    device: str = "cuda"


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cell.json: settings, device, outcome; times in ms by Python's clock."""

    asked: CellSettings
    outcome: str
    params: int = 0
    device: dict[str, Any] = {}
    steps: list[dict[str, float]] = []
    reason: str = ""
    peak_allocated_bytes: int | None = None


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """One collector.json."""

    collector: str
    reason: str | None = None


class CellData(Cell, frozen=True, kw_only=True, eq=False):
    """A cell with its files and, where its capture can be read, the recording and tables of one process.

    result and twin are the cell.json of the recorded and of the unprofiled process; None without one.
    recording is a `Recording`, tables are by the name of their CSV: finding files must not load pandas.
    """

    capture: Path | None = None
    result: CellResult | None = None
    twin: CellResult | None = None
    collected: Collected | None = None
    spec: ModelSpec | None = None
    batch: int = 4
    recording: Any = None
    tables: dict[str, Any] = {}

    @property
    def dtype(self) -> str:
        """Of the matrix products; fp32 where it was not recorded."""
        return self.result.asked.dtype if self.result else "fp32"

    @property
    def label(self) -> str:
        """`small ctx 512 forward`; for a capture in the published tree with the folder of its part, and for a
        single file of an unknown model its name and type."""
        if self.spec is None and self.result is None and self.capture is not None:
            return f"{self.size} {self.type}"
        folder = self.capture.parent.name if self.capture and self.result is None else ""
        label = f"{self.size} ctx {self.context} {self.type}"
        return f"{label} ({folder})" if folder.startswith("part_") else label

    @property
    def size_and_context(self) -> tuple[str, int]:
        return self.size, self.context

    @property
    def has_kernels(self) -> bool:
        return self.recording is not None and self.recording.has_kernels

    def phase(self, name: str) -> Any:
        """A phase's row; None where the capture has no such phase."""
        phases = self.tables.get("phases")
        rows: Any = () if phases is None else phases[phases["phase"] == name]
        return rows.iloc[0] if len(rows) else None


def find_cells(folder: Path) -> list[CellData]:
    """Every cell below `folder`, by size, context and type. Raises BadDataError for a damaged cell.json."""
    of_lab = [cell for path in sorted(folder.glob("captures/*/")) if (cell := _of_lab(path))]
    return sorted(of_lab or _published(folder), key=_order)


def _order(cell: CellData) -> tuple[int, int, str]:
    return list(SIZES).index(cell.size), cell.context, cell.type


def _of_lab(folder: Path) -> CellData | None:
    result = read_json(folder / "cell.json", CellResult)
    twin = read_json(folder / "unprofiled" / "cell.json", CellResult)
    if result is None and twin is None:
        return None
    asked = (result or twin).asked
    return CellData(
        size=asked.model_size,
        context=asked.context_length,
        type=asked.profile_type,
        capture=next((path for name in CAPTURES if (path := folder / name).is_file()), None),
        result=result,
        twin=twin,
        collected=read_json(folder / "collector.json", Collected),
        spec=spec_of(asked.model_size, fused_qkv=asked.fused_qkv) if asked.model_size in SIZES else None,
        batch=asked.batch_size,
    )


def read_json(path: Path, kind: type[Any]) -> Any:
    """The file as `kind`; None without a file. Raises BadDataError if it has another structure."""
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise BadDataError(f"not a file that the workload wrote: {error}", location=path) from error


def _published(folder: Path) -> Iterator[CellData]:
    """Captures with published names; an export takes precedence over its .nsys-rep."""
    parts = {published.folder: published.parts for published in _PUBLISHED}
    names: set[tuple[Path, str]] = set()
    for root in (folder, folder / "nsight_profiles", folder / "results" / "nsight_profiles"):
        for ending in ENDINGS:
            for path in sorted([*root.glob(f"*{ending}"), *root.glob(f"part_*/*{ending}")]):
                name = path.parent, path.name[: -len(ending)]
                cell = cell_of_name(name[1])
                if cell and name not in names:
                    names.add(name)
                    cell_parts = parts.get(path.parent.name, ())
                    yield msgspec.structs.replace(cell, parts=cell_parts, capture=path, spec=SIZES[cell.size])


def published_name(cell: Cell, part: str) -> tuple[str, str]:
    """Folder and base name of a cell's reports in the published tree, for one of its parts."""
    published = next(published for published in _PUBLISHED if part in published.parts)
    other_context = "" if cell.context == PUBLISHED_CONTEXT else f"_ctx{cell.context}"
    values = {"size": cell.size, "type": cell.type, "context": cell.context, "other_context": other_context}
    return published.folder, published.template.format(**values)


def cell_of_name(base: str) -> CellData | None:
    """The cell with this published base name; None for any other name."""
    for published in _PUBLISHED:
        if match := re.fullmatch(published.template.format(**_GROUPS), base):
            groups = match.groupdict()
            context = int(groups.get("context") or PUBLISHED_CONTEXT)
            kind: ProfileType = published.type or groups["type"]  # type: ignore[assignment]
            return CellData(size=groups["size"], context=context, type=kind)
    return None


def stem_of(path: Path) -> str:
    """A capture's name without its ending."""
    ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), "")
    return path.name.removesuffix(ending)
