"""`lab fetch`: download a model into the cache that steps read. The only step with the network and the token.

The token travels on the step's standard input: no file, variable, label or record holds it, so that none is
left when this process is killed. A download in a container then goes on; `lab runs reap --running` ends it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.core.options import Options
from lab.core.plan import Plan
from lab.core.run import Run
from lab.core.step import Outcome, Step
from lab.core.stop import Stop, on_signals
from lab.core.words import size_text
from lab.driver.drive import first_manifest, prepare_lab
from lab.driver.show import show_plan
from lab.engines import engine_for
from lab.engines.base import Engine
from lab.errors import EngineError, Interrupted, LabError, StepFailed, UsageError
from lab.hub import CERTIFICATES, CachedModel, fetch_command, find_model, hub_cache
from lab.images.container import HUB_CACHE, network_settings
from lab.secrets import hub_token
from lab.terminal.console import Console

STEP = "fetch"


def fetch(model: str, revision: str, options: Options) -> None:
    """Download one model with the engine that the flags ask for, and say what the cache has then.

    Raises the error that the download ended with: MissingError, NetworkError, StorageError, ...
    """
    site, engine = engine_for(options).prepare(options)
    step = Step(name=STEP, argv=("python", "-m", "lab.workload.fetch", model, revision), folder=STEP)
    names = sorted(json.loads(settings(os.environ))["env"])
    cached = msgspec.to_builtins(find_model(model, hub_cache(), revision))
    config = {"revision": revision, "cache": str(hub_cache()), "cached": cached, "stdin": names}
    notes = (
        f"in {hub_cache()} now: {cached['state']} {cached['commit']}".rstrip(),
        f"on standard input: {', '.join(names) or 'no token, no proxy'}",
    )
    plan = Plan(steps=(step,), config=config, notes=notes)
    if options.dry_run:
        root = Path(tempfile.gettempdir()) / "lab-fetch" / STEP
        show_plan(STEP, plan, site, engine, root, options, engine.preview_fetch)
        return
    console, lines = Console(quiet=options.quiet), list[str]()
    with tempfile.TemporaryDirectory(prefix="lab-fetch-") as folder, on_signals(console.say) as stop:
        root = Path(folder) / STEP
        run = Run.create(root, first_manifest(STEP, plan, site, engine, root))
        outcome = _download(engine, run, lines, stop, console)
    if stop.is_set():
        fix = f"{fetch_command(model, options.image)} goes on where it stopped"
        raise Interrupted("interrupted; what is downloaded is kept", fix=fix)
    raise_for(outcome, lines)
    show_model(find_model(model, hub_cache(), revision), options, console)


def settings(env: Mapping[str, str]) -> bytes:
    """Encode what the step reads on its standard input: network, certificates and the Hub's token."""
    token = hub_token(env)
    if token and not re.fullmatch(r"[!-~]+", token):
        raise UsageError(
            "the token for the Hub has a line break, a blank or another character that no token has",
            location="HF_TOKEN, or the file of the Hub's login",
            fix="set it to the token alone, such as HF_TOKEN=$(cat FILE)",
        )
    variables = {**network_settings(env), **({"HF_TOKEN": token} if token else {})}
    # As text, because a container does not have the file.
    path = next((Path(env[name]) for name in CERTIFICATES if env.get(name)), None)
    pem = path.read_text(encoding="utf-8", errors="replace") if path and path.is_file() else None
    return json.dumps({"env": variables, "certificates": pem}).encode()


def _download(engine: Engine, run: Run, lines: list[str], stop: Stop, console: Console) -> Outcome:
    def on_line(line: str) -> None:
        lines.append(line)
        if not line.startswith("{"):  # the last line is for this process
            console.detail(f"  {line}")

    step = run.manifest.steps[0].step
    prepare_lab(run, engine)
    run.begin(step)
    outcome = engine.fetch(run, step, stdin=settings(os.environ), on_line=on_line, stop=stop)
    run.finish(step, outcome)
    return outcome


def raise_for(outcome: Outcome, lines: list[str]) -> None:
    """Raise the error that the download printed; exit code 0 needs its last line to say that it is done."""
    line = next((line for line in reversed(lines) if line.startswith("{")), "{}")
    try:
        answer = msgspec.json.decode(line, type=Answer)
    except msgspec.DecodeError:
        answer = Answer()  # not its own line: the outcome and its last lines say what happened
    if answer.error is not None:
        failure = answer.error
        # A container sees the cache under a path of its own.
        location = str(hub_cache()) if failure.location == HUB_CACHE else failure.location
        raise KINDS.get(failure.kind, LabError)(failure.problem, location=location, fix=failure.fix)
    if not outcome.ok or answer.fetched is None:
        words = "\n".join(f"  | {line}" for line in outcome.tail[-12:])
        raise StepFailed(f"the download {outcome.status.value}: {outcome.reason}\n{words}")


class Failure(msgspec.Struct):
    """An error of lab, as the download prints it."""

    kind: str
    problem: str
    location: str | None = None
    fix: str | None = None


class Answer(msgspec.Struct):
    """The download's last line."""

    fetched: dict[str, Any] | None = None
    error: Failure | None = None


KINDS = {kind.__name__: kind for kind in LabError.__subclasses__()}


def show_model(cached: CachedModel, options: Options, console: Console) -> None:
    """Show the result: for a person on stderr, for a machine on stdout."""
    if cached.is_missing:
        problem = f"{cached.model} was downloaded, but is {cached.state.value} in this machine's cache"
        raise EngineError(problem, location=hub_cache())
    console.say(f"✓ {cached.model} at {cached.commit[:12]}: {size_text(cached.size_bytes)} in {hub_cache()}")
    if options.json:
        print(json.dumps({**msgspec.to_builtins(cached), "cache": str(hub_cache())}))
