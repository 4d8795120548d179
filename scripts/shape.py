"""The shape of the house in numbers, and its size held by a ratchet.

`make shape` prints it. `python scripts/shape.py --check` (in `make lint`) fails where a folder weighs more
than the larger of its budget (BUDGETS_KB) and its row in scripts/shape.json: its size when the row was
last set. Bytes, because lines can be made long. `--write` lowers the rows, never raises one; without a row
above its budget the file goes.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "scripts/shape.json"
WIDTH = 110
CODE = ("lab", "bench")
CODE_SUFFIXES = {".py", ".c", ".cu", ".cpp", ".h", ".js", ".css", ".jinja"}
# Group of folders -> KB (1,000 bytes) at most.
BUDGETS_KB = {
    "lab/cli + lab/terminal": 70,
    "lab/driver + lab/core": 110,
    "lab/engines": 170,
    "lab/images": 100,
    "lab/gpus": 60,
    "lab/stats": 40,
    "lab/report": 125,
    "lab/recordings": 720,
    "lab/workload": 95,
    "lab/compare": 210,
    "lab/serve": 200,
    "lab/rooms/nan": 560,
    "lab/rooms/kernels": 400,
    "lab/rooms/sweep": 420,
    "lab/rooms/nsys": 215,
    "lab/rooms/semicrf": 380,
    "lab/rooms/trials": 170,
    "lab/perfmodel + lab/power": 110,
    "lab": 4150,
    "tests": 2600,
}
FILES_IN_LAB = 560


def sizes_of(root: Path) -> dict[str, tuple[int, int]]:
    """group of BUDGETS_KB -> (bytes of code, files of code)."""
    return {group: _size_of([root / folder for folder in group.split(" + ")]) for group in BUDGETS_KB}


def _size_of(folders: list[Path]) -> tuple[int, int]:
    files = [
        path.stat().st_size
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in CODE_SUFFIXES and path.is_file() and "__pycache__" not in path.parts
    ]
    return sum(files), sum(size > 0 for size in files)


def overweight(sizes: dict[str, tuple[int, int]], ceilings: dict[str, int]) -> Iterator[str]:
    """A sentence per folder that grew beyond what it may weigh."""
    for group, (size, _) in sizes.items():
        limit = max(BUDGETS_KB[group] * 1000, ceilings.get(group, 0))
        if size > limit:
            yield (
                f"{group}: {size / 1000:.1f} KB of code, at most {limit / 1000:.1f} KB: delete first, "
                "merge what stands twice (budgets: scripts/shape.py)"
            )


def write_ceilings(sizes: dict[str, tuple[int, int]], ceilings: dict[str, int]) -> None:
    """Keep a row for each folder that is still above its budget; a row never grows."""
    rows = {
        group: min(size, ceilings.get(group, size))
        for group, (size, _) in sizes.items()
        if size > BUDGETS_KB[group] * 1000
    }
    if rows:
        TABLE.write_text(json.dumps(rows, indent=1) + "\n")
    else:
        TABLE.unlink(missing_ok=True)


def print_sizes(sizes: dict[str, tuple[int, int]]) -> None:
    print(f"{'folder':<28}{'KB':>9}{'budget':>9}{'files':>7}")
    for group, (size, count) in sizes.items():
        over = "" if size <= BUDGETS_KB[group] * 1000 else "  over"
        print(f"{group:<28}{size / 1000:>9.1f}{BUDGETS_KB[group]:>9}{count:>7}{over}")
    print(f"files with code in lab: {sizes['lab'][1]} (at the end at most {FILES_IN_LAB})\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="another tree to look at")
    parser.add_argument("--check", action="store_true", help="fail where a folder weighs more than it may")
    parser.add_argument("--write", action="store_true", help="lower the rows of scripts/shape.json")
    options = parser.parse_args(arguments)
    sizes = sizes_of(options.root)
    ceilings: dict[str, int] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    if options.write:
        write_ceilings(sizes, ceilings)
    elif options.check:
        sentences = list(overweight(sizes, ceilings))
        print("\n".join(sentences) or "shape: every folder is within its budget or its last size")
        return 1 if sentences else 0
    else:
        print_sizes(sizes)
        print_structure(options.root)
    return 0


def print_structure(root: Path) -> None:
    files = {
        path: path.read_text(encoding="utf-8")
        for name in CODE
        for path in sorted((root / name).rglob("*.py"))
    }
    lab_files = {path: text for path, text in files.items() if path.relative_to(root).parts[0] == "lab"}
    trees = {path: ast.parse(text) for path, text in files.items()}
    lines = {path: text.count("\n") for path, text in lab_files.items() if text.strip()}
    functions = sorted(
        (node.end_lineno - node.lineno + 1, f"{path.relative_to(root)}:{node.lineno} {node.name}")  # type: ignore[operator]
        for path in lab_files
        for node in ast.walk(trees[path])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    longest_count, longest_path = max((count, path) for path, count in lines.items())
    wide = sum(len(line) > WIDTH for text in lab_files.values() for line in text.splitlines())
    tests = sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py"))
    circles = circles_of(imports_of(root, trees))
    print(f"python files     {len(lines)} in lab ({sum(lines.values())} lines), tests {tests} lines")
    print(f"median file      {statistics.median(lines.values()):.0f} lines")
    print(f"longest file     {longest_count} lines, {longest_path.relative_to(root)}")
    print(f"files over 500   {sum(count > 500 for count in lines.values())}")
    print(
        f"median function  {statistics.median(size for size, _ in functions):.0f} lines of {len(functions)}"
    )
    print(f"longest function {functions[-1][0]} lines, {functions[-1][1]}")
    print(f"comments         {comment_share(lab_files.values()):.1f} per 100 lines of code")
    print(f"fmt: skip        {sum(text.count('fmt: skip') for text in lab_files.values())}")
    print(f"lines over {WIDTH}   {wide}")
    print(f"circles          {len(circles)}")
    for circle in circles:
        print(f"  {' <-> '.join(sorted(circle))}")


def comment_share(texts: Iterator[str] | list[str]) -> float:
    """Lines that are a comment and nothing else, per 100 lines that are neither blank nor one."""
    comments = code = 0
    for text in texts:
        for line in text.splitlines():
            stripped = line.strip()
            comments += stripped.startswith("#")
            code += bool(stripped) and not stripped.startswith("#")
    return 100 * comments / max(code, 1)


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
    circles: list[set[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for imported in graph[name]:
            if imported not in order:
                visit(imported)
                low[name] = min(low[name], low[imported])
            elif imported in stack:
                low[name] = min(low[name], order[imported])
        if low[name] == order[name]:
            start = stack.index(name)
            circle = set(stack[start:])
            del stack[start:]
            if len(circle) > 1:
                circles.append(circle)

    for name in graph:
        if name not in order:
            visit(name)
    return circles


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
