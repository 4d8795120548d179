"""Vague names per folder, held by a ratchet: `make lint`, or `python scripts/names.py [--list FOLDER]`.

A binding is a variable, a parameter or an attribute: what an assignment, a loop, `with ... as`,
`except ... as`, an import alias, a parameter or a field gives a name to. The element of a comprehension
that fits on one line is free. BANNED words never stand alone as a name; RARE ones are for exactly what they
say (`first, *rest = rows`) and stay below RARE_SHARE of a folder's bindings.

scripts/names.json says what each folder may still have. It may only shrink: a folder with fewer vague names
than its row fails, too, until `--write` has lowered the row, so that a name that went cannot come back.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "scripts/names.json"
BANNED_WORDS = """
one other others found at here there given own said told kept known made some most least where whole each
every both mine ours theirs its begun done seen how what who which why thing it them
"""
BANNED = frozenset(BANNED_WORDS.split())
RARE = frozenset(("first", "last", "rest", "before", "after", "now", "more"))
RARE_SHARE = 0.005


class Binding(NamedTuple):
    path: Path
    line: int
    column: int
    name: str
    kind: str  # variable, parameter or attribute

    @property
    def word(self) -> str:
        """The name without the underscores that only say how private it is."""
        return self.name.strip("_")


def bindings_of(path: Path, text: str) -> Iterator[Binding]:
    """Every name that this file binds, in the order of the tree."""
    tree = ast.parse(text)
    free = _elements_of_short_comprehensions(tree)
    fields = {id(target) for target in _class_targets(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in free:
            kind = "attribute" if id(node) in fields else "variable"
            yield Binding(path, node.lineno, node.col_offset, node.id, kind)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            end_column = node.end_col_offset or 0
            yield Binding(path, node.end_lineno or 0, end_column - len(node.attr), node.attr, "attribute")
        elif isinstance(node, ast.arg):
            yield Binding(path, node.lineno, node.col_offset, node.arg, "parameter")
        elif (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
        ):
            yield Binding(path, node.lineno, node.col_offset, node.name, "variable")
        elif isinstance(node, ast.alias) and node.asname:
            yield Binding(path, node.lineno, node.col_offset, node.asname, "variable")


def _class_targets(tree: ast.Module) -> Iterator[ast.expr]:
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for statement in owner.body:
                if isinstance(statement, ast.AnnAssign):
                    yield statement.target
                elif isinstance(statement, ast.Assign):
                    yield from statement.targets


def _elements_of_short_comprehensions(tree: ast.Module) -> set[int]:
    """The targets of comprehensions that stand on one line: there a short word reads well."""
    return {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
        and node.lineno == node.end_lineno
        for generator in node.generators
        for name in ast.walk(generator.target)
        if isinstance(name, ast.Name)
    }


def folder_of(path: Path) -> str:
    """`lab/engines`, `lab/rooms/nan`, or `lab` for a file beside the folders."""
    parts = path.relative_to(ROOT).parts
    depth = 3 if parts[1] == "rooms" and len(parts) > 3 else 2
    return "/".join(parts[:depth]) if len(parts) > depth - 1 and not parts[1].endswith(".py") else "lab"


def all_bindings() -> list[Binding]:
    return [
        binding
        for path in sorted((ROOT / "lab").rglob("*.py"))
        for binding in bindings_of(path, path.read_text(encoding="utf-8"))
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--list", metavar="FOLDER", help="print the vague bindings below FOLDER (lab/engines)"
    )
    parser.add_argument(
        "--write", action="store_true", help="lower the rows of scripts/names.json to what is there"
    )
    options = parser.parse_args(arguments)
    bindings = all_bindings()
    if options.list:
        for binding in bindings:
            place = binding.path.relative_to(ROOT).as_posix()
            if place.startswith(options.list) and binding.word in BANNED | RARE:
                print(f"{place}:{binding.line}:{binding.column}: {binding.name} ({binding.kind})")
        return 0
    totals = Counter(folder_of(binding.path) for binding in bindings)
    banned = Counter(folder_of(binding.path) for binding in bindings if binding.word in BANNED)
    rare = Counter(folder_of(binding.path) for binding in bindings if binding.word in RARE)
    allowed: dict[str, dict[str, int]] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    if options.write:
        _write(
            {folder: _row(totals[folder], banned[folder], rare[folder]) for folder in sorted(totals)}, allowed
        )
        return 0
    problems = [
        problem
        for folder in sorted(totals)
        for problem in _problems(
            folder,
            _row(totals[folder], banned[folder], rare[folder]),
            allowed.get(folder, {"banned": 0, "rare": 0}),
        )
    ]
    vague = sum(banned.values()) + sum(rare.values())
    print(f"names: {vague} of {len(bindings)} bindings are vague words ({vague / len(bindings):.1%})")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _row(total: int, banned: int, rare: int) -> dict[str, int]:
    """What counts against a folder: rare words only beyond their share."""
    return {"banned": banned, "rare": rare if rare > RARE_SHARE * total else 0}


def _problems(folder: str, row: dict[str, int], allowed: dict[str, int]) -> Iterator[str]:
    for kind in ("banned", "rare"):
        if row[kind] > allowed[kind]:
            yield (
                f"{folder}: {row[kind]} {kind} names, at most {allowed[kind]}: "
                f"see `python scripts/names.py --list {folder}` and say the thing's noun"
            )
        elif row[kind] < allowed[kind]:
            yield f"{folder}: fewer {kind} names than its row: run `python scripts/names.py --write`"


def _write(rows: dict[str, dict[str, int]], allowed: dict[str, dict[str, int]]) -> None:
    """Rows only shrink; without a vague name left anywhere the table goes."""
    if allowed:
        no_row = {"banned": 0, "rare": 0}
        rows = {
            folder: {kind: min(count, allowed.get(folder, no_row)[kind]) for kind, count in row.items()}
            for folder, row in rows.items()
        }
    rows = {folder: row for folder, row in rows.items() if any(row.values())}
    if rows:
        TABLE.write_text(json.dumps(rows, indent=1) + "\n")
    else:
        TABLE.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
