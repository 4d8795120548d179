"""The protocol behind which every engine stands."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord, Lab, Used, refuse_change
from lab.core.options import Options
from lab.core.plan import Site
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step, utc_now
from lab.core.stop import Stop
from lab.errors import GpuError, UsageError
from lab.gpus.environment import relevant_env

OnLine = Callable[[str], None]
Provenance = tuple[ImageRecord | None, dict[str, Any] | None]  # the image, and what its containers get


class Engine(abc.ABC):
    """What lab asks of an engine. The defaults are those of one whose steps cannot outlive their driver."""

    name: str
    runs_here: bool = (
        True  # whether its steps are processes of this machine: they hold its GPUs, read its caches
    )
    say: Callable[[str], None] = staticmethod(lambda _: None)  # set by the driver: a line for the person

    # From flags or a manifest to an engine

    @classmethod
    @abc.abstractmethod
    def prepare(cls, options: Options) -> tuple[Site, Engine]:
        """The GPUs that steps will get and the engine that runs them. Starts nothing.

        Raises GpuError for a GPU that is not present, UsageError where the flags do not fit the engine.
        """

    @classmethod
    def restore(cls, run: Run, options: Options) -> tuple[Site, Engine]:
        """The same for an earlier run that continues, with its image and its GPUs.

        Raises GpuError where those GPUs cannot be had, UsageError for other ones: the manifest names one set.
        """
        manifest = run.manifest
        uuids = ",".join(gpu.uuid for gpu in manifest.gpus) or "none"
        flags: dict[str, Any] = {
            "image": manifest.image.name if manifest.image else None,
            "images": tuple(record.name for record in manifest.images),
            "engine": cls.name,
            "gpus": uuids if options.gpus == "all" else options.gpus,
        }
        container = manifest.container or {}
        flags |= {"mounts": tuple(container.get("user_mounts", ())), "vendor": container.get("vendor")}
        if manifest.lab.used == "mounted" and options.host_lab == "auto":
            flags["host_lab"] = "mount"  # it began with this host's lab in its images
        try:
            site, engine = cls.prepare(msgspec.structs.replace(options, **flags))
        except GpuError as error:
            raise GpuError(
                f"the run goes on only with the GPUs that it began with: {error.problem}",
                location=error.location,
                fix="make them visible again, or start a new run",
            ) from error
        refuse_other_gpus(manifest.gpus, site.gpus)
        return site, engine

    # Steps

    @abc.abstractmethod
    def run(self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: OnLine, stop: Stop) -> Outcome:
        """Run one step on these GPUs until it has ended and its processes are gone.

        When `stop` is set: end it gracefully, as `interrupted`. A step that fails is an Outcome; raises
        EngineError where the engine itself fails.
        """

    @abc.abstractmethod
    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        """Exactly what `run` would start, as plain data. Touches nothing."""

    def fetch(self, run: Run, step: Step, *, stdin: bytes, on_line: OnLine, stop: Stop) -> Outcome:
        """Run one step that downloads: with the network and a writable cache of models, without GPUs.

        stdin: what the step reads there (the token). It must be written to no file, log or record.
        """
        raise UsageError(
            f"the {self.name} engine does not download", fix="lab fetch MODEL, with --image NAME or without"
        )

    def notes(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        """Sentences for the plan if these GPUs may not reach its steps."""
        return ()

    def preview_fetch(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        """Exactly what `fetch` would start, as plain data, without its input."""
        return self.preview(step, gpus, run_dir=run_dir)

    def provenance(self, run_dir: str, gpus: Sequence[Gpu]) -> Provenance:
        """The image, and what its containers get (uid, gid, mounts). Raises EngineError if it is not here."""
        return None, None

    def further_images(self, run_dir: str, gpus: Sequence[Gpu]) -> tuple[ImageRecord, ...]:
        """The images that steps name themselves. Raises EngineError if one is not here."""
        return ()

    def version(self) -> str | None:
        """The engine's own version, for the manifest; None if it is part of lab."""
        return None

    def lab_used(self, lab: Lab) -> Used | None:
        """Which copy of this host's `lab` the steps import; None if no step is a process.

        Raises UsageError where the steps would import another lab than this one.
        """
        return "copy"

    def gpus_seen(self, run: Run) -> tuple[Gpu, ...]:
        """The GPUs that the steps really had, once they have run."""
        return run.manifest.gpus

    def image_seen(self, run: Run) -> ImageRecord | None:
        """The image that the steps really ran in, once they have run."""
        return run.manifest.image

    def env_given(self, env: Mapping[str, str]) -> dict[str, str]:
        """Which of the caller's variables of GPU work steps get, secrets redacted."""
        return relevant_env(env)

    # What an earlier driver left

    def attach(self, run: Run, step: Step, *, on_line: OnLine, stop: Stop) -> Outcome | None:
        """Follow what an earlier driver left of this step, running or ended; None if there is nothing."""
        return None

    def lost(self, run: Run, step: Step) -> Outcome:
        """The outcome of a step that had begun and left nothing."""
        return Outcome(status=Status.failed, reason="ended without an outcome", started_utc=utc_now())

    def gpus_in_use(self) -> Collection[str]:
        """UUIDs of GPUs that steps without a living driver still use."""
        return ()

    @classmethod
    def end_leftovers(cls, run: Run) -> list[str]:
        """End everything of this run that still runs; -> one sentence per thing ended."""
        return []

    # Without a driver

    def leave(self, run: Run, steps: Sequence[Step], *, jobs: int, finish: Callable[[], None]) -> str:
        """Start `steps` and return while they run; `finish` is called after the last. -> what was started.

        Of an engine whose steps are not processes of this machine.
        """
        raise NotImplementedError

    @classmethod
    def has_jobs(cls, run: Run) -> bool:
        """Whether jobs of a scheduler work on this run without a driver."""
        return False

    # Analysis

    def analysis_image(self) -> ImageRecord | None:
        """The image in which `run_analysis` analyses this engine's runs; None: this process analyses them."""
        return None

    def run_analysis(self, run: Run, step: Step, lab: Lab, *, on_line: OnLine, stop: Stop) -> Outcome:
        """Run this host's `lab analyze` on the run, read-only; results go below /out in the step's folder."""
        raise NotImplementedError


def refuse_other_gpus(recorded: Sequence[Gpu], present: Sequence[Gpu]) -> None:
    """Raises UsageError for GPUs, or a driver of them, that are not those that a run's manifest names."""
    texts = (
        ", ".join(sorted(f"{gpu.uuid} (driver {gpu.driver or 'unknown'})" for gpu in gpus)) or "no GPU"
        for gpus in (recorded, present)
    )
    fix = "start a new run, in another --output-dir"
    refuse_change("other GPUs, or another driver", *texts, fix=fix)


@runtime_checkable
class QueueEngine(Protocol):
    """An engine with a scheduler of its own: it takes all steps at once and decides itself when each runs."""

    def run_all(
        self, run: Run, steps: Sequence[Step], *, jobs: int, on_line: Callable[[Step], OnLine], stop: Stop
    ) -> Iterator[tuple[Step, Outcome]]:
        """Submit `steps`, at most `jobs` of them at a time; yield each with its outcome as it ends."""
        ...
