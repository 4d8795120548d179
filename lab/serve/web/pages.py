"""The pages: what each route looks up, and the template that shows it."""

from __future__ import annotations

import contextlib
import hmac
import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse

from lab import report
from lab.core.words import plural, size_text
from lab.errors import MissingError, UsageError
from lab.report import css_variables
from lab.serve.index import GOING, Index, activity, key_of, live_tail, may_go_on
from lab.serve.jobs import DIFF, Jobs
from lab.serve.rows import RunRow
from lab.serve.sql.ask import SAVED, ask, infos
from lab.serve.walk import by_step, folders_of_several, of_ranks, opened, recording_inside
from lab.serve.web.differences import changed, clocks_of, fields_of, figure_lines, previous_run
from lab.serve.web.files import file_lines, media_type, verified
from lab.serve.web.guard import Guard
from lab.serve.web.listing import GROUPS, SORTS, Facts, fact_of, link_of, listing, wish_of

FOLDER = Path(__file__).parent
REPORT_FOLDER = Path(report.__file__).parent
SCRIPTS = {
    "serve.js": FOLDER / "static" / "serve.js",
    "perfetto.js": FOLDER / "static" / "perfetto.js",
    "page.js": REPORT_FOLDER / "page.js",
    "timeline.js": REPORT_FOLDER / "timeline.js",
}
NUMERIC = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL.*)\Z")  # of DuckDB's types
MOST_COMPARED = 12  # runs
MOST_RECORDINGS = 64  # of one timeline
MOST_SQL = 16_384  # characters
BLOCK = 1 << 18  # bytes sent at a time


class Site:
    """The routes and what they share: the index, the facts of its rows, the jobs, the templates."""

    def __init__(self, index: Index, guard: Guard) -> None:
        self.index, self.guard, self.jobs = index, guard, Jobs()
        self.templates = _templates()
        self._facts: tuple[int, Facts] = (0, {})  # by the version of the index
        self._mutex = threading.Lock()

    def rows(self) -> tuple[list[RunRow], Facts]:
        with self._mutex:
            rows = self.index.refresh()
            if self._facts[0] != self.index.version:
                self._facts = (self.index.version, {row.folder: fact_of(row) for row in rows})
            return rows, self._facts[1]

    def activities(self, rows: list[RunRow]) -> dict[str, str]:
        """What each open run is doing, by its folder."""
        locks, path = self.index.locks, self.index.path
        words = {row.folder: activity(path(row), row, locks) for row in rows if may_go_on(row)}
        return {folder: word for folder, word in words.items() if word}

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
        template = self.templates.get_template(f"{name}.html.jinja")
        return HTMLResponse(template.render(root=str(self.index.root), **values))

    # Pages

    def home(self, request: Request) -> Response:
        return self._list(request, "home")

    def fragment(self, request: Request) -> Response:
        return self._list(request, "rows")

    def _list(self, request: Request, name: str) -> Response:
        wish = wish_of(request.query_params)
        rows, facts = self.rows()
        activities = self.activities(rows)
        runs = listing(rows, wish, activities, facts)
        tails = {shown.key: live_tail(self.index.path(shown.row), shown.row) for shown in runs.live}
        tag = f'W/"{self.index.version}-{hash((wish, msgspec.json.encode([activities, tails])))}"'
        if name == "rows" and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        answer = self.page(
            name,
            wish=wish,
            runs=runs,
            tails=tails,
            unseen=self.index.unseen,
            loose=self.index.recordings,
            together=[step for step in by_step(self.index.recordings) if of_ranks(step[1])],
            sorts=SORTS,
            group_names=GROUPS,
            link=lambda **changes: link_of(wish, **changes),
        )
        answer.headers["etag"] = tag
        return answer

    def run(self, request: Request) -> Response:
        row = self.row(request.path_params["key"])
        rows, _ = self.rows()
        folder = self.index.path(row)
        files, cut = file_lines(folder)
        earlier = previous_run(rows, row)
        return self.page(
            "run",
            row=row,
            key=key_of(row),
            activity=self.activities([row]).get(row.folder, ""),
            tails=live_tail(folder, row),
            files=files,
            cut=cut,
            has_report=any(file.name == "report.html" for file in files),
            base=f"/files/{key_of(row)}/{self.guard.capability(key_of(row))}/",
            command=shlex.join(row.command),
            facts=fields_of([row], self.clocks),
            earlier=earlier,
            earlier_key=key_of(earlier) if earlier else "",
            changes=changed(earlier, row, self.clocks) if earlier else [],
            recordings=by_step([file.name for file in files if file.recording]),
        )

    def compare(self, request: Request) -> Response:
        rows = self.compared(request.query_params)
        if len(rows) < 2:
            raise UsageError(
                "tick two runs or more in the list, then compare them", fix="go back to the list"
            )
        common = set.intersection(
            *(
                {file_line.name for file_line in file_lines(self.index.path(row))[0] if file_line.recording}
                for row in rows[:2]
            )
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
        """Compare one recording of two runs."""
        rows = self.compared(request.query_params)
        if len(rows) != 2:
            raise UsageError("a diff is of two runs", fix="tick two of them")
        part = request.query_params.get("part", "")
        name = self.jobs.diff([recording_inside(self.index.path(row), part) for row in rows])
        return self.page(
            "diff",
            rows=rows,
            keys=[key_of(row) for row in rows],
            part=part,
            base=f"/files/{name}/{self.guard.capability(name)}/",
        )

    def timeline(self, request: Request) -> Response:
        query = request.query_params
        _, names = self._recordings(query)
        address = [(name, value) for name, value in query.multi_items() if name in ("run", "file")]
        return self.page(
            "timeline",
            row=self.row(query["run"]) if query.get("run") else None,
            key=query.get("run", ""),
            names=names,
            file=_timeline_name(names[0]),
            query=urlencode(address),
        )

    def ask(self, request: Request) -> Response:
        sql = request.query_params.get("sql", "")
        if len(sql) > MOST_SQL:
            raise UsageError(f"the question has more than {MOST_SQL:,} characters")
        answer = None
        if sql.strip():
            with self.jobs.slot():
                answer = ask(self.index.root, sql, most_rows=1000, timeout_s=20.0)
        rows, _ = self.rows()
        return self.page(
            "ask",
            sql=sql,
            answer=answer,
            saved=SAVED,
            tables=infos(rows),
            numeric=[NUMERIC.match(kind) is not None for kind in answer.types] if answer else [],
            keys={row.folder: key_of(row) for row in rows},
        )

    # Data

    def verify(self, request: Request) -> Response:
        row = self.row(request.path_params["key"])
        with self.jobs.slot():
            return JSONResponse(verified(self.index.path(row), request.query_params.get("file", "")))

    def columns(self, request: Request) -> Response:
        paths, _ = self._recordings(request.query_params)
        return FileResponse(self.jobs.file("timeline", paths, ".bin"), media_type="application/octet-stream")

    def perfetto(self, request: Request) -> Response:
        paths, names = self._recordings(request.query_params)
        file = self.jobs.file("perfetto", paths, ".json.gz")
        return FileResponse(file, media_type="application/octet-stream", filename=_timeline_name(names[0]))

    def file(self, request: Request) -> Response:
        """A file of a run or of a diff, under its capability; types by a table, all else as a download."""
        key, name = request.path_params["key"], request.path_params["path"]
        capability = request.path_params["capability"]
        if not hmac.compare_digest(capability.encode(), self.guard.capability(key).encode()):
            raise MissingError("no such file in this run")
        folder = self.jobs.folder / key if key.startswith(DIFF) else self.index.path(self.row(key))
        stream = opened(folder, name)
        kind = media_type(name)
        headers = {"content-disposition": "inline" if kind else "attachment"}
        return StreamingResponse(
            _blocks(stream), media_type=kind or "application/octet-stream", headers=headers
        )

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "lab.css":
            sheets = (REPORT_FOLDER / "page.css", FOLDER / "static" / "serve.css")
            text = "\n".join([css_variables(), *(path.read_text() for path in sheets)])
            return Response(text, media_type="text/css")
        if name not in SCRIPTS:
            raise MissingError("no such file")
        return Response(SCRIPTS[name].read_text(), media_type="text/javascript")

    def _recordings(self, query: QueryParams) -> tuple[list[Path], list[str]]:
        """The files that a query names: below a run, or below the folder itself."""
        folder = self.index.path(self.row(query["run"])) if query.get("run") else self.index.root
        names = query.getlist("file")
        if not names or len(names) > MOST_RECORDINGS:
            raise UsageError("between one and 64 recordings", fix="choose them on the page of a run")
        return [recording_inside(folder, name) for name in names], names


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": _size, "plural": plural, "when": lambda text: text[:16].replace("T", " ")}
    environment.globals["going"] = GOING
    environment.globals["words"] = {"ok": "ok", "warn": "reservations", "fail": "no result"}
    return environment


def _size(size_bytes: int) -> str:
    return plural(size_bytes, "byte") if size_bytes < 1000 else size_text(size_bytes)


def _timeline_name(name: str) -> str:
    """What a recording's name becomes as a Perfetto file."""
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    return f"{plain[-80:].removesuffix('.gz').removesuffix('.json')}.json.gz"


def _blocks(stream: Any) -> Iterator[bytes]:
    with contextlib.closing(stream):
        while block := stream.read(BLOCK):
            yield block
