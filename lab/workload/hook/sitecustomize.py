"""Start a part of lab inside an unchanged Python program; it stands first on PYTHONPATH, so Python runs it.

Only `LAB_HOOK` (`module:function`) makes it do anything, and only once the program imports torch: then the
function is called without arguments and reads its own settings. Whatever sitecustomize the program's own
environment has runs too.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


def _chain() -> None:
    """Run the sitecustomize that this one hides."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    further_folders = [folder for folder in sys.path if os.path.abspath(folder) != own_folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", further_folders)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _AfterTorch:
    """Find torch by the ordinary finders, and start lab's part once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _start()

            loader.exec_module = exec_module
        return spec


def _start() -> None:
    """Call the function of LAB_HOOK; an error is printed and never ends the user's program."""
    root = os.environ.get("LAB_HOOK_ROOT")
    try:
        if root and root not in sys.path:
            sys.path.append(root)
        module, _, function = os.environ["LAB_HOOK"].partition(":")
        getattr(importlib.import_module(module), function)()
    except Exception as error:  # noqa: BLE001  without a record nothing is called clean
        print(f"lab: {os.environ['LAB_HOOK']} could not start: {error!r}", file=sys.stderr)


if os.environ.get("LAB_HOOK"):
    sys.meta_path.insert(0, _AfterTorch())
_chain()
