"""Steps in containers: one container per step, with what lab.images.container decides and nothing else.

Plans and dry runs import this module, so the Docker SDK is imported only where the engine is called.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from lab.core.content import EXPECTED
from lab.core.gpu import IMAGE_ID, Gpu
from lab.core.manifest import ImageRecord, Lab, Used
from lab.core.options import HostLab, Options
from lab.core.plan import Site
from lab.core.run import Run
from lab.core.snapshot import import_path, take_snapshot
from lab.core.step import Outcome, Step
from lab.core.stop import Stop
from lab.engines.base import Engine, OnLine, Provenance
from lab.engines.docker.client import UNLIMITED, Nature, ask, how_gpus_reach
from lab.engines.docker.host import host_context, site_for
from lab.engines.docker.leftovers import container_name, fingerprint, make_labels
from lab.engines.docker.refusals import allowed, check_mount, check_run_folder, checked
from lab.engines.docker.which_lab import ImageRecords, choose, with_lab
from lab.engines.output import LogWriter
from lab.engines.verdict import oom_kills, oom_kills_since, outcome_of
from lab.errors import EngineError, UsageError
from lab.gpus.environment import passage, relevant_env
from lab.images import spec as images
from lab.images.container import ContainerSpec, analysis_spec, container_spec, fetch_spec
from lab.images.docker_cli import endpoint_of, id_of, listed
from lab.images.foreign import image_of, mount_text
from lab.images.spec import Image
from lab.secrets import redact_env, secret_values

if TYPE_CHECKING:
    from lab.engines.docker.client import Daemon
    from lab.engines.docker.errors import Context

GRACE_S = 10.0
ANALYSIS_IMAGE = "cpu"
PREVIEW_TIMEOUT_S = 30  # under load an engine is slow; a plan does not wait for one that hangs
SELINUX = "SELinux is on: steps run with label=disable, because labels would be changed on your own folders"
UNKNOWN_ENGINE = "no Docker engine answers: the plan assumes one that is not rootless and has no CDI"


class DockerEngine(Engine):
    """Runs steps in containers of one image. Safe for the driver's threads, which share one client."""

    name = "docker"

    def __init__(
        self,
        image: Image,
        *,
        grace_s: float = GRACE_S,
        host_lab: HostLab = "auto",
        analysed_in_image: bool = True,
        daemon: Callable[[], Daemon] | None = None,
    ) -> None:
        self.image, self.host_lab, self._analysed_in_image = image, host_lab, analysed_in_image
        self.grace_s = grace_s
        self._connect = daemon
        self._mutex = threading.Lock()
        self._daemon: Daemon | None = None
        self._images = ImageRecords(image, self.daemon)

    @classmethod
    def prepare(cls, options: Options) -> tuple[Site, Engine]:
        if options.image is None:
            raise UsageError("the docker engine needs an image", fix=f"--image {'|'.join(images.names())}")
        image = _image(options)
        for mount in image.user_mounts[image.is_foreign :]:
            check_mount(mount)
        policy: HostLab = "mount" if image.is_foreign else options.host_lab
        in_image = options.analysis == "auto" and not (image.is_foreign and not cpu_image_is_here())
        return site_for(image, options), cls(image, host_lab=policy, analysed_in_image=in_image)

    def run(self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: OnLine, stop: Stop) -> Outcome:
        host = host_context(str(run.root.absolute()), gpus, self.daemon())
        spec = with_lab(container_spec(self.image, step, gpus, host), run, step, self.image)
        return self.run_spec(run, step, spec, gpus, on_line=on_line, stop=stop)

    def fetch(self, run: Run, step: Step, *, stdin: bytes, on_line: OnLine, stop: Stop) -> Outcome:
        host = host_context(str(run.root.absolute()), (), self.daemon())
        spec = with_lab(fetch_spec(self.image, step, host), run, step, self.image)
        return self.run_spec(run, step, spec, stdin=stdin, on_line=on_line, stop=stop)

    def run_spec(
        self,
        run: Run,
        step: Step,
        spec: ContainerSpec,
        gpus: Sequence[Gpu] = (),
        *,
        stdin: bytes | None = None,
        on_line: OnLine,
        stop: Stop,
    ) -> Outcome:
        """Run a container of this `spec` under the name and labels of the run's step.

        stdin: what it reads there; neither the engine nor any disk keeps it.
        """
        from lab.engines.docker import container as containers
        from lab.engines.docker.follow import Watch

        daemon = self.daemon()
        spec = allowed(daemon, checked(spec))
        context = self._context(daemon, run, step, spec.image, gpus)
        # By content id: all steps of a run get one image, even if its name is moved to a newer one meanwhile.
        image_id = str(self.image_record(spec.image).id)
        exact = msgspec.structs.replace(spec, image=image_id, env={**spec.env, IMAGE_ID: image_id})
        kills_before = oom_kills()
        with LogWriter(run.log(step), on_line) as log:
            container, warnings = containers.start(
                daemon,
                exact,
                stdin=stdin,
                name=container_name(run, step),
                context=context,
                labels=make_labels(run, step, gpus),
            )
            log.write(f"lab: {warning}" for warning in warnings)
            watch = Watch(daemon, container, log, context, kills_before)
            ending = watch.collect(step, stop, grace_s=self.grace_s)
        kills = oom_kills_since(kills_before) if ending.exit_code else 0  # else they were other containers'
        return outcome_of(run, step, log, dataclasses.replace(ending, oom_kills=kills))

    def attach(self, run: Run, step: Step, *, on_line: OnLine, stop: Stop) -> Outcome | None:
        """Its log is written again from its first line, so the caller must not `begin` the step again."""
        from lab.engines.docker.container import remove
        from lab.engines.docker.follow import Watch, running_for
        from lab.engines.docker.leftovers import leftovers

        daemon = self.daemon()
        containers = leftovers(run_dir=run.root, step=step.name, daemon=daemon)
        if not containers:
            return None
        leftover, context = containers[-1], self._context(daemon, run, step)
        if leftover.fingerprint != fingerprint(run, step):
            raise EngineError(
                f"the container of step {step.name!r} was started for another configuration",
                location=leftover.name,
                fix=f"end it first: lab runs stop {run.root}",
            )
        ran_s = running_for(daemon.client, leftover.container, context)
        if ran_s is None:  # its driver died before it could start it
            remove(daemon.client, leftover.container)
            return None
        with LogWriter(run.log(step), on_line) as log:
            watch = Watch(daemon, leftover.container, log, context, oom_kills())
            ending = watch.collect(step, stop, grace_s=self.grace_s, ran_s=ran_s)
        return outcome_of(run, step, log, ending)

    def image_record(self, ref: str | None = None) -> ImageRecord:
        """Which image the steps run in. Raises EngineError when the engine does not have it."""
        return self._images.of(ref)

    def env_given(self, env: Mapping[str, str]) -> dict[str, str]:
        inside = [mount.target for mount in self.image.user_mounts]
        return relevant_env({**passage(env, inside=inside).passed, **self.image.env})

    def gpus_in_use(self) -> set[str]:
        """The UUIDs of GPUs that running containers of lab use, whether or not their drivers live."""
        from lab.engines.docker.leftovers import leftovers

        return {uuid for left in leftovers(daemon=self.daemon()) if left.running for uuid in left.gpus}

    @classmethod
    def end_leftovers(cls, run: Run) -> list[str]:
        from lab.engines.docker.leftovers import stop_run

        return [f"stopped {left.name} (step {left.step})" for left in stop_run(run.root)]

    def version(self) -> str | None:
        version = self.daemon().client.version()
        name = (version.get("Components") or [{}])[0].get("Name", "Engine")
        name = "Docker Engine" if name == "Engine" else name
        return f"{name} {version['Version']}, API {version['ApiVersion']}"

    def lab_used(self, lab: Lab) -> Used:
        """Check the analysis image too, so that an analysis that could not run is refused before any step."""
        if (analysis_image := self.analysis_image()) is not None:
            choose(lab, analysis_image, self.host_lab)
        return "mounted" if choose(lab, self._images.with_lab_inside(), self.host_lab) else "image"

    def analysis_image(self) -> ImageRecord | None:
        if not self._analysed_in_image:
            return None
        return self._images.with_lab_inside(images.load(ANALYSIS_IMAGE).ref)

    def run_analysis(self, run: Run, step: Step, lab: Lab, *, on_line: OnLine, stop: Stop) -> Outcome:
        staging = str((run.root / step.folder / "out").absolute())
        host = host_context(staging, (), self.daemon())
        spec = analysis_spec(images.load(ANALYSIS_IMAGE), host, inputs=str(run.root.absolute()))
        env = {**spec.env, EXPECTED: str(lab.sha256)}
        record = self.analysis_image()
        if record and choose(lab, record, self.host_lab):
            take_snapshot(run.root, lab)
            env["PYTHONPATH"] = import_path(str(lab.sha256), "/in")
        spec = msgspec.structs.replace(spec, env=env)
        return self.run_spec(run, step, spec, on_line=on_line, stop=stop)

    def provenance(self, run_dir: str, gpus: Sequence[Gpu]) -> Provenance:
        """The image by its content, and the identity and mounts that every container of the run gets."""
        check_run_folder(run_dir)
        host = host_context(run_dir, gpus, self.daemon())
        spec = container_spec(self.image, Step(name="any", argv=("python",)), gpus, host)
        user_mounts = self.image.user_mounts[self.image.is_foreign :]
        return self._images.with_lab_inside(), {
            "uid": host.uid,
            "gid": host.gid,
            "user": spec.user,
            "user_mapping": host.user_mapping,
            "groups": list(spec.group_add),
            "network": spec.network_mode,
            "mounts": [msgspec.to_builtins(mount) for mount in spec.mounts],
            **({"user_mounts": [mount_text(m) for m in user_mounts]} if user_mounts else {}),
            **({"vendor": self.image.vendor} if self.image.is_foreign else {}),
        }

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        host = host_context(run_dir, gpus, self._nature)
        return _shown(container_spec(self.image, step, gpus, host))

    def notes(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        nature = self._nature
        outside = passage(os.environ, inside=[mount.source for mount in self.image.user_mounts]).notes
        if nature is None:
            return (*outside, UNKNOWN_ENGINE)
        notes = [*outside, *([] if nature.limits else [UNLIMITED]), *([SELINUX] if nature.selinux else [])]
        state, detail = how_gpus_reach(nature, gpus) if gpus else ("ok", "")
        return (*notes, *([f"GPUs may not reach the containers: {detail}"] if state == "warn" else []))

    def preview_fetch(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        return _shown(fetch_spec(self.image, step, host_context(run_dir, gpus, self._nature)))

    def daemon(self) -> Daemon:
        """The connection to the engine, made once."""
        with self._mutex:
            if self._daemon is None:
                from lab.engines.docker.client import connect

                self._daemon = (self._connect or connect)()
            return self._daemon

    @cached_property
    def _nature(self) -> Nature | None:
        """Asked once per plan, without Docker's SDK; a plan is shown without an engine, too."""
        return self._connect() if self._connect else ask(endpoint_of(os.environ), PREVIEW_TIMEOUT_S)

    def _context(
        self, daemon: Daemon, run: Run, step: Step, ref: str = "", gpus: Sequence[Gpu] = ()
    ) -> Context:
        from lab.engines.docker.errors import Context

        return Context(
            endpoint=daemon.endpoint,
            image=self.image.name,
            ref=ref,
            step=step.name,
            run_dir=str(run.root),
            driver=next((gpu.driver for gpu in gpus if gpu.driver), ""),
        )


def _image(options: Options) -> Image:
    """The image of the flags; a dry run guesses by its name what no engine here can say."""
    flags: dict[str, Any] = {"vendor": options.vendor, "mounts": options.mounts}
    try:
        return image_of(str(options.image), **flags, mounts_deps=not options.dry_run)
    except EngineError:
        if not options.dry_run:
            raise
        return image_of(str(options.image), **flags, looks=False)


def cpu_image_is_here() -> bool:
    """Whether a run in an image of the caller's own can be analysed in lab's."""
    try:
        return id_of(images.load(ANALYSIS_IMAGE).ref, listed()) is not None
    except EngineError:
        return False


def _shown(spec: ContainerSpec) -> dict[str, object]:
    """The spec as plain data, secrets redacted."""
    return {**msgspec.to_builtins(spec), "env": redact_env(spec.env, secret_values())}
