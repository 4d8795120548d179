"""torch.compile: from an Inductor kernel to the operators it fused, to lines of the model, to its graph.

Best rule first, and the one that answered stands beside the answer:

| rule | what it rests on |
|---|---|
| provenance | `inductor_provenance_tracking_node_mappings.json` (TORCH_COMPILE_DEBUG=1), and its graphs |
| comment | the comment above the kernel in Inductor's generated file (`output_code.py`) |
| name | the operators in the kernel's own name (their order there is alphabetical) |
| stack | the line of the generated file that launched it, from the recorded Python stack |
| none | nothing is known |

A kernel is (name, hash of its file): two graphs may both have a `triton_poi_fused_0`.
Files are looked for by hash, beside the trace and in folders that the user names: never at a path that a
recording holds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lab.errors import MissingError
from lab.recordings.kineto.decode import EventDecoder
from lab.recordings.pieces import EventPieces, is_json

_KERNEL_NAME = re.compile(r"triton_(poi|red|per|tem|for|cpr|spl|unk|mm)_\w+\Z")
_CATEGORIES = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "persistent reduction",
    "tem": "template",
    "for": "foreach",
}
_HASH = re.compile(r"[a-z2-7]{8,64}\Z")
_MARK = b'"kernel_hash"'


class InductorKernel(msgspec.Struct, frozen=True):
    """One kernel as the recording describes it; "" and -1 where it does not say.

    hash is the name of its generated file without `.py`; kwargs the block sizes, as `XBLOCK=2,R0_BLOCK=2048`.
    """

    name: str
    hash: str = ""
    kwargs: str = ""
    num_warps: int = -1
    num_stages: int = -1


class _Args(msgspec.Struct):
    external_id: int = msgspec.field(name="External id", default=-1)
    kernel_hash: str = ""
    kernel_kwargs: str = ""
    num_warps: int | str = -1
    num_stages: int | str = -1


class _Event(msgspec.Struct):
    name: str = ""
    args: _Args = msgspec.field(default_factory=_Args)


def is_inductor(name: str) -> bool:
    """Whether this is the name of a Triton kernel that Inductor generated."""
    return bool(_KERNEL_NAME.match(name))


def name_of_category(name: str) -> str:
    """`pointwise` for `triton_poi_...`, "" for other names."""
    match = _KERNEL_NAME.match(name)
    return _CATEGORIES.get(match[1], match[1]) if match else ""


def read_inductor(path: Path) -> dict[int, InductorKernel]:
    """Inductor's kernels of a Kineto file by the External id of their op; only those with a file hash.

    Raises what `read_kineto` raises for a file that is not a trace.
    """
    kernels: dict[int, InductorKernel] = {}
    if not is_json(path):  # only torch.profiler records them
        return kernels
    pieces = EventPieces(path, salvage=True)
    decoder = EventDecoder(pieces, Counter(), _Event)
    for piece in pieces:
        if _MARK in piece.text:
            for event in decoder.decode(piece):
                args = event.args
                if args.external_id >= 0 and _HASH.match(args.kernel_hash):
                    kernels[args.external_id] = InductorKernel(
                        name=event.name,
                        hash=args.kernel_hash,
                        kwargs=args.kernel_kwargs,
                        num_warps=_count(args.num_warps),
                        num_stages=_count(args.num_stages),
                    )
    return kernels


def _count(value: int | str) -> int:
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 6 else -1
    return value if 0 <= value < 100_000 else -1


_FUSED = re.compile(r"triton_[a-z]+_fused_(.*?)_?(\d+)\Z")
# Operators whose names have underscores in them: without these, a name would be cut in their middle.
_LONG = """
    _to_copy _unsafe_view _unsafe_index _unsafe_index_put _softmax _log_softmax _softmax_backward_data
    _log_softmax_backward_data _fused_rms_norm _adaptive_avg_pool2d _scaled_mm _int_mm _local_scalar_dense
    _reshape_alias _assert_async _native_batch_norm_legit_functional
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward native_dropout native_dropout_backward
    as_strided as_strided_scatter slice_scatter select_scatter diagonal_scatter index_put index_select
    index_add masked_fill masked_scatter constant_pad_nd reflection_pad2d max_pool2d_with_indices
    max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward upsample_nearest2d upsample_bilinear2d
    embedding_dense_backward threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward
    hardtanh_backward leaky_relu leaky_relu_backward nll_loss_forward nll_loss_backward mse_loss
    mse_loss_backward select_backward slice_backward bitwise_and bitwise_not bitwise_or bitwise_xor
    bitwise_left_shift bitwise_right_shift logical_and logical_not logical_or logical_xor floor_divide
    true_divide var_mean new_zeros new_ones new_full new_empty zeros_like ones_like full_like empty_like
    rand_like randn_like scalar_tensor split_with_sizes lift_fresh_copy convert_element_type
    prepare_softmax_online scatter_add scatter_reduce clamp_min clamp_max log_sigmoid_forward
    scaled_dot_product_attention inductor_lookup_seed inductor_random all_reduce all_gather_into_tensor
    reduce_scatter_tensor wait_tensor
"""
_KNOWN = frozenset(_LONG.split())


def fused_ops(kernel: str, op_names: Collection[str] = ()) -> tuple[str, ...]:
    """The operators that the name lists; () where it lists none, as in `triton_poi_fused_0`.

    known: names of operators without namespace, such as those of the recording; the longest that fits counts.
    """
    match = _FUSED.match(kernel)
    tail = match[1] if match else ""
    names = sorted(_KNOWN.union(op_names), key=len, reverse=True)
    by_start: dict[str, list[str]] = {}
    for name in names:
        by_start.setdefault(name[:1], []).append(name)
    ops = []
    while tail:
        op = next((name for name in by_start.get(tail[0], []) if _starts(tail, name)), _word(tail))
        ops.append(op)
        tail = tail[len(op) :].removeprefix("_")
    return tuple(ops)


def _starts(text: str, name: str) -> bool:
    return text.startswith(name) and text[len(name) : len(name) + 1] in ("", "_")


def _word(text: str) -> str:
    """The text up to the next underscore; an underscore at its start belongs to it."""
    return text[: text.index("_", 1)] if "_" in text[1:] else text


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
