"""rocprofv3's JSON: the rows of the file to the nanosecond, in any order and from any number of processes."""

from __future__ import annotations

import gzip
import json

import pytest

from lab.errors import BadDataError
from lab.recordings import rocprofv3
from lab.recordings.capture import MEMCPY, PUSH_POP, START_END
from lab.recordings.load import load_capture
from tests.recordings.sdkgen import Element, write

REAL = "captures/rocprofv3_aorta_mi350x_dispatch_1_20000.json.gz"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    from tests.conftest import SHARED

    if not (SHARED / REAL).exists():
        pytest.skip("no shared recording of rocprofv3")
    return load_capture(SHARED / REAL)


def test_the_real_half_has_no_gap_and_nobody_knows_its_end_or_its_launches(real):
    assert [(one.axis, one.place, one.rule) for one in real.lacks if one.rule == "D"] == [
        ("gpu", "tail", "D")
    ]
    assert real.verdict == "unknown" and all(one.unknown for one in real.lacks)
    assert any(one.axis == "host" for one in real.lacks)


def test_every_row_stands_as_the_file_has_it(shared_data, real):
    document = json.loads(gzip.decompress((shared_data / REAL).read_bytes()))["rocprofiler-sdk-tool"][0]
    rows = document["buffer_records"]["kernel_dispatch"]
    symbols = {one["kernel_id"]: one["formatted_kernel_name"] for one in document["kernel_symbols"]}
    wanted = [
        (
            row["start_timestamp"],
            row["end_timestamp"],
            symbols[row["dispatch_info"]["kernel_id"]],
            row["stream_id"]["handle"],
            row["correlation_id"]["internal"],
            -(-row["dispatch_info"]["grid_size"]["x"] // row["dispatch_info"]["workgroup_size"]["x"]),
        )
        for row in rows
    ]
    columns = (real.ops.start_ns, real.ops.end_ns, real.text(real.ops.name_id), real.ops.stream)
    columns = (*columns, real.ops.corr, real.ops.grid_x)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == wanted


@pytest.fixture
def element():
    one = Element()
    one.call("hipLaunchKernel", (300, 310), 3)
    one.call("hipLaunchKernel", (100, 110), 1)
    one.kernel(2, (320, 390), 3, 2)
    one.kernel(1, (120, 190), 1, 1)
    one.call("hipMemcpy", (400, 410), 4)
    one.copy((420, 450), 4096, 4)
    one.mark("forward", (90, 500), 5)
    one.mark("epoch", (80, 600), 6, operation=2)
    return one


@pytest.mark.parametrize("indent", [None, 1])
def test_rows_calls_copies_and_markers_are_read_in_any_layout(tmp_path, element, indent):
    capture = load_capture(write(tmp_path / "a.json", element, indent=indent))
    ops, ranges = capture.ops, capture.ranges
    assert capture.text(ops.name_id).tolist() == ["beta", "alpha", "MEMORY_COPY_HOST_TO_DEVICE"]
    assert ops.start_ns.tolist() == [320, 120, 420] and ops.end_ns.tolist() == [390, 190, 450]
    assert ops.corr.tolist() == [3, 1, 4] and ops.stream.tolist() == [3, 3, 4]
    assert ops.device.tolist() == [0, 0, 1] and ops.kind[2] == MEMCPY
    assert (ops.bytes[2], ops.copy_kind[2], ops.bytes[0]) == (4096, 1, -1)
    assert (ops.grid_x[0], ops.grid_y[0], ops.block_x[0], ops.regs[0]) == (4, 4, 256, 48)
    assert (ops.static_smem_bytes[0], ops.dynamic_smem_bytes[0]) == (1024, 4096)
    assert capture.text(capture.api.name_id).tolist() == ["hipLaunchKernel", "hipLaunchKernel", "hipMemcpy"]
    assert capture.text(ranges.name_id).tolist() == ["forward", "epoch"]
    assert ranges.kind.tolist() == [PUSH_POP, START_END] and ranges.tid.tolist() == [77, 77]
    assert capture.verdict == "complete" and not capture.problems


def test_every_element_is_a_process_of_its_own_even_with_one_pid(tmp_path, element):
    other = Element()
    other.call("hipLaunchKernel", (0, 5), 1)
    other.kernel(2, (10, 30), 1, 2)
    capture = load_capture(write(tmp_path / "a.json", element, other))
    assert [one.pid for one in capture.processes] == [9, 9]
    assert capture.ops.process.tolist() == [0, 0, 0, 1]
    assert [(one.process, one.place) for one in capture.lacks] == [(1, "head")]


def test_an_object_in_place_of_the_list_is_one_process(tmp_path, element):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": element.document()}))
    assert len(load_capture(path).ops) == 3


def test_nothing_private_is_read(tmp_path, element):
    capture = load_capture(write(tmp_path / "a.json", element))
    assert "secret" not in repr(capture) and "secret" not in " ".join(capture.strings)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("pack", [False, True])
def test_a_cut_file_is_refused_wherever_it_was_cut(tmp_path, element, share, pack):
    path = write(tmp_path / "a.json", element)
    whole = gzip.compress(path.read_bytes()) if pack else path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BadDataError, match=r"truncated|damaged|cut"):
        load_capture(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"start_timestamp":320', '"start_timestamp":1e30'),
        ('"start_timestamp":320', f'"start_timestamp":{10**30}'),
        ('"start_timestamp":320', f'"start_timestamp":{2**62 + 1}'),
        ('"start_timestamp":320', '"start_timestamp":"soon"'),
        ('"start_timestamp":320', '"start_timestamp":-4'),
        ('"start_timestamp":320,', ""),
        ('"kernel_id":2,"dispatch_id"', '"kernel_id":"x","dispatch_id"'),
        ('"pid":9', '"pid":[]'),
        ('"pid":9', f'"pid":{10**30}'),
        ('"arch_vgpr_count":40', f'"arch_vgpr_count":{2**64}'),
        ('"handle":3}', '"handle":3}}'),
        ('},{"size":184', '} {"size":184'),
        ('},{"size":184', '},7,{"size":184'),
    ],
)
def test_rows_of_wrong_types_and_broken_json_name_the_file(tmp_path, element, old, new):
    path = write(tmp_path / "a.json", element)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadDataError) as caught:
        load_capture(path)
    assert str(path) in caught.value.location


@pytest.mark.parametrize("value", [10**30, -1, "0", None, 1.5])
def test_agents_of_impossible_numbers_are_no_devices(tmp_path, element, value):
    document = element.document()
    document["agents"][2]["logical_node_type_id"] = value
    document["agents"].append("no agent")
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [document]}))
    capture = load_capture(path)
    assert capture.ops.device.tolist() == [-1, -1, 1]


@pytest.mark.parametrize("depth", [10_000, 200_000])
def test_deep_nesting_is_no_crash(tmp_path, depth):
    path = tmp_path / "a.json"
    path.write_text('{"rocprofiler-sdk-tool":[{"metadata":' + "[" * depth + "]" * depth + "}]}")
    with pytest.raises(BadDataError):
        load_capture(path)


def test_names_with_brackets_quotes_and_commas_stay_whole(tmp_path, element):
    name = 'lambda {,{"a":[1]},{ \\ "quoted" ]}} \x1b[31m =cmd'
    element.symbols[2]["formatted_kernel_name"] = name
    element.messages[0]["value"] = name
    capture = load_capture(write(tmp_path / "a.json", element))
    assert capture.text(capture.ops.name_id)[0] == name
    assert capture.text(capture.ranges.text_id)[0] == name


def test_a_file_beyond_the_bound_is_refused_not_kept(tmp_path, monkeypatch, element):
    monkeypatch.setattr(rocprofv3, "MOST_BYTES", 2_000)
    with pytest.raises(BadDataError, match="larger than"):
        load_capture(write(tmp_path / "a.json", element))


def test_memory_stays_bounded_by_the_text_and_the_columns(tmp_path, element):
    import tracemalloc

    for index in range(20_000):
        element.kernel(1, (1000 + index, 1001 + index), 10 + index, 3 + index)
    path = write(tmp_path / "a.json", element)
    size = path.stat().st_size
    assert size > 7 << 20
    tracemalloc.start()
    assert len(load_capture(path).ops) == 20_003
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Columns take 200 bytes a row, decoded rows about as much as their text.
    assert peak < 3 * size
