"""What a matrix product computes."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.roofs import product_of
from lab.rooms.kernels.trails import trails


def test_a_product_is_two_m_n_k_and_its_factors_once(folder):
    catalogue = read_catalogue(trails(folder))
    one = next(one for one in catalogue.signatures.signatures if one.op == "aten::mm")
    work = product_of(one)
    assert (work.flops, work.bytes) == (2 * 4 * 8 * 8, 2 * (4 * 8 + 8 * 8 + 4 * 8))
    assert product_of(next(one for one in catalogue.signatures.signatures if one.op == "aten::cat")) is None
