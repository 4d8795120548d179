"""The page and the findings: figures that can be followed, what is lacking is said, replay and energy where they are."""

from __future__ import annotations

import msgspec
import pandas as pd
import pytest

from lab.core.manifest import Manifest
from lab.core.run import Run
from lab.rooms.kernels import analyze, findings
from lab.rooms.kernels.catalogue.launches import read_catalogue
from lab.rooms.kernels.catalogue.roofs import product_of, roof_of
from lab.rooms.kernels.findings import analyse_profile, read_all, sibling
from lab.rooms.kernels.replay.proof import Coverage, ForwardClosure, Row
from lab.rooms.kernels.replay.proof import Result as ReplayResult
from lab.rooms.kernels.report import replay_section
from lab.rooms.kernels.schema import trails
from tests.rooms.kernels.made import generation, profile_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return profile_folder(tmp_path_factory.mktemp("run"), world_size=2, comm=True)


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return analyse_profile(folder, out, None, lambda _: None), out


def test_the_verdict_counts_launches_forwards_and_ranks(found):
    said = found[0].verdict
    assert said[0].startswith("30 launches, ") and "1 prefill, 2 decode over 2 ranks" in said[0]
    assert any("A decode forward: 5 launches" in text for text in said)


def test_every_file_the_findings_name_is_there_and_the_page_links_its_data(found):
    findings, out = found
    assert all(path.is_file() for path in findings.files) and not findings.lacking and findings.status == "ok"
    page = (out / "report.html").read_text()
    for name in ("unique_kernels.csv", "by_class.csv", "by_op.csv", "gantt.csv", "launches.jsonl"):
        assert name in page and (out / "tables" / name).is_file()


def test_shares_add_up_to_the_whole(found):
    for name in ("by_class", "by_op", "by_module", "by_phase", "argument_sources"):
        table = pd.read_csv(found[1] / "tables" / f"{name}.csv")
        assert table["share_percent"].sum() == pytest.approx(100.0)
        assert table["launches"].sum() == 30


def test_a_rank_that_cannot_be_read_is_lacking_and_the_other_is_analysed(tmp_path):
    profile_folder(tmp_path, world_size=2)
    broken = tmp_path / "profile" / "trace_rank1.json.gz"
    broken.write_bytes(broken.read_bytes()[:400])
    catalogue, lost = read_all(trails(tmp_path))
    assert [rank.rank for rank in catalogue.ranks] == [0] and len(lost) == 1 and lost[0].startswith("rank 1")
    found = analyse_profile(tmp_path, tmp_path / "out", None, lambda _: None)
    assert (
        found.lacking == lost
        and found.status == "warn"
        and lost[0].split(":")[0] in (tmp_path / "out" / "report.html").read_text()
    )


def test_without_a_trace_the_findings_say_so(tmp_path):
    found = analyse_profile(tmp_path, tmp_path, None, lambda _: None)
    assert found.status == "fail" and found.lacking == ["no trace was recorded"]


def test_layers_of_a_model_fold_into_one():
    assert analyze.folded("transformer.h.12.mlp.dense_4h_to_h") == "transformer.h.*.mlp.dense_4h_to_h"
    assert analyze.folded("model.layers.0") == "model.layers.*" and analyze.folded("lm_head2") == "lm_head2"


def test_a_product_is_two_m_n_k_and_its_factors_once(folder):
    catalogue = read_catalogue(trails(folder))
    one = next(one for one in catalogue.signatures.signatures if one.op == "aten::mm")
    work = product_of(one)
    assert (work.flops, work.bytes) == (2 * 4 * 8 * 8, 2 * (4 * 8 + 8 * 8 + 4 * 8))
    assert product_of(next(one for one in catalogue.signatures.signatures if one.op == "aten::cat")) is None


def test_ceilings_are_found_by_the_devices_name():
    assert roof_of("NVIDIA H200").bytes_per_s == 4.8e12 and roof_of("NVIDIA H100 PCIe").half_flops == 756e12
    assert roof_of("NVIDIA GeForce GTX 1080 Ti").flops("float32") == 11.3e12 and roof_of("Voodoo 2") is None


def replayed() -> ReplayResult:
    row = Row(
        sig_id="a",
        position=0,
        op="aten::mm",
        overload="",
        kernel="nvjet_gemm",
        class_="gemm",
        kind="kernel",
        mode="in-order",
        count=2,
        trace_sum_us=20.0,
        trace_median_us=10.0,
        time_share=0.5,
        n_ran=20,
        us={"median": 10.2, "ci": [10.0, 10.4]},
        same_kernel="exact",
        err_pct=2.0,
        arg_src="recorded",
        origin="execution_trace",
        launched="",
        flags=[],
        name="nvjet_gemm",
    )
    other = msgspec.structs.replace(
        row, sig_id="b", same_kernel="other kernel", us={"median": 30.0, "ci": [29.0, 31.0]}
    )
    coverage = Coverage(
        launches=4, rebuilt_launches=4, same_launches=2, time_us=40.0, rebuilt_time_us=40.0, same_time_us=20.0
    )
    closure = ForwardClosure(
        name="prefill",
        phase="prefill",
        wall_us=100.0,
        busy_us=40.0,
        trace_sum_us=40.0,
        compared_us=20.0,
        replay_sum_us=20.4,
    )
    return ReplayResult(
        mode="in-order",
        pace="queue",
        repeats=10,
        device="cuda",
        device_name="H200",
        trace_device_name="H200",
        same_gpu=True,
        coverage={"kernel": coverage},
        error={"median": 2.0},
        closure=[closure],
        rows=[row, other],
        uncovered=[],
        sources={},
        versions={},
        notes=["a note"],
        bars={"98 % of time": False, "closure": True},
    )


def test_a_replay_of_this_run_that_lies_beside_it_joins_the_page(tmp_path):
    folder = profile_folder(tmp_path / "kernels_1")
    other = tmp_path / "kernels_2"
    other.mkdir()
    (other / "replay.json").write_bytes(msgspec.json.encode(replayed()))
    assert sibling(folder, "replay.json", ReplayResult)[0] is None, (
        "nothing says that it was made from this run"
    )
    manifest = Manifest(
        id="kernels_2",
        room="kernels",
        created_utc="2026-01-01T00:00:00+00:00",
        lab=findings.lab_identity(),
        engine="local",
        command=("lab",),
        host={},
        config={"source": str(folder)},
        steps=[],
    )
    Run.create(tmp_path / "kernels_2", manifest)
    result, home = sibling(folder, "replay.json", ReplayResult)
    assert result.rows[0].kernel == "nvjet_gemm" and home.name == "kernels_2"
    analyse_profile(folder, folder, None, lambda _: None)
    page = (folder / "report.html").read_text()
    assert '"../kernels_2/tables/replay.csv"' in page, "links lead to the run that holds the data"
    assert (
        "98 % of time: not met" in page
        and "closure: met" in page
        and "10.00 \\u00b5s recorded, 10.20" in page
    )


def test_the_replay_section_tells_same_kernels_from_others():
    (section,) = replay_section(replayed())
    chart = next(block for block in section.blocks if block.kind == "chart")
    assert [series.name for series in chart.series] == [
        "same kernel",
        "other kernel or none",
    ] and chart.diagonal
    assert replay_section(None) == []


@pytest.mark.browser
def test_the_timeline_draws_zooms_and_tells_in_a_browser(tmp_path):
    import subprocess

    from lab.rooms.kernels.catalogue import gantt
    from lab.rooms.kernels.catalogue.gantt_page import write_gantt_page
    from lab.rooms.kernels.catalogue.launches import read_rank

    trace = generation(forwards=3, comm=True).write(tmp_path / "trace_rank0.json")
    page = write_gantt_page(
        gantt.bars_of([read_rank(trail) for trail in trails(tmp_path)]), tmp_path, [trace]
    )
    # The page's own policy forbids further scripts, so the test looks from a copy without it.
    probe = """<script>addEventListener("load", () => setTimeout(() => {
      const canvas = document.querySelector(".timeline canvas"), pen = canvas.getContext("2d");
      const painted = () => new Set(pen.getImageData(0, 0, canvas.width, canvas.height).data).size > 8;
      const first = painted(), select = document.querySelector(".timeline select");
      select.value = "1"; select.dispatchEvent(new Event("change"));
      setTimeout(() => {
        const box = canvas.getBoundingClientRect(); let told = "";
        for (let x = 0; x < box.width && !told; x += 1) {
          canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + 42, bubbles: true }));
          told = canvas.dataset.tip || "";
        }
        document.title = `${first} ${painted()} ${select.options.length} ${told}`;
      }, 300);
    }, 500));</script></body>"""
    text = page.read_text()
    start = text.index('<meta http-equiv="Content-Security-Policy"')
    text = text[:start] + text[text.index(">", start) + 1 :]
    copy = tmp_path / "probe.html"
    copy.write_text(text.replace("</body>", probe))
    done = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            f"--user-data-dir={tmp_path / 'profile_dir'}",
            "--virtual-time-budget=4000",
            "--dump-dom",
            f"file://{copy}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    title = done.stdout[done.stdout.index("<title>") + 7 : done.stdout.index("</title>")]
    assert title.startswith("true true 4 nvjet_gemm · 10.00 µs at "), title
