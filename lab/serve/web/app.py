"""The pages: routes, what each looks up, and the templates that show it. `made_app` is the whole server."""

from __future__ import annotations

import contextlib
import hmac
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from lab.errors import BadDataError, BusyError, LabError, MissingError, UsageError
from lab.report import palette
from lab.serve.clocks import clocks_of
from lab.serve.confine import opened, recording_inside
from lab.serve.index import Index, key_of
from lab.serve.jobs import Jobs
from lab.serve.live import live_tail, may_go_on, now
from lab.serve.rows import RunRow
from lab.serve.sql.ask import ask
from lab.serve.sql.saved import SAVED, askable
from lab.serve.web import perfetto
from lab.serve.web.address import link_of, pftrace_name, recordings_of, wish_of
from lab.serve.web.chart import chart_of
from lab.serve.web.compared import (
    before,
    changed,
    changes_of,
    fields_of,
    figure_lines,
    settings_of,
)
from lab.serve.web.files import file_lines, media_type, verified
from lab.serve.web.guard import FOREIGN, Foreign, Guard
from lab.serve.web.listing import (
    GROUPS,
    SORTS,
    Facts,
    fact_of,
    figure_labels,
    fits,
    is_bound,
    is_elsewhere,
    listing,
    unit_of,
)
from lab.serve.web.rendering import made_templates
from lab.serve.web.steps import by_step, folders_of_several, of_ranks
from lab.serve.worker import Task

HERE = Path(__file__).parent
REPORT_FOLDER = Path(palette.__file__).parent
STATIC = {
    "serve.js": HERE / "static" / "serve.js",
    "perfetto.js": HERE / "static" / "perfetto.js",
    "page.js": REPORT_FOLDER / "page.js",
    "charts.js": REPORT_FOLDER / "charts.js",
    "timeline.js": REPORT_FOLDER / "timeline.js",
}
# In place of the index.html of Perfetto's bundle, which has a script inside it.
START = {
    "start.html": (HERE / "static" / "perfetto_start.html", "text/html"),
    "start.js": (HERE / "static" / "perfetto_start.js", "text/javascript"),
}
NUMERIC = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL.*)\Z")  # of DuckDB's types
MOST_COMPARED = 12
MOST_SQL = 16_384
BLOCK = 1 << 18
CODES = {MissingError: 404, UsageError: 400, BusyError: 503, BadDataError: 422}


class Site:
    """What all pages share: the index, what is known of its rows, the jobs, the templates."""

    def __init__(self, index: Index, guard: Guard) -> None:
        self.index, self.guard, self.jobs = index, guard, Jobs()
        self.templates = made_templates()
        self._known: tuple[int, Facts] = (0, {})
        self._mutex = threading.Lock()

    def rows(self) -> tuple[list[RunRow], Facts]:
        with self._mutex:
            rows = self.index.refresh()
            if self._known[0] != self.index.version:
                self._known = (self.index.version, {row.folder: fact_of(row) for row in rows})
            return rows, self._known[1]

    def now(self, rows: list[RunRow]) -> dict[str, str]:
        locks = self.index.locks
        found = {row.folder: now(self.index.path(row), row, locks) for row in rows if may_go_on(row)}
        return {folder: word for folder, word in found.items() if word}

    def clocks(self, row: RunRow) -> dict[tuple[str, str], str]:
        return clocks_of(self.index.path(row), row)

    def row(self, key: str) -> RunRow:
        row = self.index.by_key(key)
        if row is None:
            raise MissingError("no such run", fix="it may have been moved: see the list")
        return row

    def compared(self, query: QueryParams) -> list[RunRow]:
        keys = list(dict.fromkeys(query.getlist("run")))
        if len(keys) > MOST_COMPARED:
            raise UsageError(f"{len(keys)} runs: at most {MOST_COMPARED} side by side")
        return [self.row(key) for key in keys]

    def page(self, name: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(
            self.templates.get_template(f"{name}.html.jinja").render(root=str(self.index.root), **values)
        )

    # Pages

    def home(self, request: Request) -> Response:
        return self._list(request, "home")

    def fragment(self, request: Request) -> Response:
        return self._list(request, "rows")

    def _list(self, request: Request, name: str) -> Response:
        wish = wish_of(request.query_params)
        rows, known = self.rows()
        running = self.now(rows)
        found = listing(rows, wish, running, known)
        tails = {one.key: live_tail(self.index.path(one.row), one.row) for one in found.live}
        tag = f'W/"{self.index.version}-{hash((wish, msgspec.json.encode([running, tails])))}"'
        if name == "rows" and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        answer = self.page(
            name,
            wish=wish,
            found=found,
            tails=tails,
            unseen=self.index.unseen,
            loose=self.index.recordings,
            together=[one for one in by_step(list(self.index.recordings)) if of_ranks(one[1])],
            sorts=SORTS,
            group_names=GROUPS,
            link=lambda **more: link_of(wish, **more),
        )
        answer.headers["etag"] = tag
        return answer

    def run(self, request: Request) -> Response:
        row = self.row(request.path_params["key"])
        rows, _ = self.rows()
        folder = self.index.path(row)
        files, cut = file_lines(folder)
        earlier = before(rows, row)
        capability = self.guard.capability(key_of(row))
        return self.page(
            "run",
            row=row,
            key=key_of(row),
            now=self.now([row]).get(row.folder, ""),
            tails=live_tail(folder, row),
            files=files,
            cut=cut,
            has_report=any(one.name == "report.html" for one in files),
            base=f"/files/{key_of(row)}/{capability}/",
            command=shlex.join(row.command),
            facts=fields_of([row], self.clocks),
            earlier=earlier,
            earlier_key=key_of(earlier) if earlier else "",
            changes=changed(earlier, row, self.clocks) if earlier else [],
            recordings=by_step([one.name for one in files if one.recording]),
        )

    def compare(self, request: Request) -> Response:
        rows = self.compared(request.query_params)
        if len(rows) < 2:
            raise UsageError(
                "tick two runs or more in the list, then compare them", fix="go back to the list"
            )
        common = set.intersection(
            *({one.name for one in file_lines(self.index.path(row))[0] if one.recording} for row in rows[:2])
        )
        return self.page(
            "compare",
            rows=rows,
            keys=[key_of(row) for row in rows],
            rooms=sorted({row.room for row in rows}),
            fields=fields_of(rows, self.clocks),
            figures=figure_lines(rows),
            recordings=sorted(folders_of_several(common) | common)[:200] if len(rows) == 2 else [],
        )

    def diff(self, request: Request) -> Response:
        """Of one recording in two runs, or of two recordings that belong to none."""
        query = request.query_params
        rows = self.compared(query)
        files = query.getlist("file")
        if not rows and len(files) == 2:
            paths = tuple(str(recording_inside(self.index.root, name)) for name in files)
        elif len(rows) == 2:
            files = [query.get("part", "")]
            paths = tuple(str(recording_inside(self.index.path(row), files[0])) for row in rows)
        else:
            raise UsageError("a diff is of two runs, or of two recordings", fix="tick two of them")
        done = self.jobs.run(Task(what="diff", paths=paths))
        return self.page("diff", rows=rows, keys=[key_of(row) for row in rows], files=files, done=done)

    def plot(self, request: Request) -> Response:
        rows, known = self.rows()
        query = request.query_params
        chosen = [row for row in rows if fits(row, query.get("q", ""), known, {})]
        labels = figure_labels(chosen)
        label = query.get("figure", "") or (labels[0] if labels else "")
        unit = unit_of(chosen, label)
        settings = settings_of(chosen, label)
        return self.page(
            "plot",
            q=query.get("q", ""),
            labels=labels,
            label=label,
            chart=chart_of(settings, label, unit) if settings else None,
            unit=unit,
            elsewhere=sum(is_elsewhere(row, label, unit) for row in chosen),
            least=sum(is_bound(row, label) for row in chosen),
            settings=settings,
            changes=changes_of(settings, self.clocks),
            key_of=key_of,
        )

    def timeline(self, request: Request) -> Response:
        query = request.query_params
        names = self._recordings(query)[1]
        return self.page(
            "timeline",
            row=self.row(query["run"]) if query.get("run") else None,
            key=query.get("run", ""),
            names=names,
            query=recordings_of(query),
        )

    def in_perfetto(self, request: Request) -> Response:
        query = request.query_params
        names = self._recordings(query)[1]
        local = f"{perfetto.PATH}{self.guard.capability(perfetto.PATH)}/" if perfetto.bundle() else ""
        return self.page(
            "perfetto",
            row=self.row(query["run"]) if query.get("run") else None,
            key=query.get("run", ""),
            names=names,
            file=pftrace_name(names[0]),
            local=local,
            query=recordings_of(query),
        )

    def ask(self, request: Request) -> Response:
        sql = request.query_params.get("sql", "")
        if len(sql) > MOST_SQL:
            raise UsageError(f"the question has more than {MOST_SQL:,} characters")
        found = None
        if sql.strip():
            with self.jobs.slot():
                found = ask(self.index.root, sql, most_rows=1000, timeout_s=20.0)
        rows, _ = self.rows()
        return self.page(
            "ask",
            sql=sql,
            found=found,
            saved=SAVED,
            tables=askable(rows),
            numeric=[NUMERIC.match(kind) is not None for kind in found.types] if found else [],
            keys={row.folder: key_of(row) for row in rows},
        )

    # Data

    def verify(self, request: Request) -> Response:
        row = self.row(request.path_params["key"])
        with self.jobs.slot():
            return JSONResponse(verified(self.index.path(row), request.query_params.get("file", "")))

    def columns(self, request: Request) -> Response:
        paths, _ = self._recordings(request.query_params)
        file = self.jobs.file("timeline", paths, ".bin")
        return FileResponse(file, media_type="application/octet-stream")

    def perfetto(self, request: Request) -> Response:
        paths, names = self._recordings(request.query_params)
        file = self.jobs.file("perfetto", paths, ".pftrace.gz")
        return FileResponse(file, media_type="application/octet-stream", filename=pftrace_name(names[0]))

    def perfetto_file(self, request: Request) -> Response:
        """A file of Perfetto's bundle, under a capability: its page in a sandbox sends no cookie."""
        name = request.path_params["path"]
        if not self._opens(perfetto.PATH, request):
            raise MissingError("no such file in the bundle")
        if name in START:
            path, kind = START[name]
            return Response(path.read_text(), media_type=kind)
        stream, kind = perfetto.opened_file(name)
        return StreamingResponse(_blocks(stream), media_type=kind)

    def file(self, request: Request) -> Response:
        """A run's own file, under its capability; types by a fixed table, all else as a download."""
        key, name = request.path_params["key"], request.path_params["path"]
        if not self._opens(key, request):
            raise MissingError("no such file in this run")
        stream = opened(self.index.path(self.row(key)), name)
        kind = media_type(name)
        headers = {"content-disposition": "inline" if kind else "attachment"}
        return StreamingResponse(
            _blocks(stream), media_type=kind or "application/octet-stream", headers=headers
        )

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "lab.css":
            parts = [
                palette.css_variables(),
                *(path.read_text() for path in (REPORT_FOLDER / "page.css", HERE / "static" / "serve.css")),
            ]
            return Response("\n".join(parts), media_type="text/css")
        if name not in STATIC:
            raise MissingError("no such file")
        return Response(STATIC[name].read_text(), media_type="text/javascript")

    def _opens(self, key: str, request: Request) -> bool:
        """Whether the capability in the path is the one for `key`."""
        given, wanted = request.path_params["capability"], self.guard.capability(key)
        return hmac.compare_digest(given.encode(), wanted.encode())

    def _recordings(self, query: QueryParams) -> tuple[list[Path], list[str]]:
        """The files that a query names: below a run, or below the folder itself."""
        folder = self.index.path(self.row(query["run"])) if query.get("run") else self.index.root
        names = query.getlist("file")
        if not names or len(names) > 64:
            raise UsageError("between one and 64 recordings", fix="choose them on the page of a run")
        return [recording_inside(folder, name) for name in names], names


def made_app(index: Index, *, cookie: str, hosts: frozenset[str], spent: Callable[[str], None]) -> Guard:
    """The server as an ASGI application; `guard.token` opens it."""
    foreign = {**FOREIGN, perfetto.PATH: Foreign(perfetto.POLICY, public=True)}
    guard = Guard(lambda *_: _nothing(), cookie=cookie, hosts=hosts, foreign=foreign, spent=spent)
    site = Site(index, guard)
    routes = [
        Route("/", site.home),
        Route("/rows", site.fragment),
        Route("/run/{key}", site.run),
        Route("/run/{key}/verify", site.verify),
        Route("/compare", site.compare),
        Route("/diff", site.diff),
        Route("/plot", site.plot),
        Route("/timeline", site.timeline),
        Route("/columns", site.columns),
        Route("/perfetto", site.perfetto),
        Route("/in-perfetto", site.in_perfetto),
        Route(perfetto.PATH + "{capability}/{path:path}", site.perfetto_file),
        Route("/ask", site.ask),
        Route("/static/{name}", site.static),
        Route("/favicon.ico", lambda _: Response(status_code=204)),
        Route("/files/{key}/{capability}/{path:path}", site.file),
    ]
    guard.app = Starlette(routes=routes, exception_handlers={LabError: site_error(site), 404: _not_found})
    return guard


async def _nothing() -> None:
    """Until the routes are known."""


def site_error(site: Site) -> Callable[[Request, Exception], Response]:
    """Every error that lab understands is a page with its words."""

    def shown(request: Request, error: Exception) -> Response:
        assert isinstance(error, LabError)
        code = next((code for kind, code in CODES.items() if isinstance(error, kind)), 500)
        if request.url.path.startswith(("/files/", "/columns", "/perfetto")) or request.url.path.endswith(
            "/verify"
        ):
            return PlainTextResponse(f"{error.what}\n", status_code=code)
        answer = site.page("error", error=error)
        answer.status_code = code
        return answer

    return shown


async def _not_found(_: Request, __: Exception) -> Response:
    return PlainTextResponse("no such page\n", status_code=404)


def _blocks(stream: Any) -> Iterator[bytes]:
    with contextlib.closing(stream):
        while block := stream.read(BLOCK):
            yield block
