"""Mutation tests of what verdicts rest on: `make mutate`, or with ONLY="lab.stats.*" a part of it.

mutmut changes the code one place at a time and runs the tests that reach it. A mutant that no test notices
is a survivor: it is killed by a new test, or explained in tests/mutants.toml. Texts for people are not held
letter by letter: a mutant that only changes the words of a sentence, or what a `raise` says, is `words`.
mutmut leaves decorated functions, constants and tables alone: their tests stand by themselves.
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
MUTANTS, EXPLAINED = ROOT / "mutants", ROOT / "tests" / "mutants.toml"
UNSEEN = {0: "survived", 33: "no test"}  # mutmut's exit codes


class Survivor(NamedTuple):
    """One mutant that no test noticed: where, and the lines of the unparsed function that differ."""

    function: str
    state: str
    before: str
    after: str


def main(only: list[str]) -> int:
    log = MUTANTS.with_suffix(".log")
    with log.open("w") as file:
        command = [str(Path(sys.executable).with_name("mutmut")), "run", *only]
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT).returncode
    counts, found = {"killed": 0, "words": 0, "explained": 0}, []
    rows = explained()
    for name, state in outcomes():
        if state not in UNSEEN.values():
            counts["killed"] += 1
            continue
        one = survivor(name, state)
        if only_words(one):
            counts["words"] += 1
        elif known_of(one, rows):
            counts["explained"] += 1
        else:
            found.append(one)
    for one in sorted(found):
        print(f"{one.function} ({one.state})\n  - {one.before}\n  + {one.after}")
    total = sum(counts.values()) + len(found)
    print(
        f"{total} mutants: "
        + ", ".join(f"{n} {what}" for what, n in counts.items())
        + f", {len(found)} unexplained"
    )
    if not total or code not in (0, 1):
        print(f"mutmut itself failed (exit code {code}): see {log}", file=sys.stderr)
        return 2
    return 1 if found else 0


def outcomes() -> Iterator[tuple[str, str]]:
    """Every mutant that was run, and what became of it."""
    for path in sorted(MUTANTS.rglob("*.meta")):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            if code is not None:
                yield name, UNSEEN.get(code, "killed")


def survivor(name: str, state: str) -> Survivor:
    module, _, mangled = name.rpartition(".")
    stem, _, number = mangled.rpartition("__mutmut_")
    functions = _functions(MUTANTS / Path(*module.split(".")).with_suffix(".py"))
    before, after = (functions[f"{stem}__mutmut_{which}"] for which in ("orig", number))
    lines = [line for line in difflib.ndiff(before, after) if line[0] in "-+"]
    parts = [" ".join(line[2:].strip() for line in lines if line[0] == sign) for sign in "-+"]
    readable = stem.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
    return Survivor(f"{module}.{readable}", state, *parts)


def _functions(path: Path, cache: dict[Path, dict[str, list[str]]] = {}) -> dict[str, list[str]]:  # noqa: B006
    """Name -> lines of every function of a mutated file, its name and formatting taken away."""
    if path not in cache:
        cache[path] = {}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and "__mutmut_" in node.name:
                name, node.name = node.name, "f"
                cache[path][name] = ast.unparse(node).splitlines()
    return cache[path]


def only_words(one: Survivor) -> bool:
    """Whether both sides are the same but for the words of string literals that people read."""
    plain = [_without_words(text) for text in (one.before, one.after)]
    return None not in plain and plain[0] == plain[1]


def known_of(one: Survivor, rows: list[dict[str, str]]) -> bool:
    """Whether a row explains this mutant: its function by a pattern, its lines by a regular expression."""
    return any(
        fnmatch.fnmatchcase(one.function, row["function"]) and re.search(row["after"], one.after)
        for row in rows
    )


def _without_words(text: str) -> str | None:
    """The line with every string that holds a blank emptied; None where it cannot be parsed alone."""
    for candidate in (text, f"{text.rstrip(':')}:\n    pass", f"f({text.rstrip(',')})"):
        try:
            tree = ast.parse(candidate)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                node.exc.args, node.exc.keywords = [], []
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value.strip("X")
            ):
                node.value = ""
        return ast.unparse(tree)
    return None


def explained() -> list[dict[str, str]]:
    """Rows of tests/mutants.toml: function, after (the mutated lines), why no test can or should notice."""
    rows: list[dict[str, str]] = tomllib.loads(EXPLAINED.read_text())["mutant"] if EXPLAINED.exists() else []
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
