"""What stands before every page: the host, the origin, the method, the token; and headers on every answer."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple
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


class Foreign(NamedTuple):
    """Pages that lab did not write, and the policy they get, in which HERE stands for this server's origin.

    `public` ones are no secret: a page without an origin may read them.
    """

    policy: str
    public: bool = False


# A run's own page is foreign code: an origin of its own, nothing from outside, no way to the top.
FILES = Foreign(
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
FOREIGN = {"/files/": FILES}
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
    foreign: where files lie that lab did not write, each with its policy. They are under a capability in
    their path, without the cookie: a page in a sandbox sends none.
    """

    def __init__(
        self,
        app: App,
        *,
        cookie: str,
        hosts: frozenset[str] = LOCAL,
        foreign: Mapping[str, Foreign] = FOREIGN,
        spent: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.app, self.cookie, self.hosts, self.foreign = app, cookie, hosts, foreign
        self.token = secrets.token_urlsafe(24)
        self.secret = secrets.token_urlsafe(24)
        self._spent = spent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        foreign = self._foreign(scope)
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        send = _with_headers(send, foreign, _origin(scope, headers))
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
        foreign = self._foreign(scope)
        own = _origin(scope, headers)
        if (
            origin is not None
            and origin.lower() != own
            and not (foreign and foreign.public and origin == "null")
        ):
            return 403, "asked by another page\n"
        if headers.get("sec-fetch-site") == "cross-site" and not self._is_visit(scope, headers):
            return 403, "asked by another page\n"
        return None

    def _is_visit(self, scope: Scope, headers: dict[str, str]) -> bool:
        """A link that was followed, or a file of a run's own page, which is a site of its own."""
        return headers.get("sec-fetch-mode") == "navigate" or self._foreign(scope) is not None

    def _foreign(self, scope: Scope) -> Foreign | None:
        path = str(scope["path"])
        return next((one for prefix, one in self.foreign.items() if path.startswith(prefix)), None)

    def _trade(self, scope: Scope) -> str:
        """Where to go with the cookie; "" without the right token."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in pairs if name == "token"]
        if not given or not hmac.compare_digest(given[0].encode(), self.token.encode()):
            return ""
        self.token = secrets.token_urlsafe(24)
        self._spent(self.token)
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        path = "/" + str(scope["path"]).lstrip("/\\")
        return path.encode("ascii", "ignore").decode().replace("\r", "").replace("\n", "") + (
            f"?{rest}" if rest else ""
        )

    def _may_pass(self, scope: Scope, headers: dict[str, str]) -> bool:
        if self._foreign(scope):
            return True  # the capability in the path is checked there
        try:
            held = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return held is not None and hmac.compare_digest(held.value.encode(), self.secret.encode())

    def capability(self, key: str) -> str:
        """Opens the files of one run, and of no other."""
        return hmac.new(self.secret.encode(), key.encode(), "sha256").hexdigest()[:40]


def _origin(scope: Scope, headers: dict[str, str]) -> str:
    """This server's own, by the name that it was asked by; "" for a name that no server has."""
    host = headers.get("host", "").lower()
    return f"{scope['scheme']}://{host}" if _HOST.match(host) else ""


def _with_headers(send: Send, foreign: Foreign | None, origin: str) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            more = {
                **HEADERS,
                "content-security-policy": foreign.policy.replace("HERE", origin) if foreign else POLICY,
            }
            if foreign:  # its page in a sandbox is another origin
                more["cross-origin-resource-policy"] = "cross-origin"
            if foreign and foreign.public:
                more["access-control-allow-origin"] = "*"
                if message["status"] == 200:
                    more["cache-control"] = "private, max-age=86400"
            own = [
                (name, value)
                for name, value in message.get("headers", [])
                if name.lower().decode() not in more
            ]
            message = {
                **message,
                "headers": [*own, *((name.encode(), value.encode()) for name, value in more.items())],
            }
        await send(message)

    return sent


async def _answer(send: Send, status: int, text: str, more: dict[str, str] | None = None) -> None:
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(text)), **(more or {})}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": text.encode()})
