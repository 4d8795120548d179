"""Steps of one run in several images, or some in an image and others in this environment.

Every call goes to the engine of the step's image, on this machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord, Lab, Used
from lab.core.options import Options
from lab.core.plan import Site
from lab.core.run import Run
from lab.core.step import Outcome, Step
from lab.core.stop import Stop
from lab.engines.base import Engine, OnLine, Provenance
from lab.engines.docker.engine import DockerEngine
from lab.engines.local.engine import LocalEngine
from lab.errors import EngineError, GpuError


class MixedEngine(Engine):
    """One engine for steps that name no image, and a Docker engine for each image that steps name."""

    name = "mixed"

    def __init__(self, base: Engine, by_image: Mapping[str, Engine]) -> None:
        self.base, self.by_image = base, dict(by_image)

    @classmethod
    def prepare(cls, options: Options) -> tuple[Site, Engine]:
        """All images get the same GPUs, or none: else cells would differ in their GPUs, too."""
        alone = msgspec.structs.replace(options, images=(), engine=None)
        site, base = (DockerEngine if options.image else LocalEngine).prepare(alone)
        engines: dict[str, Engine] = {}
        for name in dict.fromkeys(options.images):
            flags = msgspec.structs.replace(alone, image=name, analysis="host")  # the base analyses the run
            image_site, engines[name] = DockerEngine.prepare(flags)
            site = _common_site(site, image_site, options.image or "this environment", name)
        return site, cls(base, engines)

    def of(self, step: Step) -> Engine:
        if step.image is None:
            return self.base
        if step.image not in self.by_image:
            raise EngineError(f"step {step.name!r} names an image that its run does not have: {step.image}")
        return self.by_image[step.image]

    @property
    def _all(self) -> list[Engine]:
        return [self.base, *self.by_image.values()]

    # Steps

    def run(self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: OnLine, stop: Stop) -> Outcome:
        return self.of(step).run(run, step, gpus, on_line=on_line, stop=stop)

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        return self.of(step).preview(step, gpus, run_dir=run_dir)

    def notes(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for engine in self._all for note in engine.notes(gpus)))

    # Provenance

    def provenance(self, run_dir: str, gpus: Sequence[Gpu]) -> Provenance:
        """`image` is that of steps that name none; the containers of the others are in `of_images`."""
        image, container = self.base.provenance(run_dir, gpus)
        of_images = {name: one.provenance(run_dir, gpus)[1] for name, one in self.by_image.items()}
        return image, {**(container or {}), "of_images": of_images}

    def further_images(self, run_dir: str, gpus: Sequence[Gpu]) -> tuple[ImageRecord, ...]:
        records = (engine.provenance(run_dir, gpus)[0] for engine in self.by_image.values())
        return tuple(record for record in records if record is not None)

    def version(self) -> str | None:
        return next(iter(self.by_image.values())).version()

    def lab_used(self, lab: Lab) -> Used:
        """The run's copy, unless every step finds the same lab in its image."""
        used = {engine.lab_used(lab) for engine in self._all}
        return "image" if used == {"image"} else "mounted"

    # What an earlier driver left

    def attach(self, run: Run, step: Step, *, on_line: OnLine, stop: Stop) -> Outcome | None:
        return self.of(step).attach(run, step, on_line=on_line, stop=stop)

    def gpus_in_use(self) -> Collection[str]:
        return {uuid for engine in self._all for uuid in engine.gpus_in_use()}

    @classmethod
    def end_leftovers(cls, run: Run) -> list[str]:
        return DockerEngine.end_leftovers(run)

    # Analysis

    def analysis_image(self) -> ImageRecord | None:
        return self.base.analysis_image()

    def run_analysis(self, run: Run, step: Step, lab: Lab, *, on_line: OnLine, stop: Stop) -> Outcome:
        return self.base.run_analysis(run, step, lab, on_line=on_line, stop=stop)


def _common_site(base_site: Site, image_site: Site, base_name: str, image_name: str) -> Site:
    """The GPUs of both. Raises GpuError if one of them would compute on other GPUs, or on none."""
    if not image_site.resolved:  # a dry run without GPUs: nothing to compare
        return image_site
    if not base_site.resolved and image_site.vendor != "none":
        return base_site
    if {gpu.uuid for gpu in base_site.gpus} != {gpu.uuid for gpu in image_site.gpus}:
        base, image = (", ".join(gpu.number for gpu in s.gpus) or "none" for s in (base_site, image_site))
        raise GpuError(
            f"steps in {base_name} and in the image {image_name!r} would not have the same GPUs",
            location=f"{base_name}: {base}; {image_name}: {image}",
            fix="--gpus none runs all of them on the CPU",
        )
    return image_site if image_site.gpus else base_site  # an image's GPUs have their names for containers
