"""Mutation tests of what verdicts rest on: `make mutate`, or with ONLY="lab.stats.*" a part of it.

mutmut changes the code one place at a time and runs the tests that reach it. A mutant that no test notices
is a survivor: it is killed by a new test, or explained in tests/mutants.toml. Texts for people are not held
letter by letter: a mutant that only changes the words of a sentence, or what a `raise` says, is `words`.
mutmut leaves decorated functions alone: their tests stand by themselves.

It leaves constants alone, too. Each number of a module-level constant below `only_mutate` is doubled, halved
and trebled here, in a copy of the tree, under the tests that mirror its module. Only that, or a part of it:

    python scripts/mutate.py --constants "lab.compare.same.*"
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
MUTANTS, EXPLAINED = ROOT / "mutants", ROOT / "tests" / "mutants.toml"
MACHINES = ["-m", "not docker and not podman and not slurm and not browser and not gpu"]
SLOWEST_S = 900
NO_TESTS = 5  # pytest's exit code where every test was deselected
UNSEEN = {0: "survived", 33: "no test"}  # mutmut's exit codes


class Survivor(NamedTuple):
    """One mutant that no test noticed: where, and the lines of the unparsed function that differ."""

    function: str
    state: str
    before: str
    after: str


class Constant(NamedTuple):
    """One number of a module-level constant: lab.x.y.NAME, its expression, and where that stands (bytes)."""

    name: str
    path: Path
    text: str
    start: int
    end: int


def main(words: list[str]) -> int:
    only = [word for word in words if word != "--constants"]
    codes = [] if "--constants" in words else [mutate_functions(only)]
    return max([*codes, mutate_constants(only or ["lab.*"])])


def mutate_functions(only: list[str]) -> int:
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
    total = report("mutants", counts, found)
    if not total or code not in (0, 1):
        print(f"mutmut itself failed (exit code {code}): see {log}", file=sys.stderr)
        return 2
    return 1 if found else 0


def report(title: str, counts: dict[str, int], survivors: list[Survivor]) -> int:
    """Print the unexplained survivors and the counts; return how many mutants there were."""
    for mutant in sorted(survivors):
        print(f"{mutant.function} ({mutant.state})\n  - {mutant.before}\n  + {mutant.after}")
    total = sum(counts.values()) + len(survivors)
    parts = [*(f"{count} {outcome}" for outcome, count in counts.items()), f"{len(survivors)} unexplained"]
    print(f"{total} {title}: {', '.join(parts)}", flush=True)
    return total


def mutate_constants(patterns: list[str]) -> int:
    """Change each number of each constant that a pattern names, one at a time, in a copy of the tree."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    paths = [path for path in sorted((ROOT / "lab").rglob("*.py")) if _is_covered(path, settings)]
    constants = [constant for path in paths for constant in constants_of(path)]
    chosen = [one for one in constants if any(fnmatch.fnmatchcase(one.name, word) for word in patterns)]
    counts, survivors, rows = {"killed": 0, "explained": 0}, [], explained()
    with tempfile.TemporaryDirectory(prefix="lab-constants-") as folder:
        tree = copy_of_tree(Path(folder) / "tree")
        for constant in chosen:
            for change in ("* 2", "/ 2", "* 3"):
                mutant = Survivor(constant.name, "survived", constant.text, changed(constant.text, change))
                if known_of(mutant, rows):
                    counts["explained"] += 1
                elif is_noticed(constant, mutant.after, tree):
                    counts["killed"] += 1
                else:
                    survivors.append(mutant)
                    print(f"{mutant.function} ({mutant.state}): {mutant.after}", file=sys.stderr, flush=True)
    report("changed constants", counts, survivors)
    return 1 if survivors else 0


def _is_covered(path: Path, settings: dict[str, list[str]]) -> bool:
    """As mutmut reads the patterns: a star crosses folders."""
    relative = str(path.relative_to(ROOT))
    return any(fnmatch.fnmatch(relative, pattern) for pattern in settings["only_mutate"])


def constants_of(path: Path) -> list[Constant]:
    """Every number in the module-level constants of a file, in tuples and tables too."""
    source = path.read_bytes()
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    constants = []
    for statement in ast.parse(source).body:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        if not names or not all(name.isupper() for name in names):
            continue
        for node in _numbers(statement.value):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            name = f"{module}.{','.join(names)}"
            constants.append(Constant(name, path, source[start:end].decode(), start, end))
    return constants


def _numbers(node: ast.expr) -> list[ast.expr]:
    """The outermost arithmetic expressions of an expression that may be a container."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return [number for element in node.elts for number in _numbers(element)]
    if isinstance(node, ast.Dict):
        return [number for value in node.values for number in _numbers(value)]
    leaves = [part for part in ast.walk(node) if not isinstance(part, (ast.operator, ast.unaryop))]
    arithmetic = (ast.Constant, ast.BinOp, ast.UnaryOp)
    is_number = all(isinstance(part, arithmetic) for part in leaves) and all(
        type(part.value) in (int, float) for part in leaves if isinstance(part, ast.Constant)
    )
    return [node] if is_number else []


def changed(text: str, change: str) -> str:
    """The expression doubled, halved or trebled; a whole number stays one, and 1 becomes 0."""
    is_whole = isinstance(eval(text, {"__builtins__": {}}), int)  # noqa: S307  numbers and operators alone
    return f"({text}) {change.replace('/', '//') if is_whole else change}"


def copy_of_tree(target: Path) -> Path:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def is_noticed(constant: Constant, text: str, tree: Path) -> bool:
    """Whether a test of the constant's module, or then of its folder, fails with the changed number."""
    usable = [tests for tests in mirrors(constant.path) if _is_green(tuple(tests), tree)]
    source = constant.path.read_bytes()
    path = tree / constant.path.relative_to(ROOT)
    path.write_bytes(source[: constant.start] + text.encode() + source[constant.end :])
    try:
        return any(_fails(tests, tree) for tests in usable)
    finally:
        path.write_bytes(source)


def mirrors(path: Path) -> list[list[str]]:
    """The tests of a module, nearest first: the file of its name, then those of the nearest folder."""
    folder = ROOT / "tests" / path.relative_to(ROOT / "lab").parent
    own = folder / f"test_{path.stem}.py"
    while not folder.is_dir() or not list(folder.glob("test_*.py")):
        folder = folder.parent
    files = [str(file.relative_to(ROOT)) for file in sorted(folder.glob("test_*.py")) if file != own]
    return [tests for tests in ([str(own.relative_to(ROOT))] if own.exists() else [], files) if tests]


@functools.cache
def _is_green(tests: tuple[str, ...], tree: Path) -> bool:
    """Whether these tests pass where nothing is changed: they judge nothing otherwise."""
    return _pytest(tests, tree) == 0


def _fails(tests: list[str], tree: Path) -> bool:
    return _pytest(tests, tree) not in (0, NO_TESTS)


def _pytest(tests: Sequence[str], tree: Path) -> int:
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    env.setdefault("LAB_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *MACHINES, *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, timeout=SLOWEST_S)
    except subprocess.TimeoutExpired:
        return 1  # a loop that no longer ends is noticed
    return done.returncode


def outcomes() -> Iterator[tuple[str, str]]:
    """Every mutant that was run, and what became of it."""
    for path in sorted(MUTANTS.rglob("*.meta")):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            if code is not None:
                yield name, UNSEEN.get(code, "killed")


def survivor(name: str, state: str) -> Survivor:
    module, _, mangled = name.rpartition(".")
    stem, _, number = mangled.rpartition("__mutmut_")
    file = MUTANTS / Path(*module.split("."))
    functions = _functions(file / "__init__.py" if file.is_dir() else file.with_suffix(".py"))
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
