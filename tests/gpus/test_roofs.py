"""Ceilings of GPUs by their names."""

from __future__ import annotations

from lab.gpus.roofs import roof_of


def test_ceilings_are_found_by_the_devices_name():
    assert roof_of("NVIDIA H200").bytes_per_s == 4.8e12 and roof_of("NVIDIA H100 PCIe").half_flops == 756e12
    assert roof_of("NVIDIA GeForce GTX 1080 Ti").flops("float32") == 11.3e12 and roof_of("Voodoo 2") is None
