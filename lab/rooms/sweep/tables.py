"""The sweep's tables: their columns, and the rows of them that may be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.core.words import plural
from lab.rooms.sweep.knobs import Key, Knobs

if TYPE_CHECKING:
    import pandas as pd

SETTING = [*Knobs._fields]
KEY = [*SETTING, "repeat"]
# Colour role -> timeline column; together they are the total time of a rank, without overlap.
PARTS = {
    "computation": "computation_time_ms",
    "communication": "exposed_comm_time_ms",
    "memcpy": "exposed_memcpy_time_ms",
    "idle": "idle_time_ms",
}
GEMM_KEY = ["op", "M", "N", "K", "B", "bias", "dtype", "transpose"]
# What makes two GEMMs the same. Never the kernel's name: libraries choose another kernel for another tile.
GROUP = ["op", "B", "M", "N", "K", "bias", "strides", "dtype", "dims"]
FREE, PARTIAL, FULL = "free", "partial", "full"
NO_LAUNCH = "(launched before the window)"
GEMM_SHAPE = ["op", "B", "M", "N", "K", "bias", "dtype", "transpose"]
PROBLEMS = [*KEY, "rank", "file", "what", "fix"]
Progress = Callable[[int, int, Path], None]
# What a run of lab planned: of each step its status (ok, failed or missing) and the reason.
Planned = Mapping[Key, tuple[str, str]]


def column_names(text: str) -> list[str]:
    """The column names in a text, separated by spaces."""
    return text.split()


TIMELINE_MS = column_names(
    "computation_time_ms exposed_comm_time_ms exposed_memcpy_time_ms busy_time_ms idle_time_ms "
    "total_time_ms total_comm_time_ms total_memcpy_time_ms"
)
TIMELINE = [
    *column_names("threads channel rank"),
    *TIMELINE_MS,
    *column_names("repeat steps device kernels unlinked_kernels recording bound file algorithm protocol"),
]
EFFECTIVE = column_names(
    "threads channel rank collective requested_channels effective_channels requested_threads "
    "effective_threads count repeat in_nelems dtype msg_bytes log_channels channels_verdict "
    "threads_verdict algorithm protocol kind kernel group_size requested_algorithm effective_algorithm "
    "algorithm_verdict requested_protocol effective_protocol protocol_verdict evidence"
)
GEMM = [
    *column_names("threads channel rank repeat"),
    *GEMM_KEY,
    *column_names(
        "n mean_us median_us mad_us cv min_us p95_us max_us sum_us tflops_median strides algorithm protocol"
    ),
]
CONFIGS = [
    *KEY,
    *column_names("status reason ranks_found ranks_expected missing_ranks"),
    *TIMELINE_MS,
    *column_names("slowest_rank channels_verdict threads_verdict algorithm_verdict protocol_verdict"),
    "log_channels",
]
INSTANCES = [
    *KEY,
    "rank",
    *GROUP,
    *column_names(
        "transpose step correlation uid ts_ns dur_ns end_ns overlap comm_ns comm_share other_ns cold "
        "unfinished family kernels file"
    ),
]


@dataclass(frozen=True)
class SweepTables:
    """The analysis as DataFrames; their columns are the lists at the top of this module.

    Durations are in ms or us as named; recording is the verdict on the trace, bound says how its times are
    to be read (exact, or busy at least, idle at most). 0 in threads and channel and -1 in effective_* mean
    unknown; missing_ranks is text like `1, 5`. timeline has one row per trace, configs one per
    configuration and repeat in any case. slowest_rank is the rank with the least communication time, as it
    waits least for the others; it is -1 with fewer than two ranks or without communication.
    """

    timeline: pd.DataFrame
    effective: pd.DataFrame
    gemm: pd.DataFrame
    configs: pd.DataFrame
    problems: pd.DataFrame


def of_complete(frame: pd.DataFrame, configs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `frame` that belong to complete repeats."""
    complete = configs.loc[configs["status"] == "ok", KEY].drop_duplicates()
    rows: pd.DataFrame = frame.merge(complete, on=KEY)
    return rows


def timed(configs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `configs` that are complete and have a total time."""
    times = configs["total_time_ms"].astype(float)
    rows: pd.DataFrame = configs[(configs["status"] == "ok") & (times > 0) & (times < math.inf)]
    return rows


def copies(configs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `timed` whose total time an earlier one of their setting has to the last digit: copies of
    one recording."""
    complete = timed(configs)
    rows: pd.DataFrame = complete[complete.duplicated([*SETTING, "total_time_ms"])]
    return rows


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without algorithm and protocol where no setting requests them."""
    empty = [name for name in SETTING[2:] if name in frame and (frame[name] == "").all()]
    result: pd.DataFrame = frame.drop(columns=empty)
    return result


def grouped(frame: pd.DataFrame, keys: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """`frame.groupby(keys)` with the keys as a tuple."""
    for key, rows in frame.groupby(keys, observed=True):
        yield tuple(key) if isinstance(key, tuple) else (key,), rows


def settings_of(frame: pd.DataFrame) -> list[Knobs]:
    return sorted({Knobs(*row) for row in frame[SETTING].itertuples(index=False, name=None)})


def long_name(threads: int, channel: int, algorithm: str = "", protocol: str = "") -> str:
    """`256 threads, 28 channels, ring ll128`; 0 and "" mean unknown, or left to the library."""
    parts = [plural(int(value), noun) for value, noun in ((threads, "thread"), (channel, "channel")) if value]
    request = " ".join(filter(None, (algorithm, protocol)))
    return ", ".join([*parts, *([request] if request else [])]) or "default or unnamed setting"


def run_name(key: Key) -> str:
    """`256 threads, 28 channels, repeat 2`: the first repeat is not named."""
    return long_name(*key.knobs) + (f", repeat {key.repeat}" if key.repeat > 1 else "")


def short_name(threads: int, channel: int, algorithm: str = "", protocol: str = "") -> str:
    """`256t 28ch ring ll128`, for axes and table cells."""
    parts = [f"{int(value)}{unit}" for value, unit in ((threads, "t"), (channel, "ch")) if value]
    return " ".join([*parts, *filter(None, (algorithm, protocol))]) or "default or unnamed"


def name_of(row: Any) -> str:
    """The short name of a table's row."""
    return short_name(*(getattr(row, name) for name in SETTING))


def size_text(size_bytes: float) -> str:
    """A message size such as `8 MiB`; `?` if unknown."""
    if not size_bytes > 0:
        return "?"
    power = min(3, int(math.log2(size_bytes) // 10))
    value = size_bytes / 1024**power
    digits = f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # never 1e+03
    return f"{digits} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def shape_name(shape: tuple[Any, ...]) -> str:
    """`mm 4096×8192×2048 TN`: op, batch if any, M×N×K, transposes; `shape` in the order of GEMM_SHAPE."""
    of = dict(zip(GEMM_SHAPE, shape, strict=True))
    batch = f"{of['B']}·" if of["B"] > 1 else ""
    return f"{str(of['op']).removeprefix('aten::')} {batch}{of['M']}×{of['N']}×{of['K']} {of['transpose']}"
