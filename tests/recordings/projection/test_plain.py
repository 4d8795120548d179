"""Any ranges and calls project as in the plain form."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.recordings.projection import project
from tests.recordings.projection.made import call, kernel, made, named, rules
from tests.recordings.projection.plain import plain_members


def capture_of(ranges, calls, ops):
    """A capture of ranges (start, end, pid, tid, name), calls (..., corr) and ops (start, end, pid, corr)."""
    return made(
        [named(name, start, end, pid=pid, tid=tid) for start, end, pid, tid, name in ranges],
        [call(corr, start, end, pid=pid, tid=tid) for start, end, pid, tid, corr in calls],
        [kernel(corr, start, end, pid=pid) for start, end, pid, corr in ops],
    )


NAMES = ["forward", "backward", "step_0", "warmup", "block", "aten::mm"]
THREADS = [(1, 1), (1, 2), (1, 3), (2, 1)]

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(THREADS),
        st.sampled_from(["push", "pop", "launch", "launch"]),
        st.sampled_from(NAMES),
        st.integers(1, 12),
    ),
    max_size=40,
)


def played(actions):
    """Threads that push, pop and launch in turn; calls may overlap, and processes may share ids."""
    open_ranges, ranges, calls, ops = {thread: [] for thread in THREADS}, [], [], []
    for tick, (thread, action, name, length) in enumerate(actions):
        now = 10 * tick
        if action == "push":
            open_ranges[thread].append((now, name))
        elif action == "pop" and open_ranges[thread]:
            start, text = open_ranges[thread].pop()
            ranges.append((start, now, *thread, text))
        elif action == "launch":
            calls.append(
                (now + 1, now + 1 + 4 * length, *thread, len([c for c in calls if c[2] == thread[0]]))
            )
            if length != 12:
                ops.append((now + 5, now + 50, thread[0], calls[-1][4]))
    end = 10 * len(actions) + 100
    for thread, stack in open_ranges.items():
        ranges += [(start, end - place, *thread, text) for place, (start, text) in enumerate(stack)]
    return capture_of(ranges, calls, ops)


@settings(max_examples=80)
@given(ACTIONS)
def test_any_threads_project_as_in_the_plain_twin(actions):
    capture = played(actions)
    projection = project(capture)
    members, found = plain_members(capture, across=True)
    assert rules(projection) == [rule for rule, _ in found]
    assert [list(projection.path(path)) for path in projection.ops.path.tolist()] == [
        names for _, names in found
    ]
    check_sums(projection, members)


ANY = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 15), st.sampled_from(THREADS), st.sampled_from(NAMES)),
    max_size=12,
)

CALLS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6), st.sampled_from(THREADS)), max_size=12)


@settings(max_examples=100)
@given(ANY, CALLS)
def test_ranges_that_cross_in_any_way_count_as_in_the_plain_twin(rows, calls):
    ranges = [(start, start + dur, *thread, name) for start, dur, thread, name in rows]
    # A call of 0 ns at the instant where one range ends and the next begins has no defined owner.
    ends = {(end, *thread) for _, end, *thread, _ in ranges}
    calls = [(start, dur, thread) for start, dur, thread in calls if dur or (start, *thread) not in ends]
    timed = [(start, start + dur, *thread, i) for i, (start, dur, thread) in enumerate(calls)]
    capture = capture_of(ranges, timed, [(i, i + 5, row[2], row[4]) for i, row in enumerate(timed)])
    check_sums(project(capture, "nsys"), plain_members(capture, across=False)[0])


def check_sums(projection, members):
    ops, instances = projection.capture.ops, projection.instances
    for row, mine in members.items():
        assert instances.num_ops[row] == len(mine)
        assert instances.op_ns[row] == sum(ops.end_ns[op] - ops.start_ns[op] for op in mine)
        assert instances.first_ns[row] == min((ops.start_ns[op] for op in mine), default=-1)
        assert instances.last_ns[row] == max((ops.end_ns[op] for op in mine), default=-1)
    tree = projection.tree
    assert tree.num_ops[0] == len(ops)
    for node in range(len(tree)):
        children = tree.parent == node
        assert tree.num_ops[node] == tree.self_ops[node] + tree.num_ops[children].sum()
        assert tree.kernel_ns[node] == tree.self_kernel_ns[node] + tree.kernel_ns[children].sum()
