"""A published measurement is refused for its faults; a sound one passes."""

from __future__ import annotations

import json

import pytest

from lab.errors import BadDataError
from lab.rooms.kernels.audit import OK, REFUSED, of_isolated, of_published
from tests.command import lab


def a_row(single_us=4.0, runs=100_000, window_s=0.4, count=1, tier=3, name="k"):
    return {
        "name": name,
        "single_time_us": single_us,
        "benchmark_runs": runs,
        "invocation_count": count,
        "tier": tier,
        "start_timestamp": "2026-02-06 18:32:35.000000",
        "end_timestamp": f"2026-02-06 18:32:35.{int(window_s * 1e6):06d}",
    }


def by_name(checks):
    return {check.name: check for check in checks}


def test_a_window_that_is_too_short_for_its_runs_is_refused_with_the_factor():
    name = "iterations counted are those divided by"
    assert by_name(of_isolated([a_row()], 0))[name].verdict == OK
    bad = by_name(of_isolated([a_row(), a_row(runs=5_000_000)], 0))[name]
    assert (bad.verdict, bad.factors) == (REFUSED, {"rows": 1, "factor": 50})


@pytest.mark.parametrize(
    ("times_us", "verdict", "alike"),
    [
        ([*(4.0 + 0.001 * n for n in range(8)), 7.0], REFUSED, 8),
        ([2.5 * 1.3**n for n in range(8)], OK, 1),
        ([40.0] * 8, OK, 8),  # long kernels may well be alike
    ],
)
def test_many_equal_short_times_are_the_hosts_dispatch(times_us, verdict, alike):
    check = by_name(of_isolated([a_row(us) for us in times_us], 0))["times are of kernels"]
    assert (check.verdict, check.factors["alike"]) == (verdict, alike)


@pytest.mark.parametrize(
    ("counts", "forwards"),
    [
        ([("layer_norm_k", 50), ("layer_norm_k", 1200), ("gemm", 7)], 25),
        ([("layer_norm_k", 50)], 1),
        ([("gemm", 7)], 1),
    ],
)
def test_forwards_are_counted_by_the_norms(counts, forwards):
    rows = [a_row(name=name, count=count) for name, count in counts]
    assert by_name(of_isolated(rows, 4000.0))["parts add up to the whole"].factors["forwards"] == forwards


@pytest.mark.parametrize(
    ("model_us", "norms", "refused", "percents"),
    [
        (4600.0, [50], False, (8.7, 8.7)),
        (4400.0, [50], True, (13.6, 13.6)),
        (5000.0, [2, 48], True, (0.0, -96.0)),  # two faults that cancel are both shown
    ],
)
def test_parts_that_miss_the_whole_are_refused(model_us, norms, refused, percents):
    rows = [a_row(100.0, count=count, name="layer_norm_k") for count in norms]
    check = by_name(of_isolated(rows, model_us))["parts add up to the whole"]
    assert (check.factors["published_pct"], check.factors["per_forward_pct"]) == percents
    assert (check.verdict == REFUSED) == refused


@pytest.mark.parametrize(
    ("report", "verdicts"),
    [
        ({"num_power_samples": 1, "power_watts": {"min": 101.0, "peak": 101.0}}, [REFUSED]),
        (
            {
                "num_power_samples": 90,
                "energy_joules": {"total": 10.0},
                "power_watts": {"min": 90.0, "peak": 101.0},
            },
            [OK],
        ),
    ],
)
def test_one_sample_and_zero_joules_are_refused(tmp_path, report, verdicts):
    (tmp_path / "energy_report_x.json").write_text(json.dumps(report))
    assert [check.verdict for check in of_published(tmp_path, 250.0)] == verdicts
    assert of_published(tmp_path, 80.0)[-1].verdict == REFUSED


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("cudaLaunchKernel", 60),
        ("hipMemcpyAsync", 60),
        ("cutlass::Kernel2<x>", 0),
        ("void cunn_SoftMaxForward<4>", 0),
    ],
)
def test_runtime_calls_among_counts_are_refused(tmp_path, name, calls):
    (tmp_path / "x_kernel_counts.csv").write_text(f"device,kernel_name,count\n0,{name},60\n0,gemv,40\n")
    (check,) = of_published(tmp_path, None)
    assert check.factors == {"counted": 100, "runtime_calls": calls, "launches": 100 - calls}
    assert (check.verdict == REFUSED) == bool(calls)


def test_quotes_escaped_by_a_backslash_are_no_csv(tmp_path):
    path = tmp_path / "unique_kernels.csv"
    path.write_text('name,json\nk,"{\\"a\\":1}"\n')
    assert of_published(tmp_path, None)[0].verdict == REFUSED
    path.write_text('name,json\nk,"{""a"":1}"\n')
    assert of_published(tmp_path, None)[0].verdict == OK


def test_a_power_log_with_no_readings_or_of_another_hour_is_refused(tmp_path):
    rows = (f"2026-02-06 17:00:0{i}.0,0,{w}\n" for i, w in enumerate(("0", "N/A", "100", "120")))
    (tmp_path / "power.csv").write_text("timestamp,gpu,power_w\n" + "".join(rows))
    run = {"start_timestamp": "2026-02-06 19:00:00", "end_timestamp": "2026-02-06 19:00:09"}
    (tmp_path / "full_model_timing.json").write_text(json.dumps(run))
    checks = of_published(tmp_path, 110.0)
    assert [check.verdict for check in checks] == [REFUSED, REFUSED, REFUSED]
    assert checks[0].factors["none"] == 2 and "before the window begins" in checks[-1].answer
    (tmp_path / "power.csv").write_text("when,watts\n1,2\n")
    assert "cannot be read" in of_published(tmp_path, None)[0].answer


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [("x_kernel_counts.csv", "a,b\n1,2\n", "no column"), ("full_model_timing.json", "{", "not a readable")],
)
def test_broken_files_are_errors_with_their_place(tmp_path, file, content, problem):
    (tmp_path / file).write_text(content)
    with pytest.raises(BadDataError, match=problem) as caught:
        of_published(tmp_path, None)
    assert caught.value.location == str(tmp_path / file)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("true_log", 0),
        ("true_log_nvidia_smi", 0),
        *((name, 1) for name in ["tenth", "twice", "milliwatts", "no_sample_in_run", "ends_early", "stuck"]),
    ],
)
def test_published_joules_must_be_the_logs_integral(shared_data, name, code):
    checks = of_published(shared_data / "cases/box/audit" / name, None)
    assert any(check.verdict == REFUSED for check in checks) == bool(code)


@pytest.mark.data
def test_the_published_measurement_is_refused_for_its_known_faults(shared_data):
    checks = of_published(shared_data / "energy_gtx1080ti", 250.0)
    refused = {check.name: check for check in checks if check.verdict == REFUSED}
    counts = {"counted": 38714, "runtime_calls": 21528, "launches": 17186}
    assert refused["counts are of kernels"].factors == counts
    assert refused["iterations counted are those divided by"].factors == {"rows": 53, "factor": 50}
    closure = refused["parts add up to the whole"].factors
    assert closure == {"forwards": 25, "published_pct": 594.2, "per_forward_pct": -72.2}
    done = lab("kernels", "audit", shared_data / "energy_gtx1080ti", "--json")
    assert done.returncode == 1 and len(json.loads(done.stdout)) == len(checks)


def test_a_folder_without_numbers_is_an_error(tmp_path):
    done = lab("kernels", "audit", tmp_path)
    assert done.returncode == 4 and "nothing here can be audited" in done.stderr


@pytest.mark.parametrize(("model_us", "verdict"), [(3640, OK), (3600, REFUSED), (4440, OK), (4460, REFUSED)])
def test_parts_may_miss_the_whole_by_a_tenth(model_us, verdict):
    """1,000 launches of 4 us."""
    check = by_name(of_isolated([a_row(count=1000)], float(model_us)))["parts add up to the whole"]
    assert check.verdict == verdict


@pytest.mark.parametrize(("window_s", "verdict"), [(0.41, OK), (0.43, REFUSED), (0.39, OK), (0.37, REFUSED)])
def test_a_window_may_miss_its_runs_by_a_twentieth(window_s, verdict):
    check = by_name(of_isolated([a_row(window_s=window_s)], 0.0))["iterations counted are those divided by"]
    assert check.verdict == verdict


@pytest.mark.parametrize(
    ("single_us", "alike", "verdict"),
    [(1.99, 5, OK), (2.0, 5, REFUSED), (10.0, 5, REFUSED), (10.1, 5, OK), (4.0, 4, OK)],
)
def test_a_dispatch_interval_is_two_to_ten_microseconds_of_five_kernels(single_us, alike, verdict):
    check = by_name(of_isolated([a_row(single_us) for _ in range(alike)], 0.0))["times are of kernels"]
    assert check.verdict == verdict
