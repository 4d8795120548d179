"""Which files of a folder are captures of which cell: lab's own layout, and the published result tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError
from lab.rooms.nsys.config import Cell, ProfileType
from lab.rooms.nsys.flops import SIZES, ModelSpec

CAPTURES = ("capture.sqlite", "capture.json.gz")
ENDINGS = (".sqlite", ".json.gz", ".json", ".nsys-rep")
_SIZE = r"(?P<size>small|medium|large|xl|2\.7B|tiny)"
_TYPE = r"(?P<type>forward_backward|forward|training)"
_CONTEXT = r"(?:_ctx(?P<context>\d+))?"  # as `published_name` writes other contexts than the published one
# Pattern of a published name -> its profile type, None where the name contains it.
_PUBLISHED: tuple[tuple[re.Pattern[str], ProfileType | None], ...] = (
    (re.compile(rf"{_SIZE}_forward_ctx(?P<context>\d+)"), "forward"),
    (re.compile(rf"{_SIZE}_{_TYPE}_annotated{_CONTEXT}"), None),
    (re.compile(rf"{_SIZE}_{_TYPE}_step{_CONTEXT}"), None),
    (re.compile(rf"{_SIZE}_attention_analysis{_CONTEXT}"), "forward"),
    (re.compile(rf"{_SIZE}_ctx(?P<context>\d+)_{_TYPE}"), None),
)
_FOLDERS = {"part_a": ("a",), "part_b_c": ("b", "c"), "part_d": ("d",), "part_e": ("e",)}
_BASES = {
    "part_a": "{size}_forward_ctx{context}",
    "part_b_c": "{size}_{type}_annotated{other_context}",
    "part_d": "{size}_{type}_step{other_context}",
    "part_e": "{size}_attention_analysis{other_context}",
}
PUBLISHED_CONTEXT = 512


class CellSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The workload's flags, as recorded in its cell.json."""

    model_size: str
    context_length: int
    profile_type: ProfileType
    batch_size: int = 4
    warmup_steps: int = 5
    measure_steps: int = 10
    use_annotated_attention: bool = False
    softmax: str = "plain"
    fused_qkv: bool = False
    dtype: str = "fp32"
    device: str = "cuda"
    seed: int = 0
    collector: str = "none"


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cell.json: settings, device, outcome; times in ms by Python's clock."""

    asked: CellSettings
    outcome: str
    params: int = 0
    device: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    steps: list[dict[str, float]] = []
    attention: dict[str, Any] = {}
    reason: str = ""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """One collector.json."""

    collector: str
    reason: str | None = None
    nsys_version: str | None = None


class CellFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A cell and its files.

    result and twin are the cell.json of the recorded and of the unprofiled process; None without one.
    """

    cell: Cell
    capture: Path | None = None
    result: CellResult | None = None
    twin: CellResult | None = None
    collected: Collected | None = None
    spec: ModelSpec | None = None
    batch: int | None = None

    @property
    def dtype(self) -> str:
        """Of the matrix products; fp32 where it was not recorded."""
        return self.result.asked.dtype if self.result else "fp32"

    @property
    def label(self) -> str:
        """`small ctx 512 forward`; for a capture in the published tree with the folder of its part, and for a
        single file of an unknown model its name and type."""
        if self.spec is None and self.result is None and self.capture is not None:
            return f"{self.cell.size} {self.cell.type}"
        folder = self.capture.parent.name if self.capture and self.result is None else ""
        label = f"{self.cell.size} ctx {self.cell.context} {self.cell.type}"
        return f"{label} ({folder})" if folder.startswith("part_") else label


def find_cells(folder: Path) -> list[CellFiles]:
    """Every cell below `folder`, by size, context and type. Raises BadDataError for a damaged cell.json."""
    of_lab = [files for path in sorted(folder.glob("captures/*/")) if (files := _of_lab(path))]
    return sorted(of_lab or _published(folder), key=lambda files: _order(files.cell))


def published_name(cell: Cell, part: str) -> tuple[str, str]:
    """Folder and base name of a cell's reports in the published tree, for one of its parts."""
    folder = next(name for name, parts in _FOLDERS.items() if part in parts)
    other_context = "" if cell.context == PUBLISHED_CONTEXT else f"_ctx{cell.context}"
    pattern = _BASES[folder]
    base = pattern.format(size=cell.size, context=cell.context, type=cell.type, other_context=other_context)
    return folder, base


def _of_lab(folder: Path) -> CellFiles | None:
    result = read_json(folder / "cell.json", CellResult)
    twin = read_json(folder / "unprofiled" / "cell.json", CellResult)
    if result is None and twin is None:
        return None
    asked = (result or twin).asked
    spec = SIZES.get(asked.model_size)
    return CellFiles(
        cell=Cell(size=asked.model_size, context=asked.context_length, type=asked.profile_type),
        capture=next((path for name in CAPTURES if (path := folder / name).is_file()), None),
        result=result,
        twin=twin,
        collected=read_json(folder / "collector.json", Collected),
        spec=msgspec.structs.replace(spec, fused_qkv=asked.fused_qkv) if spec else None,
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


def _published(folder: Path) -> Iterator[CellFiles]:
    """Captures with published names; an export takes precedence over its .nsys-rep."""
    seen: set[tuple[str, str]] = set()
    for root in (folder, folder / "nsight_profiles", folder / "results" / "nsight_profiles"):
        for ending in ENDINGS:
            for path in sorted([*root.glob(f"*{ending}"), *root.glob(f"part_*/*{ending}")]):
                base = path.name[: -len(ending)]
                cell = cell_of_name(base)
                if cell and (str(path.parent), base) not in seen:
                    seen.add((str(path.parent), base))
                    parts = _FOLDERS.get(path.parent.name, ())
                    cell = msgspec.structs.replace(cell, parts=parts)
                    yield CellFiles(cell=cell, capture=path, spec=SIZES[cell.size], batch=4)


def cell_of_name(base: str) -> Cell | None:
    """The cell with this published base name; None for any other name."""
    for pattern, kind in _PUBLISHED:
        if match := pattern.fullmatch(base):
            groups = match.groupdict()
            return Cell(
                size=groups["size"],
                context=int(groups.get("context") or PUBLISHED_CONTEXT),
                type=kind or groups["type"],  # type: ignore[arg-type]
            )
    return None


def stem_of(path: Path) -> str:
    """A capture's name without its ending."""
    ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), "")
    return path.name.removesuffix(ending)


def _order(cell: Cell) -> tuple[int, int, str]:
    return list(SIZES).index(cell.size), cell.context, cell.type
