"""The ceilings of a cell's GPU, and the rates that the cell achieved."""

from __future__ import annotations

from lab.rooms.nsys import flops
from lab.rooms.nsys.answers.answer import CellData


def ceilings(cell: CellData) -> flops.Peaks | None:
    """The ceilings of the cell's GPU for its dtype; None for an unknown GPU."""
    if cell.recording is None or not cell.recording.has_kernels:
        return None
    result = cell.files.result
    device = {**(result.device if result else {}), **cell.recording.gpu}
    return flops.peaks(
        str(device.get("capability")),
        device.get("sm_count") or 0,
        device.get("clock_hz") or 0,
        device.get("bytes_per_s"),
        cell.files.dtype,
    )


def roofline_points(cell: CellData) -> list[dict[str, float | str]]:
    """Rate and intensity (FLOP per minimum byte) of attention's parts and of the linear layers in forward."""
    spec, batch, context = cell.files.spec, cell.files.batch, cell.files.cell.context
    if cell.tables is None or spec is None or batch is None:
        return []
    points: list[dict[str, float | str]] = []
    in_attention_ms = 0.0
    for _, row in cell.tables.parts.iterrows():
        if row["tflops"] > 0:
            seconds = row["flop"] / row["tflops"] / 1e12
            points.append(_point(cell, row["part"], row["flop"], row["least_bytes"], seconds))
        if row["matmul_us_per_layer"] > 0:
            in_attention_ms += row["matmul_us_per_layer"] * spec.layers / 1e3
    forward = cell.phase("forward")
    if forward is not None and in_attention_ms and forward.matmul_ms > in_attention_ms:
        moved = flops.linear_bytes(spec, batch, context, flops.width(cell.files.dtype))
        seconds = (forward.matmul_ms - in_attention_ms) / 1e3
        points.append(_point(cell, "linear layers", flops.linear_flop(spec, batch, context), moved, seconds))
    return points


def _point(cell: CellData, part: str, flop: float, moved: float, seconds: float) -> dict[str, float | str]:
    return {
        "cell": cell.label,
        "what": part,
        "flop_per_byte": flop / moved,
        "tflops": flop / seconds / 1e12,
        "gb_per_s": moved / seconds / 1e9,
    }
