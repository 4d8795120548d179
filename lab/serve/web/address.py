"""What the query of an address says, and addresses made from it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from lab.serve.web.listing import Wish


def wish_of(query: QueryParams) -> Wish:
    page = query.get("page", "1")
    return Wish(
        q=query.get("q", "")[:500],
        sort=query.get("sort", "when")[:40],
        desc=query.get("desc", "1") != "0",
        group=query.get("group", "")[:40],
        figure=query.get("figure", "")[:200],
        page=int(page) if page.isascii() and page.isdecimal() and len(page) < 9 else 1,
    )


def link_of(wish: Wish, **more: Any) -> str:
    values = {
        "q": wish.q,
        "sort": wish.sort,
        "desc": int(wish.desc),
        "group": wish.group,
        "figure": wish.figure,
    }
    return "/?" + urlencode({name: value for name, value in {**values, **more}.items() if value != ""})


def recordings_of(query: QueryParams) -> str:
    """The run and the recordings of an address, for another one."""
    return urlencode([(name, value) for name, value in query.multi_items() if name in ("run", "file")])


def pftrace_name(name: str) -> str:
    """What a recording's name becomes as a Perfetto file."""
    plain = "".join(one if one.isalnum() or one in "._-" else "_" for one in name)
    return f"{plain[-80:].replace('.gz', '')}.pftrace.gz"
