"""What a matrix product computes."""

from __future__ import annotations

from lab.perfmodel.boards import board_of
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.products import products
from lab.rooms.kernels.trails import trails


def test_a_product_is_two_m_n_k_and_its_factors_once(folder):
    catalogue = read_catalogue(trails(folder))
    table = products(catalogue, board_of("NVIDIA H200"))
    row = table[table["op"] == "aten::mm"].iloc[0]
    assert (row["flop"], row["least_bytes"]) == (2 * 4 * 8 * 8, 2 * (4 * 8 + 8 * 8 + 4 * 8))
    assert "aten::cat" not in set(table["op"])
