"""A container's output, from its first byte to its last, into the step's log.

The daemon keeps both streams in one file in the order in which they came, so one connection delivers them
in that order and nothing needs merging. Following serves the live output only: a stream may break, hang on
a container that ends fast, or (engine 20.10) end without a last line that has no newline. So the end of the
log is read once more after the container has ended. Entries that came already are skipped by count, not by
time: all pieces of one long line (such as a progress bar) carry the time of the first, and `since` would
drop them. The file is never rotated, so the count is exact.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import docker
import requests
from docker.errors import DockerException

from lab.engines.lines import LineSplitter
from lab.engines.log_writer import LogWriter

QUIET_S = 5.0  # a follower that still hangs this long after the container ended is cut off
RECENT = 64  # entries kept, to find where following stopped in the end of the log


class LogFollower(threading.Thread):
    """Follows one container; `error` says why it could not."""

    def __init__(self, client: docker.APIClient, container: str, log: LogWriter) -> None:
        super().__init__(daemon=True, name="lab-log")
        self._client, self._container, self._log = client, container, log
        self._splitter = LineSplitter()
        self._ended = threading.Event()
        self._stream: Any = None
        self._seen = 0
        self._recent: deque[bytes] = deque(maxlen=RECENT)
        self._last_entry = time.monotonic()
        self.error: Exception | None = None

    def run(self) -> None:
        self._take(self._entries(follow=True))
        # The stream ends just before the container does; if the container runs on, the stream broke.
        while self.error is None and not self._ended.wait(1.0):
            self._take(islice(self._entries(follow=True), self._seen, None))

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
            self._take(self._rest())
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
                self._seen += 1
                self._recent.append(entry)
                self._last_entry = time.monotonic()
                self._log.write(self._splitter.feed(entry.partition(b" ")[2]))
        except struct.error:
            pass  # the stream broke inside a frame's header: what is missing is read next time
        except (DockerException, requests.exceptions.RequestException) as error:
            self.error = error

    def _rest(self) -> Iterator[bytes]:
        """What following did not deliver, from the last entries if they suffice, else from the whole log."""
        if not self._seen:
            yield from self._entries(follow=False)
            return
        end = list(self._entries(follow=False, tail=RECENT))
        if len(end) < RECENT:  # the whole log
            yield from end[self._seen :]
            return
        ours = list(self._recent)
        fits = [n for n in range(1, len(ours) + 1) if end[:n] == ours[-n:]]
        if len(fits) == 1:  # several if entries are equal to the nanosecond
            yield from end[fits[0] :]
        else:
            yield from islice(self._entries(follow=False), self._seen, None)

    def _entries(self, *, follow: bool, tail: int | Literal["all"] = "all") -> Iterator[bytes]:
        """The entries, each with its timestamp in front, which tells equal lines apart."""
        self._stream = self._client.logs(
            self._container, stdout=True, stderr=True, stream=True, follow=follow, timestamps=True, tail=tail
        )
        yield from self._stream
