"""The lab that a run measures with: chosen before the first step, kept to, and asked of every step."""

from __future__ import annotations

import msgspec

from lab.core.manifest import Lab, Manifest
from lab.core.run import Run, refuse_change
from lab.core.snapshot import imports_lab
from lab.core.step import Outcome, Status, Step


def hold_to(run: Run, identity: Lab) -> None:
    """Refuse to go on with a run that another lab began: its manifest names one lab for all its steps."""
    if run.manifest.lab.sha256 != identity.sha256:
        fix = "start a new run, or go back to that lab: its commit, or its version"
        refuse_change("another lab", described(run.manifest.lab), described(identity), fix=fix)


def named_in(manifest: Manifest) -> str | None:
    """A note where the steps do not import the image's own lab."""
    if manifest.lab.used != "mounted" or manifest.image is None:
        return None
    image, host_lab = manifest.image, described(manifest.lab)
    image_lab = f"content {image.lab_sha256[:12]}" if image.lab_sha256 else "none that was read"
    return (
        f"steps import this host's lab ({host_lab}), mounted read-only into {image.ref}, "
        f"not its own ({image_lab})"
    )


def checked(run: Run, step: Step, outcome: Outcome) -> Outcome:
    """A step that ended well but did not import the run's lab has measured something else: it failed."""
    expected, imported = run.manifest.lab, run.imported(step)
    if not outcome.ok or expected.used is None or not imports_lab(step) or imported == expected.sha256:
        return outcome
    reason = "the step did not report which lab it imported"
    if imported:
        reason = f"the step imported another lab: content {imported[:12]}"
    return msgspec.structs.replace(
        outcome, status=Status.failed, reason=f"{reason}; the run names {described(expected)}"
    )


def described(lab: Lab) -> str:
    """In a few words: version, commit, content."""
    parts = [lab.version, f"commit {lab.commit[:12]}" if lab.commit else "no commit"]
    parts += ["with local changes"] if lab.dirty else []
    parts += [f"content {lab.sha256[:12]}"] if lab.sha256 else []
    return ", ".join(parts)
