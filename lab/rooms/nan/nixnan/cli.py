"""`lab nan parse` and `lab nan diff`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.errors import LabError
    from lab.rooms.nan.nixnan.logs import Log

NAMES = re.compile(r".*\.(nixnan|nnlog)(\.gz)?|nixnan.*\.(log|txt)(\.gz)?")
_TOP = 12
_KINDS = ("lines", "sites", "NaN", "infinity", "-infinity", "subnormal")
_OF_FUNCTIONS = ("short", "category", *_KINDS, "nan_births")
_OF_INSTRUCTIONS = ("opcode", *_KINDS, "births", "transits", "source_only")


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOG...")
@click.option("--json", "as_json", is_flag=True, help="One object a log on stdout, a line each.")
@click.option(
    "--sites",
    "sites_csv",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the table of sites to this CSV.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 unless every log is complete.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def parse(logs: tuple[Path, ...], as_json: bool, sites_csv: Path | None, strict: bool, quiet: bool) -> None:
    """Read nixnan logs (also .gz): what they hold, and whether that is all.

    A folder stands for the logs in it. Counts are of lines, one per distinct instruction, mask and operand; a log is
    complete when they equal the report nixnan wrote at the end. Zero events say nothing about what nixnan does not see.
    """
    import msgspec

    from lab.errors import LabError, StepFailed
    from lab.rooms.nan.nixnan import logs as reader

    read: list[Log] = []
    failed: list[LabError] = []
    for path in [one for given in logs for one in found(given)]:
        try:
            log = reader.parse(path, progress=_progress(path, quiet or as_json))
        except LabError as error:
            if len(logs) == 1 and not logs[0].is_dir():
                raise
            failed.append(error)
            click.echo(f"{error}\n", err=True)
            if as_json:
                click.echo(msgspec.json.encode({"file": str(path), "error": error.what, "fix": error.fix}))
            continue
        read.append(log)
        click.echo(msgspec.json.encode(reader.as_json(log)) if as_json else described(log))
    if sites_csv:
        write_sites(read, sites_csv)
    lacking = [log.file for log in read if log.integrity != "complete"]
    if failed:
        raise StepFailed(
            f"{len(failed)} of {len(failed) + len(read)} logs could not be read", where=failed[0].where
        )
    _refuse_foreign(read)
    if strict and lacking:
        raise StepFailed(f"{len(lacking)} of {len(read)} logs are not complete", where=lacking[0])


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--noise",
    type=click.Path(path_type=Path),
    metavar="A2",
    help="A second run of what A is: how much a run differs from itself.",
)
@click.option("--json", "as_json", is_flag=True, help="The comparison as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def diff(a: Path, b: Path, noise: Path | None, as_json: bool, quiet: bool) -> None:
    """Compare the sites of two logs, or of two folders with the logs of one run each.

    A site is (function, SASS, operand). Without --noise the difference is shown and not judged.
    """
    import msgspec

    from lab.rooms.nan.nixnan import logs as reader
    from lab.rooms.nan.nixnan.diff import diff as compare

    parsed = [
        reader.parse(found(path), progress=_progress(path, quiet or as_json))
        for path in (a, b, *([noise] if noise else []))
    ]
    _refuse_foreign(parsed)
    result = compare(parsed[0], parsed[1], parsed[2] if noise else None)
    click.echo(msgspec.json.encode(result) if as_json else compared(result))


def _refuse_foreign(read: Sequence[Log]) -> None:
    """Raises BadDataError for a file with text of which no line is nixnan's; an empty one is a log that says nothing."""
    from lab.errors import BadDataError

    for log in read:
        if 0 < log.lines == log.foreign_lines:
            raise BadDataError(
                "no line of nixnan's is in this file",
                where=log.file,
                fix="name a log of nixnan (its LOGFILE, or its stderr)",
            )


def found(path: Path) -> list[Path]:
    """The logs that `path` stands for: itself, or all in the folder. Raises MissingError for none."""
    from lab.errors import MissingError

    if not path.is_dir():
        return [path]
    inside = sorted(one for one in path.rglob("*") if NAMES.fullmatch(one.name) and one.is_file())
    if not inside:
        raise MissingError(
            "no nixnan log in this folder",
            where=path,
            fix="name the files: in a folder, only *.nixnan, *.nnlog and nixnan*.log are looked for",
        )
    return inside


def _progress(path: Path, quiet: bool) -> Callable[[int, int], None] | None:
    """A line a tenth of a log that takes a while to read; nothing for a small one."""
    if quiet or not path.is_file() or path.stat().st_size < 64 << 20:
        return None
    said = [0]

    def tell(done: int, size: int) -> None:
        tenths = 10 * done // max(size, 1)
        if tenths > said[0]:
            said[0] = tenths
            click.echo(f"{path.name}: {10 * tenths} % of {size / 1e6:.0f} MB", err=True)

    return tell


def described(log: Log) -> str:
    """A log in words and tables, as the terminal shows it."""
    import pandas as pd

    from lab.report.tables import terminal_table
    from lab.rooms.nan.nixnan.sass import summary

    said = summary(log)
    parts = [
        f"{log.file}: {log.integrity}. {said['reasons'][0]}",
        *(f"  {reason}" for reason in said["reasons"][1:]),
        f"{log.lines} lines, {log.error_lines} of events at {log.site_count} sites, {log.torn_lines} torn, {log.foreign_lines} not nixnan's.",
        f"Verdict of this level: {said['verdict']}. {said['verdict_why']}",
    ]
    if rows := _count_rows(log):
        parts += [
            "",
            "Lines by type and kind (report: unique events, then repeats)",
            terminal_table(pd.DataFrame(rows)),
        ]
    for title, rows, columns in (
        ("Functions", said["kernels"], _OF_FUNCTIONS),
        ("Instructions", said["instructions"], _OF_INSTRUCTIONS),
    ):
        if rows:
            parts += [title, terminal_table(_columns(rows, columns))]
    for cause in said["causes"][:_TOP]:
        first = cause["evidence"][0]
        parts.append(
            f"{cause['what']} ({cause['confidence']} confidence{', harmless' if cause['benign'] else ''}): {_several(cause['sites'], 'instruction')}. {cause['why']}"
        )
        parts.append(f"    line {first['line']}: {first['raw']}")
    parts += ["", said["coverage"]["statement"], *said["coverage"]["warnings"]]
    parts += [
        f"{twin['function']} repeats {twin['sites']} entries of {twin['same_as']}: not counted again in tables."
        for twin in said["twins"]
    ]
    return "\n".join([*parts, ""])


def _several(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def compared(result: dict[str, Any]) -> str:
    """A comparison in words and tables."""
    import pandas as pd

    from lab.report.tables import terminal_table

    parts = [
        f"A {result['a']['file']}",
        f"B {result['b']['file']}",
        *(f"Note: {warning}" for warning in result["warnings"]),
        "",
        result["verdict"],
    ]
    if result["moved_count"]:
        parts.append(
            f"{result['moved_count']} of the appeared sites are vanished ones with other registers: the code was compiled anew."
        )
    if result["changed_count"]:
        parts.append(f"{result['changed_count']} common sites show other kinds.")
    if result["by_category"]:
        parts += ["", terminal_table(pd.DataFrame(result["by_category"]).drop(columns="category"))]
    for name in ("appeared", "vanished"):
        kinds = ", ".join(f"{count} {kind}" for kind, count in result[f"{name}_kinds"].items())
        parts.append(f"{result[f'{name}_count']} {name}{f' ({kinds})' if kinds else ''}")
        parts += [
            f"    {'/'.join(row['kinds'])} operand {row['operand']}  {row['sass']}  in {row['function']}"
            for row in result[name][:_TOP]
        ]
    return "\n".join(parts)


def write_sites(logs: list[Log], path: Path) -> None:
    """All listed sites as a CSV, a row a site."""
    import pandas as pd

    from lab.report.tables import write_csv
    from lab.rooms.nan.nixnan.categories import category
    from lab.rooms.nan.nixnan.grammar import KINDS

    write_csv(
        pd.DataFrame(
            [
                {
                    "file": site.file,
                    "function": site.function,
                    "category": category(log.twins.get(site.function, site.function)),
                    "sass": site.sass,
                    "opcode": site.opcode,
                    "operand": site.operand,
                    "type": site.type,
                    "lines": site.lines,
                    **{kind: site.kinds.get(kind, 0) for kind in KINDS},
                    "places": " ".join(site.places),
                    "line": site.line,
                }
                for log in logs
                for site in log.sites
            ]
        ),
        path,
    )


def _columns(rows: list[dict[str, Any]], names: tuple[str, ...]) -> Any:
    import pandas as pd

    more = len(rows) - _TOP
    table = pd.DataFrame([{name: row[name] for name in names} for row in rows[:_TOP]])
    if more > 0:
        rest = {
            name: sum(row[name] for row in rows[_TOP:]) for name in names if isinstance(rows[0][name], int)
        }
        table = pd.concat([table, pd.DataFrame([{names[0]: f"{more} more", **rest}])], ignore_index=True)
    return table


def _count_rows(log: Log) -> list[dict[str, Any]]:
    """A row a (type, memory, kind) that is not all zero."""
    rows = []
    for memory in (False, True):
        counts, report = (
            tree["memory"] if memory else {name: row for name, row in tree.items() if name != "memory"}
            for tree in (log.counts, log.report or {"memory": {}})
        )
        for label in dict.fromkeys([*counts, *report]):
            for kind in dict.fromkeys([*counts.get(label, {}), *report.get(label, {})]):
                said = report.get(label, {}).get(kind, {})
                row = {
                    "type": f"{label} memory" if memory else label,
                    "kind": kind,
                    "lines": counts.get(label, {}).get(kind, 0),
                    "report": said.get("unique"),
                    "repeats": said.get("repeats"),
                }
                if row["lines"] or row["report"]:
                    rows.append(row)
    return rows
