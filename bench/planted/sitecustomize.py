"""Plants a late host in the sweep's training: `LAB_PLANT=late:RANK:MS`, this folder on PYTHONPATH.

The rank sleeps at the begin of every step, after its GPU has ended the one before: a host that is late by as
much. Python imports a module of this name at its start; without LAB_PLANT it does nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time

TRAINER = "lab.rooms.sweep.workload.trainer"


class _Planter(importlib.abc.MetaPathFinder):
    """Finds the trainer as usual, and changes its step once it is loaded."""

    def __init__(self, rank: int, late_s: float) -> None:
        self.rank, self.late_s = rank, late_s

    def find_spec(self, fullname, path=None, target=None):
        if fullname != TRAINER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                self.plant(module.Trainer)

            spec.loader.exec_module = exec_module
        return spec

    def plant(self, trainer) -> None:
        step = trainer.step

        def late_step(self_):
            time.sleep(self.late_s)
            return step(self_)

        if int(os.environ.get("RANK", "0")) == self.rank:
            trainer.step = late_step


_kind, _, _rest = os.environ.get("LAB_PLANT", "").partition(":")
if _kind == "late":
    _rank, _, _ms = _rest.partition(":")
    sys.meta_path.insert(0, _Planter(int(_rank), float(_ms) / 1e3))
