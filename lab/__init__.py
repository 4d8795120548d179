"""lab: what does my model do to this GPU, and can I trust its numbers?"""

import os as _os

__version__ = "0.1.0"

if "LAB_DEPENDENCIES" in _os.environ:  # in an image that is not lab's: behind all packages that it has itself
    import sys as _sys

    _sys.path.append(_os.environ["LAB_DEPENDENCIES"])

if "LAB_CODE_SHA256" in _os.environ:  # an engine started this process: it must be the lab that its run names
    from pathlib import Path as _Path

    from lab.core.content import verify as _verify

    _verify(_Path(__file__).parent)
