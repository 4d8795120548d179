"""The shape of the house in numbers: `make shape`, or `python scripts/shape.py [ROOT]` for another tree."""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 110
CODE = ("lab", "bench")


def main(root: Path) -> None:
    files = {
        path: path.read_text(encoding="utf-8")
        for name in CODE
        for path in sorted((root / name).rglob("*.py"))
    }
    ours = {path: text for path, text in files.items() if path.relative_to(root).parts[0] == "lab"}
    trees = {path: ast.parse(text) for path, text in files.items()}
    lines = {path: text.count("\n") for path, text in ours.items() if text.strip()}
    functions = sorted(
        (node.end_lineno - node.lineno + 1, f"{path.relative_to(root)}:{node.lineno} {node.name}")  # type: ignore[operator]
        for path in ours
        for node in ast.walk(trees[path])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    longest, where = max((count, path) for path, count in lines.items())
    wide = sum(len(line) > WIDTH for text in ours.values() for line in text.splitlines())
    tests = sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py"))
    circles = circles_of(imports_of(root, trees))
    print(f"files            {len(lines)} in lab ({sum(lines.values())} lines), tests {tests} lines")
    print(f"median file      {statistics.median(lines.values()):.0f} lines")
    print(f"longest file     {longest} lines, {where.relative_to(root)}")
    print(f"files over 500   {sum(count > 500 for count in lines.values())}")
    print(
        f"median function  {statistics.median(size for size, _ in functions):.0f} lines of {len(functions)}"
    )
    print(f"longest function {functions[-1][0]} lines, {functions[-1][1]}")
    print(f"fmt: skip        {sum(text.count('fmt: skip') for text in ours.values())}")
    print(f"lines over {WIDTH}   {wide}")
    print(f"circles          {len(circles)}")
    for circle in circles:
        print(f"  {' <-> '.join(sorted(circle))}")


def imports_of(root: Path, trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """module -> the modules of this tree that it imports, wherever in it."""
    names = {module_of(path.relative_to(root)): path for path in trees}
    return {name: set(_imported(trees[path], names)) - {name} for name, path in names.items()}


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, names: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in names or node.module in names:
                    yield full if full in names else node.module


def circles_of(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of more than one module that all reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            start = stack.index(name)
            circle = set(stack[start:])
            del stack[start:]
            if len(circle) > 1:
                found.append(circle)

    for name in graph:
        if name not in order:
            visit(name)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1])
