"""Asks an ASGI application without a network: any path, header and method, however wrong."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import unquote

HOST = "127.0.0.1:8000"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def get(app, target: str, *, method: str = "GET", host: str | None = HOST, **headers: str) -> Answer:
    """`headers` by their names with _ for -; the path is decoded as a server does."""
    path, _, query = target.partition("?")
    pairs = [] if host is None else [(b"host", host.encode("latin-1"))]
    pairs += [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path, errors="replace"),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": pairs,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    sent: list[dict] = []

    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive():
        return next(asked, None) or await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    found = {name.decode().lower(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]))
