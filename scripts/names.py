"""Vague names, and phrases that read as translated: refused by `make lint`.

`python scripts/names.py [FOLDER]` prints them.

A binding is a variable, a parameter or an attribute: what an assignment, a loop, `with ... as`,
`except ... as`, an import alias, a parameter or a field gives a name to. The element of a comprehension
that fits on one line is free. BANNED words never stand alone as a name; RARE ones are for exactly what they
say (`first, *rest = rows`) and stay below RARE_SHARE of a folder's bindings.

PHRASES are looked for in the comments and texts of lab/, and in the pages.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BANNED_WORDS = """
one other others found at here there given own said told kept known made some most least where whole each
every both mine ours theirs its begun done seen how what who which why thing it them
"""
BANNED = frozenset(BANNED_WORDS.split())
RARE = frozenset(("first", "last", "rest", "before", "after", "now", "more"))
RARE_SHARE = 0.005
PHRASES = re.compile(
    r"\b(is|are|holds) no (?!longer\b|more\b)|\bnobody\b|\bsomebody\b|\b(one|row|line|file|process) a side\b"
    r"|(?<!word )\bin words\b|\bis told\b|\bcome what may\b",
    re.IGNORECASE,
)
TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


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
    parts = path.parts
    depth = 3 if parts[1] == "rooms" and len(parts) > 3 else 2
    return "/".join(parts[:depth]) if len(parts) > depth - 1 and not parts[1].endswith(".py") else "lab"


def phrases_of(path: Path, text: str) -> Iterator[str]:
    """`path:line: phrase` for each phrase of the sheet in a page, or in a module's comments and strings."""
    for line, words in _texts_of(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1):
        for match in PHRASES.finditer(words):
            yield f"{path.as_posix()}:{line}: {match[0].strip()!r}"


def _texts_of(code: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in TEXTS:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", default="", help="only what stands below it (lab/engines)")
    folder = parser.parse_args(arguments).folder
    modules = [path.relative_to(ROOT) for path in sorted((ROOT / "lab").rglob("*.py"))]
    pages = [path.relative_to(ROOT) for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])]
    texts = {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in [*modules, *pages]
        if path.as_posix().startswith(folder)
    }
    bindings = [
        binding for path, text in texts.items() if path.suffix == ".py" for binding in bindings_of(path, text)
    ]
    totals = Counter(folder_of(binding.path) for binding in bindings)
    rare = Counter(folder_of(binding.path) for binding in bindings if binding.word in RARE)
    vague = [
        binding
        for binding in bindings
        if binding.word in BANNED
        or (
            binding.word in RARE
            and rare[folder_of(binding.path)] > RARE_SHARE * totals[folder_of(binding.path)]
        )
    ]
    phrases = [phrase for path, text in texts.items() for phrase in phrases_of(path, text)]
    for binding in vague:
        print(
            f"{binding.path.as_posix()}:{binding.line}: {binding.kind} {binding.name}: say the thing's noun"
        )
    print("\n".join(phrases), end="\n" if phrases else "")
    print(f"names: {len(vague)} of {len(bindings)} bindings are vague, {len(phrases)} phrases to mend")
    return 1 if vague or phrases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
