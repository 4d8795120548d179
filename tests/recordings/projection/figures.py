"""What tests ask of a projection."""

from __future__ import annotations

from lab.recordings.projection import RULES


def rules(projection):
    return [RULES[rule] for rule in projection.ops.rule.tolist()]


def paths(projection):
    return ["/".join(projection.path(path)) for path in projection.ops.path.tolist()]


def sums(projection):
    """path -> (kernels, kernel ns) of everything below it."""
    tree = projection.tree
    return {
        "/".join(projection.path(i)): (int(tree.num_kernels[i]), int(tree.kernel_ns[i]))
        for i in range(len(tree))
    }
