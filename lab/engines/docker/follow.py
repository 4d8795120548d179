"""A container followed to its end: its output from the first byte to the last, its limits, how it ended.

The daemon keeps both streams in one file in the order in which they came, so one connection delivers them
in that order. Following serves the live output only: a stream may break, hang on a container that ends fast
(docker/docker-py#3084), or (engine 20.10) end without a last line that has no newline. So the end of the log
is read once more after the container has ended. Entries that came already are skipped by count, not by time:
all pieces of one long line (such as a progress bar) carry the time of the first, and `since` would drop them.
The file is never rotated, so the count is exact.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound

from lab.core.step import Step
from lab.core.stop import Stop
from lab.engines.docker.client import Daemon
from lab.engines.docker.container import remove
from lab.engines.docker.errors import FAILURES, Context, lost, translate, translated
from lab.engines.output import LineSplitter, LogWriter
from lab.engines.verdict import Ending, oom_kills_since
from lab.errors import EngineError, EngineLost

POLL_S = 0.1  # how soon a limit or a Ctrl-C is noticed; the end of a container is noticed at once
FOLLOW_AFTER_S = 0.25  # a step that ends sooner is read once, after its end
OOM_NEWS_S = 5.0  # a daemon may learn of an end before it learns that a memory limit was hit
CLOCK_WAS_SET_S = 30.0  # more than a daemon and its watcher differ on a busy machine
QUIET_S = 5.0  # a follower that still hangs this long after the container ended is cut off
# Of a container that is removed while its log or state is asked for.
GONE = re.compile(r"marked for removal|removal of container .* in progress|no such container", re.IGNORECASE)


class Watch:
    """Follows a container that runs or has ended: its output into the log, its end into an Ending."""

    def __init__(
        self, daemon: Daemon, container: str, log: LogWriter, context: Context, kills_before: int | None
    ) -> None:
        """kills_before: by this host's kernel for memory, before the container began; None if unknown."""
        client = daemon.client
        self._client, self._container, self._log = client, container, log
        self._context = dataclasses.replace(context, container=container)
        self._is_podman, self._kills_before = daemon.is_podman, kills_before
        self._wait = _Call(lambda: client.wait(container))
        self._follower = LogFollower(client, container, log)
        self._stopping: _Call | None = None

    def collect(self, step: Step, stop: Stop, *, grace_s: float, ran_s: float = 0.0) -> Ending:
        """Follow it until its last line is logged, then remove it; limits and `stop` end it earlier.

        Raises EngineLost when the engine goes away meanwhile, EngineError when the container is removed
        from outside. Only a container of a lost engine is left, to be attached to later.
        """
        is_lost = False
        try:
            return self._to_the_end(step, stop, grace_s, ran_s)
        except EngineLost:
            is_lost = True
            raise
        finally:
            if not is_lost and (problem := remove(self._client, self._container)):
                self._log.write([f"lab: {problem}"])

    def _to_the_end(self, step: Step, stop: Stop, grace_s: float, ran_s: float) -> Ending:
        self._wait.start()
        if not self._wait.ended.wait(FOLLOW_AFTER_S):
            self._follower.start()
        began = time.monotonic() - ran_s
        try:
            stopped_by = self._watch(step, stop, grace_s, began)
            watched_s = time.monotonic() - began
            if self._wait.error is not None:
                raise _unanswered(self._wait.error, self._context)
            self._follower.finish()
            return self._end(stopped_by, watched_s)
        finally:
            self._follower.give_up()

    def _watch(self, step: Step, stop: Stop, grace_s: float, began: float) -> str | None:
        stopped_by: str | None = None
        timeout_s = max(1, round(grace_s))  # whole seconds; 0 would kill it at once
        while not self._wait.ended.wait(POLL_S):
            if stopped_by is None:
                stopped_by = self._log.reason_to_stop(step, stop, time.monotonic() - began)
                if stopped_by:
                    # The daemon itself kills it after the grace period, even if this driver is dead by then.
                    self._stopping = _Call(lambda: self._client.stop(self._container, timeout=timeout_s))
                    self._stopping.start()
            elif self._stopping and self._stopping.error is not None:
                raise _unanswered(self._stopping.error, self._context)
            elif stop.at_once:
                self._kill()
        return stopped_by

    def _kill(self) -> None:
        try:
            self._client.kill(self._container)
        except FAILURES as error:
            if not (isinstance(error, APIError) and error.status_code == 409):  # it has just ended by itself
                raise _unanswered(error, self._context) from error

    def _inspected(self) -> dict[str, Any]:
        """The container as it ended; where the kernel killed something, with the news of its memory limit."""
        until = time.monotonic() + OOM_NEWS_S
        inspected: dict[str, Any] = self._client.inspect_container(self._container)
        while _hit_unreported(inspected) and oom_kills_since(self._kills_before) and time.monotonic() < until:
            time.sleep(0.1)
            inspected = self._client.inspect_container(self._container)
        return inspected

    def _end(self, stopped_by: str | None, watched_s: float) -> Ending:
        if self._follower.error is not None:
            raise _unanswered(self._follower.error, self._context)
        try:
            inspected = self._inspected()
        except FAILURES as error:
            raise _unanswered(error, self._context) from error
        state = inspected["State"]
        if (began := _begun(state)) is None:  # podman reports only now that it could not start it
            text = state.get("Error") or "the container never started"
            raise translate(DockerException(text), context=self._context)
        limit_hit: bool | None = bool(state.get("OOMKilled"))
        if self._is_podman or not (limit_hit or inspected["HostConfig"].get("Memory")):
            limit_hit = None  # podman does not report it
        return Ending(
            exit_code=int(state["ExitCode"]),
            stopped_by=stopped_by,
            limit_hit=limit_hit,
            seconds=_lasted_s((moment(state["FinishedAt"]) - began).total_seconds(), watched_s),
            started_utc=began.isoformat(timespec="milliseconds"),
        )


def _hit_unreported(inspected: Mapping[str, Any]) -> bool:
    """Whether it has a memory limit that its daemon does not report as hit."""
    return bool(inspected["HostConfig"].get("Memory")) and not inspected["State"].get("OOMKilled")


def _lasted_s(by_daemon_s: float, watched_s: float) -> float:
    """By the daemon's clock, unless that clock was set meanwhile: then how long it was watched.

    The daemon records the start late: a process of a millisecond may seem to end before it began.
    """
    return max(0.0, by_daemon_s) if abs(by_daemon_s - watched_s) < CLOCK_WAS_SET_S else watched_s


class LogFollower(threading.Thread):
    """Follows one container; `error` says why it could not."""

    def __init__(self, client: docker.APIClient, container: str, log: LogWriter) -> None:
        super().__init__(daemon=True, name="lab-log")
        self._client, self._container, self._log = client, container, log
        self._splitter = LineSplitter()
        self._ended = threading.Event()
        self._stream: Any = None
        self._num_entries = 0
        self._last_entry = time.monotonic()
        self.error: Exception | None = None

    def run(self) -> None:
        self._take(self._entries(follow=True))
        # The stream ends just before the container does; if the container runs on, the stream broke.
        while self.error is None and not self._ended.wait(1.0):
            self._take(islice(self._entries(follow=True), self._num_entries, None))

    def finish(self) -> None:
        """After the container has ended: wait for the last line, however much there is still to read."""
        self._ended.set()
        self._last_entry = time.monotonic()
        while self.is_alive():
            self.join(0.2)
            if time.monotonic() - self._last_entry > QUIET_S:
                self.give_up()
                break
        if self.error is None:
            self._take(islice(self._entries(follow=False), self._num_entries, None))
        self._log.write(self._splitter.flush())

    def give_up(self) -> None:
        """Stop following at once."""
        self._ended.set()
        if self.is_alive():
            if self._stream is not None:
                self._stream.close()
            self.join(QUIET_S)

    def _take(self, entries: Iterable[bytes]) -> None:
        try:
            for entry in entries:
                self._num_entries += 1
                self._last_entry = time.monotonic()
                self._log.write(self._splitter.feed(entry.partition(b" ")[2]))
        except struct.error:
            pass  # the stream broke inside a frame's header: what is missing is read next time
        except FAILURES as error:
            self.error = error

    def _entries(self, *, follow: bool) -> Iterator[bytes]:
        """The entries, each with its timestamp in front, which tells equal lines apart."""
        self._stream = self._client.logs(
            self._container, stdout=True, stderr=True, stream=True, follow=follow, timestamps=True
        )
        yield from self._stream


def running_for(client: docker.APIClient, container: str, context: Context) -> float | None:
    """Seconds since it was started; None if it never was."""
    with translated(context):
        began = _begun(client.inspect_container(container)["State"])
    return (datetime.now(timezone.utc) - began).total_seconds() if began else None


def _begun(state: Mapping[str, Any]) -> datetime | None:
    return None if state["StartedAt"].startswith("0001-") else moment(state["StartedAt"])


def moment(text: str) -> datetime:
    """The daemon's RFC 3339 time with up to nine decimals, as UTC."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        raise EngineError(f"unparseable timestamp from the engine: {text!r}")
    zone = match[3].replace("Z", "+00:00")
    micros = (match[2] or ".0")[1:7].ljust(6, "0")
    return datetime.fromisoformat(f"{match[1]}.{micros}{zone}").astimezone(timezone.utc)


def _unanswered(error: Exception, context: Context) -> Exception:
    """The error for a request about a running container that was not answered."""
    if isinstance(error, NotFound) or (isinstance(error, APIError) and GONE.search(str(error.explanation))):
        return EngineError(
            f"the container of step {context.step!r} was removed from outside, and its result with it",
            fix="run the step again with lab run --resume",
        )
    if isinstance(error, APIError):
        return translate(error, context=context)
    return lost(context, str(error)) if isinstance(error, FAILURES) else error


class _Call(threading.Thread):
    """A blocking request on a thread of its own; `ended` is set when it is over."""

    def __init__(self, request: Callable[[], object]) -> None:
        super().__init__(daemon=True, name="lab-docker")
        self._request = request
        self.ended = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._request()
        except Exception as error:  # noqa: BLE001 - kept for the thread that waits
            self.error = error
        finally:
            self.ended.set()
