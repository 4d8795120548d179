"""A catalogue of one trace."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.trails import Trail


def catalogue_of(path):
    return read_catalogue([Trail(rank=0, trace=path)])
