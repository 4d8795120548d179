"""Requested is not effective: what the kernels' grid and block, and NCCL's own log, say happened."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lab.rooms.sweep.names import size_text

# NCCL adds a warp of its own to the requested block.
NCCL_EXTRA_THREADS = 32
_LOG_CHANNELS = re.compile(rb"(\d{1,6}) coll channels")


def channels_verdict(requested: int, effective: int, log_channels: int) -> str:
    """Was the channel count honoured? Channels are the blocks of a collective kernel's grid.

    The grid is what ran; the log counts a communicator's channels, and stands in for a missing grid.
    clamped: fewer than requested (small messages use fewer); ignored: more; unknown: nothing was requested,
    or nothing tells. log_channels is -1 without a log.
    """
    if requested <= 0:
        return "unknown"
    if effective <= 0:
        return "clamped" if 0 < log_channels < requested else "unknown"
    if effective == requested:
        return "honoured"
    return "clamped" if effective < requested else "ignored"


def threads_verdict(requested: int, effective: int) -> str:
    """Was the block size honoured? NCCL adds a warp; 640 is the LL128 protocol's fixed size, so ignored."""
    if requested <= 0 or effective <= 0:
        return "unknown"
    return "honoured" if effective in (requested, requested + NCCL_EXTRA_THREADS) else "ignored"


def verdict_over_sizes(verdicts: Iterable[tuple[int, str]]) -> str:
    """One text from (msg_bytes, verdict) pairs, such as `honoured for >= 96 MiB, ignored below`.

    Sizes whose verdict is unknown, also because nothing was requested of their collective, are left out.
    """
    by_size: dict[int, set[str]] = {}
    for msg_bytes, verdict in verdicts:
        if verdict != "unknown":
            by_size.setdefault(msg_bytes, set()).add(verdict)
    words = sorted(set().union(*by_size.values())) or ["unknown"]
    if len(words) == 1:
        return words[0]
    sizes = sorted(by_size)
    good = [by_size[size] == {"honoured"} for size in sizes]
    first_good = good.index(True) if True in good else len(sizes)
    if first_good < len(sizes) and all(good[first_good:]):
        below = sorted(set().union(*(by_size[size] for size in sizes[:first_good])) - {"honoured"})
        return f"honoured for >= {size_text(sizes[first_good])}, {' or '.join(below)} below"
    return f"mixed: {', '.join(words)}; honoured for {sum(good)} of {len(sizes)} sizes"


def log_channels(logs: Iterable[Path]) -> int:
    """The channel count in most lines of NCCL's logs (INFO, INIT), -1 without such a line.

    Source: NVIDIA/nccl `src/init.cc`, which logs `N coll channels` once per rank and communicator.
    """
    counts: Counter[int] = Counter()
    for path in logs:
        with path.open("rb") as file:
            # Bounded reads: a log is outside input and may have no line ends.
            for line in iter(lambda f=file: f.readline(1 << 16), b""):  # type: ignore[misc]
                counts.update(int(match) for match in _LOG_CHANNELS.findall(line))
    return counts.most_common(1)[0][0] if counts else -1
