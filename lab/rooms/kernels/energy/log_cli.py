"""`lab kernels energy`: joules of a recorded power log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.options import as_json

if TYPE_CHECKING:
    from lab.power.energy import Energy


@click.command("energy")
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--from", "start", required=True, metavar="TIME", help="Begin of the window, as the log writes it."
)
@click.option("--to", "end", required=True, metavar="TIME", help="End of the window.")
@click.option("--gpu", help="One GPU of the log, by its index or UUID as written.")
@click.option(
    "--idle",
    "idle_w",
    type=click.FloatRange(min=0),
    metavar="W",
    help="Idle power to subtract; otherwise that of the log outside the window. 0: gross energy.",
)
@as_json("The energies")
def energy_of_log(
    log: Path, start: str, end: str, gpu: str | None, idle_w: float | None, as_json: bool
) -> None:
    """Integrate the power log LOG over a window, with bounds, idle power subtracted.

    Reads nvidia-smi CSV (with or without units) and dmon, amd-smi and rocm-smi, and timestamp,gpu,power_w.
    Exit code 1 where the log cannot answer: a gap, a sensor that does not move, a clock set back, unknown
    idle power.
    """
    import msgspec

    from lab.errors import StepFailed, not_here
    from lab.power.energy import energy_of
    from lab.power.readings import read_power_log, select_gpu, window_of

    if not log.is_file():
        raise not_here("no such power log", log)
    series = read_power_log(log)
    window = window_of(start, end, series)
    energies = [energy_of(readings, *window, idle_w) for readings in select_gpu(series, gpu, log)]
    if as_json:
        answer: Any = (
            energies[0] if len(energies) == 1 else {"gpus": energies, "problems": _problems(energies)}
        )
        click.echo(msgspec.json.encode(answer).decode())
    else:
        for energy in energies:
            click.echo(_sentence(energy))
    if problems := _problems(energies):
        raise StepFailed(f"no energy: {problems[0]}", location=log)


def _problems(energies: Sequence[Energy]) -> list[str]:
    return [problem for energy in energies for problem in energy.problems]


def _sentence(energy: Energy) -> str:
    name = f"GPU {energy.gpu}: " if energy.gpu else ""
    if energy.energy_j is None:
        gross = f"; gross {energy.gross_j:.1f} J" if energy.gross_j is not None else ""
        return f"{name}no energy over {energy.seconds:.2f} s: {'; '.join(energy.problems)}{gross}"
    return (
        f"{name}{energy.energy_j:.1f} J ({energy.low_j:.1f} to {energy.high_j:.1f}) above idle over "
        f"{energy.seconds:.2f} s; gross {energy.gross_j:.1f} J, {energy.mean_w:.1f} W on average, idle "
        f"{energy.idle_w:.1f} W; {energy.samples} readings"
    )
