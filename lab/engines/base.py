"""The small protocol behind which every engine stands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from lab.core.manifest import ImageRecord
from lab.core.run import Run
from lab.core.step import Outcome, Step
from lab.engines.gpus import Gpu
from lab.engines.stop import Stop


class Engine(Protocol):
    """What lab asks of an engine. `run` blocks until the step has ended and its processes are gone."""

    name: str

    def run(
        self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: Callable[[str], None], stop: Stop
    ) -> Outcome:
        """Run one step on these GPUs. When `stop` is set: end it gracefully and say `interrupted`.

        Raises EngineError where the engine itself fails; a step that fails is an Outcome.
        """
        ...

    def attach(self, run: Run, step: Step, *, on_line: Callable[[str], None], stop: Stop) -> Outcome | None:
        """Take up what an earlier driver left of this step, running or ended; None if there is nothing."""
        ...

    def gpus_in_use(self) -> Collection[str]:
        """UUIDs of GPUs that steps without a living driver still use."""
        ...

    def provenance(
        self, run_dir: str, gpus: Sequence[Gpu]
    ) -> tuple[ImageRecord | None, dict[str, Any] | None]:
        """The image that runs, and what every container of it gets (uid, gid, mounts); raises if it is not here."""
        ...

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        """Exactly what `run` would start, as plain data. Touches nothing."""
        ...


@runtime_checkable
class QueueEngine(Protocol):
    """An engine with a scheduler of its own: it takes all steps at once and decides itself when each runs."""

    def run_all(
        self,
        run: Run,
        steps: Sequence[Step],
        *,
        jobs: int,
        on_line: Callable[[Step], Callable[[str], None]],
        stop: Stop,
    ) -> Iterator[tuple[Step, Outcome]]:
        """Submit `steps`, at most `jobs` of them at a time; yield each with its outcome as it ends."""
        ...
