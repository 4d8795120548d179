"""`lab kernels audit`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("audit")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--board-limit",
    "board_limit_w",
    type=click.FloatRange(min=1),
    help="Watts, where the files do not tell it (GTX 1080 Ti: 250).",
)
@click.option("--json", "as_json", is_flag=True, help="The audits as JSON on stdout.")
def audit(folder: Path, board_limit_w: float | None, as_json: bool) -> None:
    """Refuse impossible numbers of a replay's or energy run's FOLDER, or of a published measurement, and say why.

    Exit code 0: nothing is refused.
    """
    import msgspec

    from lab.errors import StepFailed
    from lab.rooms.kernels.energy.audit import REFUSED
    from lab.rooms.kernels.energy.audit import audit as all_of

    checks = all_of(folder, board_limit_w=board_limit_w)
    if as_json:
        click.echo(msgspec.json.encode(checks).decode())
    else:
        for check in checks:
            click.echo(f"{check.verdict:8} {check.name}: {check.what}")
    refused = sum(check.verdict == REFUSED for check in checks)
    if refused:
        raise StepFailed(f"{refused} of {len(checks)} audits refuse these numbers", where=folder)
