"""What stands before every page: the host, the origin, the method, the token; and headers on every answer."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_URL = 32_768  # bytes of path and query
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


# A run's own page is foreign code: an origin of its own, nothing from outside, no way to the top. Files lie
# under a capability in their path, because a page in a sandbox sends no cookie.
FOREIGN = "/files/"
FOREIGN_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+)(?::\d{1,5})?\Z")


class Guard:
    """Lets a request through to `app` if it comes from the person who was shown the address.

    A token opens the pages once: it is traded for a cookie, and `spent` is called with the next one.
    """

    def __init__(
        self, *, cookie: str, hosts: frozenset[str] = LOCAL, spent: Callable[[str], None] = lambda _: None
    ) -> None:
        self.app: App = _no_routes
        self.cookie, self.hosts = cookie, hosts
        self.token = secrets.token_urlsafe(24)
        self.secret = secrets.token_urlsafe(24)
        self._spent = spent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        send = _with_headers(send, _is_foreign(scope))
        refusal = self._refusal(scope, headers)
        if refusal:
            await _answer(send, *refusal)
        elif target := self._trade(scope):
            # Lax, because a page in a sandbox is another site to the browser; only GET is answered.
            value = f"{self.cookie}={self.secret}; HttpOnly; SameSite=Lax; Path=/"
            await _answer(send, 303, "", {"location": target, "set-cookie": value})
        elif self._may_pass(scope, headers):
            await self.app(scope, receive, send)
        else:
            words = "Open the address that `lab serve` printed: it holds a token that works once.\n"
            await _answer(send, 403, words)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = _HOST.match(headers.get("host", "").lower())
        named = sum(name.lower() == b"host" for name, _ in scope["headers"])
        if host is None or host[1] not in self.hosts or named != 1:
            return 400, "not a name of this server\n"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only looking is possible here\n"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_URL:
            return 414, "the address is too long\n"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host[0]}":
            return 403, "asked by another page\n"
        if headers.get("sec-fetch-site") == "cross-site" and not _is_visit(scope, headers):
            return 403, "asked by another page\n"
        return None

    def _trade(self, scope: Scope) -> str:
        """Where to go with the cookie; "" without the right token."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in pairs if name == "token"]
        if not tokens or not hmac.compare_digest(tokens[0].encode(), self.token.encode()):
            return ""
        self.token = secrets.token_urlsafe(24)
        self._spent(self.token)
        query = urlencode([(name, value) for name, value in pairs if name != "token"])
        path = "/" + str(scope["path"]).lstrip("/\\")
        return path.encode("ascii", "ignore").decode().replace("\r", "").replace("\n", "") + (
            f"?{query}" if query else ""
        )

    def _may_pass(self, scope: Scope, headers: dict[str, str]) -> bool:
        if _is_foreign(scope):
            return True  # the capability in the path is checked there
        try:
            held = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return held is not None and hmac.compare_digest(held.value.encode(), self.secret.encode())

    def capability(self, key: str) -> str:
        """Opens the files of one run, and of no other."""
        return hmac.new(self.secret.encode(), key.encode(), "sha256").hexdigest()[:40]


async def _no_routes(*_: Any) -> None:
    """The application until the routes are known."""


def _is_foreign(scope: Scope) -> bool:
    return str(scope["path"]).startswith(FOREIGN)


def _is_visit(scope: Scope, headers: dict[str, str]) -> bool:
    """A link that was followed, or a file of a run's own page, which is a site of its own."""
    return headers.get("sec-fetch-mode") == "navigate" or _is_foreign(scope)


def _with_headers(send: Send, foreign: bool) -> Send:
    always = {**HEADERS, "content-security-policy": FOREIGN_POLICY if foreign else POLICY}
    if foreign:  # its page in a sandbox is another origin
        always["cross-origin-resource-policy"] = "cross-origin"
    added = [(name.encode(), value.encode()) for name, value in always.items()]

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            inner = [
                (name, value)
                for name, value in message.get("headers", [])
                if name.lower().decode() not in always
            ]
            message = {**message, "headers": [*inner, *added]}
        await send(message)

    return send_with_headers


async def _answer(send: Send, status: int, text: str, extra: dict[str, str] | None = None) -> None:
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(text)), **(extra or {})}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": text.encode()})
