"""What a matrix product computes, how fast, and which class its kernels have."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.analyze import frame_of, products, shares
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.sources import trails_of
from lab.rooms.kernels.trails import trails
from tests.perfmodel.truths import CASES, CLASS_PERCENTS, PRODUCT_RATES, ROOF_PERCENTS


def test_a_product_is_two_m_n_k_and_its_factors_once(folder):
    table = products(read_catalogue(trails(folder)))
    row = table[table["op"] == "aten::mm"].iloc[0]
    assert row["gflop"] * 1e9 == pytest.approx(2 * 4 * 8 * 8)
    assert row["mbytes"] * 1e6 == pytest.approx(2 * (4 * 8 + 8 * 8 + 4 * 8))
    assert "aten::cat" not in set(table["op"])


@pytest.mark.data
@pytest.mark.parametrize(("name", "op", "tflops", "gflop_each"), PRODUCT_RATES)
def test_a_products_rate_is_that_of_all_its_kernels(shared_data, name, op, tflops, gflop_each):
    catalogue = read_catalogue(trails_of([shared_data / CASES / f"{name}.json.gz"]))
    (product,) = products(catalogue).to_dict("records")
    assert (product["op"], product["rate_tflops"]) == (op, pytest.approx(tflops, abs=0.05))
    assert (product["count"], product["gflop"]) == (4, pytest.approx(gflop_each, abs=0.005))


@pytest.mark.data
@pytest.mark.parametrize(("name", "percent"), ROOF_PERCENTS)
def test_the_share_of_the_roof_is_that_of_the_board_itself(shared_data, name, percent):
    catalogue = read_catalogue(trails_of([shared_data / CASES / f"board_{name}.json.gz"]))
    (product,) = products(catalogue).to_dict("records")
    expected = float("nan") if percent is None else percent
    assert product["of_ceiling_percent"] == pytest.approx(expected, abs=0.3, nan_ok=True)
    assert (product["ceiling"] == "") is (percent is None)


@pytest.mark.data
@pytest.mark.parametrize(("name", "class_", "percent"), CLASS_PERCENTS)
def test_classes_follow_what_a_kernel_does(shared_data, name, class_, percent):
    catalogue = read_catalogue(trails_of([shared_data / CASES / f"{name}.json.gz"]))
    table = shares(frame_of(catalogue), "class").set_index("class")
    assert table.loc[class_, "share_percent"] == pytest.approx(percent)
