"""Network namespaces that the steps of a run share, one step at a time.

Making a namespace is half the price of a container. So a sleeping container without network holds one, and
each step's container joins it: the step sees `lo` and nothing else, as in a namespace of its own. Steps that
run side by side get one holder each, because they would meet on the loopback.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import docker

from lab.engines.docker import container as containers
from lab.engines.docker.errors import Context
from lab.errors import EngineLost, LabError
from lab.images.container import ContainerSpec, holder_spec, joined

Started = tuple[str, list[str]]  # the id of a container, and warnings
ATTEMPTS = 2  # to join, before a step gets a namespace of its own
GONE = "the container that held the step's network namespace was gone; the step was started anew"
OWN = "each step gets a network namespace of its own from here on"


@dataclass(frozen=True)
class Holder:
    """A running holder, and the connection with which it ends: a driver that dies leaves none behind."""

    container: str
    image: str
    wire: Any


class Holders:
    """The holders of one run and one driver. Safe for the driver's threads."""

    def __init__(
        self, client: docker.APIClient, *, run: str, labels: Mapping[str, str], context: Context
    ) -> None:
        self._client, self._run, self._labels, self._context = client, run, labels, context
        self._mutex = threading.Lock()
        self._idle: list[Holder] = []
        self._broken = False  # one could not be made: no further attempts

    @contextlib.contextmanager
    def around(self, spec: ContainerSpec, start: Callable[[ContainerSpec], Started]) -> Iterator[Started]:
        """Start `spec` in a namespace that no other step uses within this block; -> what `start` says.

        Where no holder can be had it gets one of its own, and a warning says so.
        """
        holder, started = self._start(spec, start)
        try:
            yield started
        except EngineLost:  # the step may still run, so no other may join it
            self._end(holder)
            raise
        except BaseException:
            self._put(holder)
            raise
        self._put(holder)

    def close(self) -> None:
        """End all that no step uses."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for holder in idle:
            self._end(holder)

    def _start(
        self, spec: ContainerSpec, start: Callable[[ContainerSpec], Started]
    ) -> tuple[Holder | None, Started]:
        warnings: list[str] = []
        for _ in range(ATTEMPTS):
            holder = self._take(spec, warnings)
            if holder is None:
                break
            try:
                container, more = start(joined(spec, holder.container))
            except EngineLost:
                self._end(holder)
                raise
            except LabError:
                if containers.runs(self._client, holder.container, self._context):
                    self._put(holder)
                    raise
                self._end(holder)
                warnings.append(GONE)
            else:
                return holder, (container, [*warnings, *more])
        else:
            self._broken = True
            warnings.append(OWN)
        container, more = start(spec)
        return None, (container, [*warnings, *more])

    def _take(self, spec: ContainerSpec, warnings: list[str]) -> Holder | None:
        """An idle holder, or a new one; None, and a warning, if there can be none."""
        with self._mutex:
            found = next((one for one in self._idle if one.image == spec.image), None)
            if found:
                self._idle.remove(found)
            if found or self._broken:
                return found
        try:
            return self._make(spec)
        except EngineLost:
            raise
        except LabError as error:
            self._broken = True
            warnings.append(f"{OWN}: {error.what}")
            return None

    def _make(self, spec: ContainerSpec) -> Holder:
        container, wire = containers.start_waiting(
            self._client,
            holder_spec(spec),
            name=f"lab-{self._run}-net-{uuid.uuid4().hex[:12]}",
            labels=self._labels,
            context=self._context,
        )
        return Holder(container, spec.image, wire)

    def _put(self, holder: Holder | None) -> None:
        if holder:
            with self._mutex:
                self._idle.append(holder)

    def _end(self, holder: Holder | None) -> None:
        """The end of its input ends it, and the engine removes it; asked twice, it forgets neither."""
        if holder is None:
            return
        with contextlib.suppress(OSError):
            getattr(holder.wire, "_sock", holder.wire).shutdown(socket.SHUT_RDWR)
            holder.wire.close()
        containers.remove(self._client, holder.container)
