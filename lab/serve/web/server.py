"""The server: its routes, where it listens, and what it prints. `made_app` is the ASGI application."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import socket
import stat
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lab.errors import BadDataError, BusyError, LabError, MissingError, StorageError, UsageError
from lab.serve.index import Index
from lab.serve.web.guard import LOCAL, Guard
from lab.serve.web.pages import Site

FIRST_PORT, PORTS = 8000, 20
CODES = {MissingError: 404, UsageError: 400, BusyError: 503, BadDataError: 422}
DATA = ("/files/", "/columns", "/perfetto")  # what scripts read: an error is a line of text there


def made_app(index: Index, *, cookie: str, hosts: frozenset[str], spent: Callable[[str], None]) -> Guard:
    """The server as an ASGI application; `guard.token` opens it."""
    guard = Guard(cookie=cookie, hosts=hosts, spent=spent)
    site = Site(index, guard)
    routes = [
        Route("/", site.home),
        Route("/rows", site.fragment),
        Route("/run/{key}", site.run),
        Route("/run/{key}/verify", site.verify),
        Route("/compare", site.compare),
        Route("/diff", site.diff),
        Route("/timeline", site.timeline),
        Route("/columns", site.columns),
        Route("/perfetto", site.perfetto),
        Route("/ask", site.ask),
        Route("/static/{name}", site.static),
        Route("/favicon.ico", lambda _: Response(status_code=204)),
        Route("/files/{key}/{capability}/{path:path}", site.file),
    ]
    guard.app = Starlette(routes=routes, exception_handlers={LabError: _error_page(site), 404: _not_found})
    return guard


def _error_page(site: Site) -> Callable[[Request, Exception], Response]:
    """A handler that shows any error of lab as a page with its words."""

    def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, LabError)
        code = next((code for kind, code in CODES.items() if isinstance(error, kind)), 500)
        path = request.url.path
        if path.startswith(DATA) or path.endswith("/verify"):
            return PlainTextResponse(f"{error.problem}\n", status_code=code)
        answer = site.page("error", error=error)
        answer.status_code = code
        return answer

    return handle


async def _not_found(_: Request, __: Exception) -> Response:
    return PlainTextResponse("no such page\n", status_code=404)


def serve(
    folder: Path,
    *,
    port: int | None,
    host: str,
    uds: Path | None,
    open_browser: bool,
    say: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C. Raises UsageError for a port that is taken, StorageError for a socket's path."""
    index = Index(folder)
    with _listening(host, port, uds) as listener:
        name = listener.getsockname()
        number = FIRST_PORT if uds else name[1]  # of a socket: what the line below forwards it to
        address = f"http://{'localhost' if uds else f'[{host}]' if ':' in host else host}:{number}"
        hosts = LOCAL | ({host.lower()} if not uds else set()) | ({f"[{host}]"} if ":" in host else set())

        def spent(token: str) -> None:
            say(f"opened in a browser; for another one: {address}/?token={token}")

        app = made_app(index, cookie=_cookie(number, uds), hosts=frozenset(hosts), spent=spent)
        index.refresh()
        for text in index.unseen:
            say(f"not looked at: {text}")
        if uds:
            forwarding = shlex.quote(f"{number}:{uds.absolute()}")
            login = socket.gethostname()
            say(f"listening on {uds}; from your machine: ssh -L {forwarding} {login}, then open")
        elif host not in ("127.0.0.1", "::1", "localhost"):
            say(f"anyone who reaches {host}:{number} and has the address below can read {index.root}")
        say(f"{address}/?token={app.token}")
        if open_browser and not uds:
            webbrowser.open(f"{address}/?token={app.token}")
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            timeout_keep_alive=5,  # no limit of connections: idle ones of a stranger would lock the owner out
            h11_max_incomplete_event_size=65_536,
        )
        # uvicorn raises a signal again once it has ended: SIGTERM must not skip what follows here.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _cookie(number: int, uds: Path | None) -> str:
    """A name of its own for every server: browsers share cookies between the ports of a host."""
    if uds is None:
        return f"lab_{number}"
    return f"lab_{hashlib.sha256(f'{socket.gethostname()}:{uds.absolute()}'.encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def _listening(host: str, port: int | None, uds: Path | None) -> Iterator[socket.socket]:
    listener = _unix(uds) if uds else _tcp(host, port)
    try:
        yield listener
    finally:
        listener.close()
        if uds:
            uds.unlink(missing_ok=True)


def _tcp(host: str, port: int | None) -> socket.socket:
    """Bound to the port, or to the first free one from FIRST_PORT on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + PORTS), 0]
    for number in tried:
        # With its protocol named: only then asyncio turns Nagle's algorithm off, which costs 40 ms an answer.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except (OSError, OverflowError) as error:
            listener.close()
            reason = error
            continue
        listener.listen(128)
        return listener
    raise UsageError(f"cannot listen on {host}:{port}: {reason}", fix="--port N, another one")


def _unix(path: Path) -> socket.socket:
    """A socket that only its owner can open, from the moment it is made."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)):  # refused: left by a server that was killed
                    path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    umask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise StorageError(f"cannot make the socket: {error.strerror or error}", location=path) from error
    finally:
        os.umask(umask)
    listener.listen(128)
    return listener
