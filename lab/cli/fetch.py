"""`lab fetch`: download a model into the cache that steps read."""

from __future__ import annotations

import click

from lab.core.options import Options
from lab.hub import DEFAULT_REVISION, check_hub_id
from lab.terminal.options import as_json, option, quiet


@click.command()
@click.argument("model")
@click.option(
    "--image", metavar="NAME", help="Download in this image: cuda, pascal, rocm70 or cpu. [default: here]"
)
@option("--revision", default=DEFAULT_REVISION, help="Branch, tag or commit.")
@click.option("-n", "--dry-run", is_flag=True, help="Print exactly what would run, and run nothing.")
@as_json("The model (or the plan)")
@quiet("Hide the progress.")
def fetch(model: str, image: str | None, revision: str, dry_run: bool, as_json: bool, quiet: bool) -> None:
    """Download a model from the Hub into the cache that steps read. Measuring itself is offline.

    \b
    lab fetch BioMistral/BioMistral-7B --image cuda      in the image: this environment needs no torch
    lab fetch BioMistral/BioMistral-7B                   with this environment's huggingface_hub
    HF_TOKEN=... lab fetch ORGANISATION/GATED-MODEL      only this command is given the token
    Exit code 4: no such model, or it needs a token; 8: the Hub does not answer; 9: the disk is full.
    """
    from lab.driver.fetch import fetch as download

    check_hub_id(model, revision)
    options = Options(image=image, gpus="none", dry_run=dry_run, json=as_json, quiet=quiet)
    download(model, revision, options)
