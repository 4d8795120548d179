"""A container's output, from its first byte to its last, to the sink.

The daemon keeps both streams in one file in the order in which they came, so one connection brings them in that order
and nothing needs merging. Following is for the eyes: a stream may break, hang on a container that ends fast, or (engine
20.10) end without the last line where that has no newline. What counts is read plainly once the container has ended.
Entries that came already are skipped by count within the second of the newest one, which is exact: the file is not
rotated, and `since` with a whole second gives every entry of it, while timestamps alone are not unique.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import docker
import requests
from docker.errors import DockerException

from lab.engines.docker_times import moment
from lab.engines.lines import LineSplitter
from lab.engines.sink import Sink

SECOND = len("2026-01-01T00:00:00")
QUIET_S = 5.0  # a follower that still hangs so long after the container ended is cut off


class LogFollower(threading.Thread):
    """Follows one container; `error` says why it could not."""

    def __init__(self, client: docker.APIClient, container: str, sink: Sink) -> None:
        super().__init__(daemon=True, name="lab-log")
        self._client, self._container, self._sink = client, container, sink
        self._splitter = LineSplitter()
        self._ended = threading.Event()
        self._stream: Any = None
        self._second = b""  # of the newest entry
        self._seen = 0  # entries of that second
        self._heard = time.monotonic()
        self.error: Exception | None = None

    def run(self) -> None:
        self._read(follow=True)
        # It ends a moment before the container is seen to end; if the container lives on, the stream broke.
        while self.error is None and not self._ended.wait(1.0):
            self._read(follow=True)

    def finish(self) -> None:
        """After the container has ended: wait for the last line, however much there is still to read."""
        self._ended.set()
        self._heard = time.monotonic()
        while self.is_alive():
            self.join(0.2)
            if self.is_alive() and time.monotonic() - self._heard > QUIET_S:
                self._stream.close()
                self.join(QUIET_S)
                break
        if self.error is None:
            self._read(follow=False)
        self._sink.take(self._splitter.flush())

    def _read(self, *, follow: bool) -> None:
        try:
            for frame in self._unseen(follow):
                self._heard = time.monotonic()
                self._sink.take(self._splitter.feed(frame))
        except struct.error:
            pass  # the stream broke inside a frame's header: what is missing comes with the next reading
        except (DockerException, requests.exceptions.RequestException) as error:
            self.error = error

    def _unseen(self, follow: bool) -> Iterator[bytes]:
        """The entries that did not come yet, without their timestamps."""
        seen, since = (
            self._seen,
            int(moment(self._second.decode() + "Z").timestamp()) if self._second else None,
        )
        self._stream = self._client.logs(
            self._container, stdout=True, stderr=True, stream=True, follow=follow, timestamps=True, since=since)  # fmt: skip
        for number, entry in enumerate(self._stream):
            if number < seen:
                continue
            second, (_, _, text) = entry[:SECOND], entry.partition(b" ")
            if second > self._second:
                self._second, self._seen = second, 0
            # Pieces of one long line carry the time of its first: an older entry is none that `since` would give.
            self._seen += second == self._second
            yield text
