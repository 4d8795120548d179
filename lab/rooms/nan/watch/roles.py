"""Who made the first bad number: from one forward's calls and leaves to producers, propagators and absorbers.

Pure: no torch, no tensors, only what was counted. A leaf is bad when it holds a NaN or an infinity.

Births in code between modules (a residual sum, a softmax, a product) show first as a bad input of the next
child; so the first bad leaf in order of time names the producer: a call's own output, or "in the parent,
after A, before B".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

IN, OUT = 0, 1
GIVEN = "given"  # bad numbers came with the inputs of the whole model


@dataclass(frozen=True)
class Leaf:
    """One tensor on its way into or out of a call. `seq` orders all leaves of a forward in time."""

    seq: int
    call: int
    side: int
    name: str
    bad: bool | None  # None: overwritten in place before it could be counted


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    module: str
    parent: int
    raised: bool = False
    weights_bad: bool = False  # its own parameters or buffers, not its children's
    doubt: str = ""  # why an input that was not looked into may have carried a bad number
    unseen_output: str = ""  # what of its output was not looked into
    children: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Birth:
    """Where bad numbers begin.

    `kind`: output, between, weights, given or unknown; `leaf` is the first bad one. `unsure` says why
    the place is only where it was first seen: then the module named is the latest possible, not the producer.
    """

    module: str
    kind: str
    leaf: str
    after: str = ""
    before: str = ""
    unsure: str = ""

    @property
    def place(self) -> str:
        """Say where, such as `in model.layers.2.self_attn, after v_proj, before o_proj`."""
        if self.kind == "unknown":
            name = self.module or "the model itself"
            leaf_text = f"{self.leaf} of {self.before or name}"
            return f"somewhere up to {name}: first seen in {leaf_text}, and {self.unsure}"
        if self.kind == GIVEN:
            return f"given in the inputs of {self.module or 'the model'}: {self.leaf}"
        name = self.module or "the model itself"
        if self.kind == "weights":
            return f"in the weights of {name}"
        spots = [f"after {_last(self.after)}"] * bool(self.after) + [f"before {_last(self.before)}"] * bool(
            self.before
        )
        return f"in {name}" + (f", {', '.join(spots)}" if spots else "")


def first_birth(calls: Sequence[Call], leaves: Sequence[Leaf]) -> Birth | None:
    """The place that made the earliest bad leaf of a forward; None if nothing is bad."""
    for leaf in leaves:
        if leaf.bad:
            return _with_doubt(_birth_of(calls, leaf), calls, leaves, leaf)
    return None


def _with_doubt(birth: Birth, calls: Sequence[Call], leaves: Sequence[Leaf], bad_leaf: Leaf) -> Birth:
    """The birth, or `unknown` if something that could have carried the bad number here was not counted."""
    if birth.kind in ("given", "weights"):
        return birth
    root = bad_leaf.call if bad_leaf.side == OUT else calls[bad_leaf.call].parent

    def inside(call: int) -> bool:
        """What could have carried the bad number: the root's own inputs, and all that was called in it."""
        while call >= 0 and call != root:
            call = calls[call].parent
        return call == root

    missed = [leaf for leaf in leaves if leaf.bad is None and leaf.seq < bad_leaf.seq and inside(leaf.call)]
    if not missed:
        before = range(root + 1, bad_leaf.call if bad_leaf.side == IN else len(calls))
        gaps = (calls[call].unseen_output for call in before if inside(call))
        doubt = calls[root].doubt or next(filter(None, gaps), "")
        return uncertain(birth, doubt, calls[bad_leaf.call].module) if doubt else birth
    module = calls[missed[0].call].module or "the model itself"
    side = "input" if missed[0].side == IN else "output"
    others_text = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
    reason = f"{side} {missed[0].name} of {module}{others_text} was overwritten before it could be counted"
    return uncertain(birth, reason, calls[bad_leaf.call].module)


def after_failure(birth: Birth, reason: str) -> Birth:
    """The birth in a forward of which a part could not be counted: that part may have made it."""
    if birth.kind not in ("output", "between"):
        return birth
    return uncertain(birth, f"a part of this forward could not be counted ({reason[:200]})")


def uncertain(birth: Birth, reason: str, first_seen: str | None = None) -> Birth:
    """The birth without its certainty: where it was first seen, and why no more can be said."""
    module_seen = (birth.before or birth.module if first_seen is None else first_seen) or "the model itself"
    return Birth(birth.module, "unknown", birth.leaf, birth.after, module_seen, unsure=reason)


def roles(calls: Sequence[Call], leaves: Sequence[Leaf]) -> list[str]:
    """The role of each call.

    clean, producer, weights, contains, propagator, absorber, raised or unknown
    """
    bad_in, bad_out = [False] * len(calls), [False] * len(calls)
    unknown = [False] * len(calls)
    for leaf in leaves:
        if leaf.bad is None:
            unknown[leaf.call] = True
        elif leaf.bad:
            (bad_out if leaf.side == OUT else bad_in)[leaf.call] = True
    first_inside = _first_inside(calls, leaves)
    return [
        _role(call, bad_in[number], bad_out[number], first_inside.get(number), unknown[number])
        for number, call in enumerate(calls)
    ]


def births(calls: Sequence[Call], leaves: Sequence[Leaf]) -> list[Birth]:
    """Every place where clean inputs gave bad numbers, in order of time; the first is `first_birth`'s."""
    of_call = roles(calls, leaves)
    first_inside = _first_inside(calls, leaves)
    birth_first = first_birth(calls, leaves)
    by_place = {(birth_first.module, birth_first.kind): birth_first} if birth_first else {}
    for leaf in leaves:
        if not leaf.bad or of_call[leaf.call] not in ("producer", "weights"):
            continue
        # What a parent's own code made shows in the child that takes it, before the parent's output.
        leaf_seen = first_inside.get(leaf.call, leaf) if leaf.side == OUT else leaf
        birth = _with_doubt(_birth_of(calls, leaf_seen), calls, leaves, leaf_seen)
        by_place.setdefault((birth.module, birth.kind), birth)
    return list(by_place.values())


def _role(call: Call, bad_in: bool, bad_out: bool, inside: Leaf | None, unknown: bool) -> str:
    if call.raised:
        return "raised"
    if bad_in:
        return "propagator" if bad_out else "absorber"
    if not bad_out and inside is None:
        return "unknown" if unknown else "clean"
    if call.weights_bad:
        return "weights"
    return "contains" if inside and inside.side == OUT else "producer"


def _first_inside(calls: Sequence[Call], leaves: Sequence[Leaf]) -> dict[int, Leaf]:
    """For each call the first bad leaf of the calls it made itself.

    If that leaf is an input, the call's own code made it bad.
    """
    by_parent: dict[int, Leaf] = {}
    for leaf in leaves:
        if leaf.bad and calls[leaf.call].parent >= 0:
            by_parent.setdefault(calls[leaf.call].parent, leaf)
    return by_parent


def _birth_of(calls: Sequence[Call], leaf: Leaf) -> Birth:
    call = calls[leaf.call]
    if leaf.side == IN and call.parent < 0:
        return Birth(call.module, GIVEN, leaf.name)
    # A bad input that no module put out was made by the parent's own code.
    culprit = call if leaf.side == OUT else calls[call.parent]
    siblings = [child for child in culprit.children if child != leaf.call]
    returned = [child for child in siblings if child < leaf.call] if leaf.side == IN else siblings
    after_module = calls[returned[-1]].module if returned else ""
    before_module = call.module if leaf.side == IN else ""
    if leaf.side == OUT and call.weights_bad:
        return Birth(call.module, "weights", leaf.name)
    kind = "between" if after_module or before_module else "output"
    return Birth(culprit.module, kind, leaf.name, after_module, before_module)


def _last(path: str) -> str:
    return path.rsplit(".", 1)[-1]
