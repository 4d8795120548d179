"""Tensors on a CPU counted in C."""
