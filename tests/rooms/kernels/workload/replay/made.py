"""Specs of tensors, on the CPU."""

from __future__ import annotations

import torch

from lab.rooms.kernels.replay.args import TensorArg

CPU = torch.device("cpu")


def spec(dtype="float32", shape=(2, 3), stride=(3, 1), **more):
    return TensorArg(dtype=dtype, shape=shape, stride=stride, **more)
