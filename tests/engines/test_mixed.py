"""Each step goes to the engine of its image, and what cannot run is refused before the first one."""

from __future__ import annotations

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord, Lab
from lab.core.options import Options
from lab.core.plan import Site
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step
from lab.core.stop import Stop
from lab.engines import engine_for, mixed
from lab.engines.docker.engine import DockerEngine
from lab.engines.local.engine import LocalEngine
from lab.engines.mixed import MixedEngine
from lab.errors import EngineError, GpuError, UsageError
from lab.gpus.discover import Found
from tests.core.test_manifest import a_manifest

OK = Outcome(status=Status.ok)
TWO = tuple(Gpu(vendor="nvidia", index=n, uuid=f"GPU-{n}") for n in range(2))


class StandIn:
    """An engine that remembers what it was asked."""

    def __init__(self, name: str, used: str = "image") -> None:
        self.name, self.used, self.ran = name, used, []

    def run(self, run, step, gpus, *, on_line, stop):
        self.ran.append(step.name)
        return OK

    def attach(self, run, step, *, on_line, stop):
        return msgspec.structs.replace(OK, reason=f"followed by {self.name}")

    def provenance(self, run_dir, gpus):
        return ImageRecord(name=self.name, ref=f"local/{self.name}", id=f"sha256:{self.name}"), {"uid": 7}

    def lab_used(self, ours):
        return self.used

    def gpus_in_use(self):
        return {f"GPU-of-{self.name}"}

    def notes(self, gpus):
        return ("the same note",)


def a_step(name: str, image: str | None) -> Step:
    return Step(name=name, argv=("true",), folder=name, image=image)


def test_a_step_runs_and_is_followed_in_its_own_image(tmp_path):
    steps = [a_step("here", None), a_step("a", "cpu"), a_step("b", "cuda")]
    run = Run.create(tmp_path / "r", a_manifest(*steps))
    base, cpu, cuda = StandIn("here"), StandIn("cpu"), StandIn("cuda")
    engine = MixedEngine(base, {"cpu": cpu, "cuda": cuda})
    for step in steps:
        assert engine.run(run, step, (), on_line=print, stop=Stop()).ok
    assert (base.ran, cpu.ran, cuda.ran) == (["here"], ["a"], ["b"])
    assert engine.attach(run, steps[2], on_line=print, stop=Stop()).reason == "followed by cuda"
    assert engine.gpus_in_use() == {"GPU-of-here", "GPU-of-cpu", "GPU-of-cuda"}
    assert engine.notes(()) == ("the same note",)
    with pytest.raises(EngineError, match="rocm70"):
        engine.run(run, a_step("c", "rocm70"), (), on_line=print, stop=Stop())


def test_every_image_is_recorded_and_its_containers():
    engine = MixedEngine(StandIn("base"), {"cpu": StandIn("cpu"), "cuda": StandIn("cuda")})
    assert [one.id for one in engine.further_images("/r", ())] == ["sha256:cpu", "sha256:cuda"]
    image, container = engine.provenance("/r", ())
    assert image.name == "base" and container == {
        "uid": 7,
        "of_images": {"cpu": {"uid": 7}, "cuda": {"uid": 7}},
    }


@pytest.mark.parametrize(
    "used, said",
    [(("image", "image"), "image"), (("copy", "image"), "mounted"), (("image", "mounted"), "mounted")],
)
def test_the_runs_copy_of_lab_is_used_unless_all_find_it_in_their_image(used, said):
    engine = MixedEngine(StandIn("base", used[0]), {"cpu": StandIn("cpu", used[1])})
    assert engine.lab_used(Lab(version="0")) == said


@pytest.mark.parametrize(
    "flags, engine",
    [
        ({}, "LocalEngine"),
        ({"image": "cpu"}, "DockerEngine"),
        ({"images": ("cpu",)}, "MixedEngine"),
        ({"image": "cuda", "images": ("cpu",)}, "MixedEngine"),
        ({"engine": "local", "images": ("cpu",)}, "MixedEngine"),
        ({"engine": "slurm", "images": ("cpu",)}, "SlurmEngine"),
    ],
)
def test_images_of_steps_ask_for_the_mixed_engine_of_this_machine(flags, engine):
    assert engine_for(Options(**flags)).__name__ == engine


def prepared(monkeypatch, here: Site, **of_image: Site):
    monkeypatch.setattr(LocalEngine, "prepare", lambda options: (here, StandIn("here")))
    monkeypatch.setattr(DockerEngine, "prepare", lambda options: (of_image[options.image], StandIn("x")))
    return MixedEngine.prepare(Options(images=tuple(of_image)))


def test_cells_that_would_not_have_the_same_gpus_are_refused(monkeypatch):
    with_gpus = Site(vendor="nvidia", gpus=TWO)
    site, _ = prepared(monkeypatch, with_gpus, cuda=with_gpus)
    assert site.gpus == TWO
    with pytest.raises(GpuError, match="would not have the same GPUs") as error:
        prepared(monkeypatch, with_gpus, cuda=with_gpus, cpu=Site(vendor="none"))
    assert "--gpus none" in str(error.value)
    with pytest.raises(GpuError, match="would not have the same GPUs"):
        prepared(monkeypatch, with_gpus, cuda=Site(vendor="nvidia", gpus=TWO[:1]))


def test_a_dry_run_without_gpus_shows_the_placeholders_of_the_image(monkeypatch):
    assumed = Site(vendor="nvidia", gpus=TWO, resolved=False)
    site, _ = prepared(monkeypatch, Site(vendor="none"), cuda=assumed)
    assert site is assumed


def test_an_image_for_gpus_that_are_not_here_is_an_error_before_the_first_step(monkeypatch):
    for engine in ("docker.host", "local.engine"):
        monkeypatch.setattr(f"lab.engines.{engine}.look", lambda: Found([]))
    with pytest.raises(GpuError, match="needs nvidia GPUs and none was found"):
        MixedEngine.prepare(Options(images=("cpu", "cuda")))


def test_a_run_goes_on_with_the_images_that_it_names(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(LocalEngine, "prepare", lambda options: (Site(vendor="none"), StandIn("here")))

    def of_image(options):
        asked.append((options.image, options.gpus, options.host_lab))
        return Site(vendor="none"), StandIn(options.image)

    monkeypatch.setattr(mixed.DockerEngine, "prepare", of_image)
    manifest = a_manifest(a_step("a", "cpu"))
    manifest.images = (ImageRecord(name="cpu", ref="local/cpu", id="sha256:cpu"),)
    manifest.lab = Lab(version="0", used="mounted")
    _, engine = MixedEngine.restore(Run.create(tmp_path / "r", manifest), Options())
    assert set(engine.by_image) == {"cpu"} and asked == [("cpu", "none", "mount")]


def test_a_run_does_not_go_on_with_another_content_of_an_image_that_cells_name(tmp_path):
    from lab.driver.comparable import same_images

    manifest = a_manifest(a_step("a", "cpu"))
    manifest.images = (ImageRecord(name="cpu", ref="local/cpu", id="sha256:older"),)
    run = Run.create(tmp_path / "r", manifest)
    with pytest.raises(UsageError, match="this run began with another image") as error:
        engine = MixedEngine(StandIn("here"), {"cpu": StandIn("cpu")})
        same_images(run, engine.provenance("r", ())[0], engine.further_images("r", ()))
    assert "docker tag sha256:older local/cpu" in str(error.value)
