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
    """Refuse impossible numbers in FOLDER, a published measurement beside its power log.

    Every refusal names its reason and its factors. Exit code 0: nothing is refused.
    """
    import msgspec

    from lab.errors import MissingError, StepFailed, not_here
    from lab.rooms.kernels.audit.published import REFUSED, of_published

    if folder.is_file():
        raise MissingError("this is a file, not a folder", location=folder, fix=f"name {folder.parent}")
    if not folder.is_dir():
        raise not_here("no such folder", folder)
    checks = of_published(folder, board_limit_w)
    if not checks:
        raise MissingError(
            "nothing here can be audited",
            location=folder,
            fix="name the folder of a published measurement; a run of lab has its own: `lab analyze RUN`",
        )
    if as_json:
        click.echo(msgspec.json.encode(checks).decode())
    else:
        for check in checks:
            click.echo(f"{check.verdict:8} {check.name}: {check.answer}")
    refused = sum(check.verdict == REFUSED for check in checks)
    if refused:
        raise StepFailed(f"{refused} of {len(checks)} audits refuse these numbers", location=folder)
