"""Unix sockets that nobody serves or answers at, and a way to one that a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


class Wire:
    """Carries the connections of a listening socket to the Unix socket at `target`, until it is cut."""

    def __init__(self, server: socket.socket, target: str) -> None:
        self.server, self.target = server, target
        self._pairs: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self.target)
                self._pairs += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=pair, daemon=True).start()

    def cut(self) -> None:
        """Once or again: a line of lab's own about the loss may come while the engine is lost."""
        self.server.close()
        for end in self._pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def dead_socket(path: Path) -> None:
    """The socket of a server that has died."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(path))


@contextlib.contextmanager
def deaf_socket(path: Path) -> Iterator[None]:
    """A socket at which connections are taken and never answered."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(path))
        server.listen()
        yield
