"""What Inductor wrote about its kernels: mappings of nodes, comments in generated files, stack traces."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lab.errors import MissingError

MAX_FILES = 5_000
MAX_BYTES = 16 << 20
_MAPPINGS = "provenance_tracking_node_mappings"
_STACKS = "provenance_tracking_kernel_stack_traces"
_NUMBER = re.compile(r":\d+\Z")
_PATH = re.compile(r"# kernel path: \S*?([a-z2-7]{8,64})\.py\s*\Z")
_NODES = re.compile(r"# (?:Topologically Sorted|Unsorted) Source Nodes: \[(.*?)\], Original ATen: \[(.*?)\]")
_MAPPED = re.compile(r"#   (\S+) => (.+)\Z")
_KERNEL = re.compile(r"(\w+) = async_compile\.\w+\(")
_FILE = re.compile(r"# File: (.+):(\d+) in (\w+)")
_NODE = re.compile(r"(\w+)(?:: \"[^\"]*\")? = torch\.ops\.(\w+)\.(\w+)")
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\w+)')
_FRAMEWORK = re.compile(r"(^|/)(site-packages|dist-packages)/(torch|triton)/")


@dataclass(frozen=True)
class Origin:
    """What a kernel was made of: operators (`aten.add`), and lines of the model (`model.py:12 forward`)."""

    rule: str
    ops: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass
class Provenance:
    """Origins by (name, hash), and by name."""

    by_hash: dict[tuple[str, str], Origin] = field(default_factory=dict)
    by_name: dict[str, list[Origin]] = field(default_factory=lambda: defaultdict(list))

    def of(self, name: str, hash_: str) -> Origin | None:
        """The origin of a kernel. By the name alone only where every graph that has it says the same."""
        if hash_ and (origin := self.by_hash.get((name, hash_))):
            return origin
        same = self.by_name.get(name, [])
        return same[0] if same and all(one == same[0] for one in same) else None


def read_provenance(folders: Sequence[Path]) -> Provenance:
    """Everything that Inductor left in these folders and below.

    Files that are too large, damaged or something else are passed over. Raises MissingError for no folder.
    """
    provenance = Provenance()
    for folder in folders:
        if not folder.is_dir():
            raise MissingError("no such folder of Inductor's files", location=folder)
        graphs: dict[Path, list[Path]] = defaultdict(list)
        for path in _files(folder):
            graphs[path.parent].append(path)
        for files in graphs.values():
            _read_graph(files, provenance)
    return provenance


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".json") and path.is_file() and not path.is_symlink():
            if path.stat().st_size <= MAX_BYTES:
                count += 1
                yield path
            if count >= MAX_FILES:
                return


def _read_graph(files: list[Path], provenance: Provenance) -> None:
    """The files of one compiled graph lie in one folder."""
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files}
    nodes: dict[str, tuple[str, str]] = {}
    hashes: dict[str, str] = {}
    comments: dict[str, Origin] = {}
    for path, text in texts.items():
        if path.suffix != ".py":
            continue
        if "torch.ops." in text and "# File: " in text:
            nodes |= _nodes(text)
        if "# kernel path: " in text or "Original ATen: [" in text:
            _read_comments(text, hashes, comments)
    mapped: dict[str, list[str]] = {}
    stacks: dict[str, list[str]] = {}
    for path, text in texts.items():
        if _MAPPINGS in path.name:
            mapped |= _lists(text, "cppCodeToPost")
        elif _STACKS in path.name:
            stacks |= _lists(text, "")
    origins = {name: _with_lines(origin, nodes) for name, origin in comments.items()}
    for name, post in mapped.items():
        origins[name] = _from_nodes(post, nodes, stacks.get(name, []))
    for name, origin in origins.items():
        provenance.by_name[name].append(origin)
        if name in hashes:
            provenance.by_hash[name, hashes[name]] = origin


def _lists(text: str, key: str) -> dict[str, list[str]]:
    """Lists of texts by kernel, without the numbers that Inductor puts behind its name."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    table = value.get(key) if key and isinstance(value, dict) else value
    if not isinstance(table, dict):
        return {}
    lists: dict[str, list[str]] = defaultdict(list)
    for name, values in table.items():
        if isinstance(values, list):
            lists[_NUMBER.sub("", name)] += [value for value in values if isinstance(value, str)]
    return dict(lists)


def _nodes(text: str) -> dict[str, tuple[str, str]]:
    """Node -> (operator, line of the model), from a printed graph."""
    nodes, line = {}, ""
    for row in text.splitlines():
        if match := _FILE.search(row):
            line = "" if _FRAMEWORK.search(match[1]) else f"{Path(match[1]).name}:{match[2]} {match[3]}"
        elif match := _NODE.search(row):
            nodes[match[1]] = (f"{match[2]}.{match[3]}", line)
    return nodes


def _read_comments(text: str, hashes: dict[str, str], comments: dict[str, Origin]) -> None:
    """Name -> hash, and name -> origin, from the comments above each kernel."""
    hash_ = ""
    ops: tuple[str, ...] = ()
    mapped: list[str] = []
    for row in text.splitlines():
        if match := _PATH.match(row):
            hash_, ops, mapped = match[1], (), []
        elif match := _NODES.match(row):
            ops, mapped = tuple(word for word in match[2].split(", ") if word), []
        elif match := _MAPPED.match(row):
            mapped += match[2].split(", ")
        elif match := _KERNEL.match(row):
            if hash_:
                hashes[match[1]] = hash_
            if ops:
                comments[match[1]] = Origin("comment", ops, tuple(mapped))
            hash_, ops, mapped = "", (), []


def _with_lines(origin: Origin, nodes: dict[str, tuple[str, str]]) -> Origin:
    """Lines of the model instead of names of nodes, as far as a printed graph has them."""
    return Origin(
        origin.rule, origin.ops, _distinct(nodes[line][1] for line in origin.lines if line in nodes)
    )


def _from_nodes(post: list[str], nodes: dict[str, tuple[str, str]], stacks: list[str]) -> Origin:
    order = {name: index for index, name in enumerate(nodes)}
    post = sorted(post, key=lambda name: order.get(name, len(order)))
    ops = tuple(nodes[name][0] if name in nodes else name for name in post)
    lines = _distinct(nodes[name][1] for name in post if name in nodes)
    return Origin("provenance", ops, lines or _distinct(map(_innermost, stacks)))


def _innermost(stack: str) -> str:
    """The innermost line of a stack that is not the framework's."""
    frames = [match for match in _FRAME.finditer(stack) if not _FRAMEWORK.search(match[1])]
    return f"{Path(frames[-1][1]).name}:{frames[-1][2]} {frames[-1][3]}" if frames else ""


def _distinct(texts: Iterator[str] | map[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
