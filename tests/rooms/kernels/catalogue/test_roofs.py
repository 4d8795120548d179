"""Ceilings of GPUs, and what a matrix product computes."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.gpus.roofs import roof_of
from lab.rooms.kernels.catalogue.roofs import product_of
from lab.rooms.kernels.trails import trails


def test_a_product_is_two_m_n_k_and_its_factors_once(folder):
    catalogue = read_catalogue(trails(folder))
    one = next(one for one in catalogue.signatures.signatures if one.op == "aten::mm")
    work = product_of(one)
    assert (work.flops, work.bytes) == (2 * 4 * 8 * 8, 2 * (4 * 8 + 8 * 8 + 4 * 8))
    assert product_of(next(one for one in catalogue.signatures.signatures if one.op == "aten::cat")) is None


def test_ceilings_are_found_by_the_devices_name():
    assert roof_of("NVIDIA H200").bytes_per_s == 4.8e12 and roof_of("NVIDIA H100 PCIe").half_flops == 756e12
    assert roof_of("NVIDIA GeForce GTX 1080 Ti").flops("float32") == 11.3e12 and roof_of("Voodoo 2") is None
