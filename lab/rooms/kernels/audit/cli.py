"""`lab kernels audit`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.terminal.options import as_json


@click.command("audit")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--board-limit",
    "board_limit_w",
    type=click.FloatRange(min=1),
    help="The board's power limit in watts, if the files do not contain it (GTX 1080 Ti: 250).",
)
@as_json("The audits")
def audit(folder: Path, board_limit_w: float | None, as_json: bool) -> None:
    """Refuse impossible numbers in FOLDER: a replay or energy run, or a published measurement.

    Every refusal names its reason and its factors. Exit code 0: nothing is refused.
    """
    import msgspec

    from lab.errors import StepFailed
    from lab.rooms.kernels.audit.check import REFUSED
    from lab.rooms.kernels.audit.folder import audit_folder

    checks = audit_folder(folder, board_limit_w=board_limit_w)
    if as_json:
        click.echo(msgspec.json.encode(checks).decode())
    else:
        for check in checks:
            click.echo(f"{check.verdict:8} {check.name}: {check.what}")
    refused = sum(check.verdict == REFUSED for check in checks)
    if refused:
        raise StepFailed(f"{refused} of {len(checks)} audits refuse these numbers", location=folder)
