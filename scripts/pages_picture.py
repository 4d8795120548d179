"""The tops of report pages as one picture: `python scripts/pages_picture.py docs/rooms.png REPORT.html...`.

Three pages in a row, each as wide as a reader's column, scaled down. Needs a Chromium and Pillow.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAGE = (1050, 1080)  # px, of the browser's window
SHOWN = (626, 644)  # px, of each page in the picture
ACROSS, GAP, GROUND = 3, 12, "#e2e5ee"


def top_of(page: Path, folder: Path) -> Image.Image:
    """The page as a browser first shows it. Raises CalledProcessError if there is no picture."""
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    shot = folder / "shot.png"
    size = "--window-size={},{}".format(*PAGE)
    command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={shot}"]
    subprocess.run([*command, page.resolve().as_uri()], check=True, capture_output=True)
    return Image.open(shot).convert("RGB").resize(SHOWN, Image.Resampling.LANCZOS)


def main(out: Path, pages: list[Path]) -> None:
    down = -(-len(pages) // ACROSS)
    width, height = SHOWN[0] + GAP, SHOWN[1] + GAP
    picture = Image.new("RGB", (ACROSS * width + GAP, down * height + GAP), GROUND)
    with tempfile.TemporaryDirectory() as folder:
        for at, page in enumerate(pages):
            picture.paste(
                top_of(page, Path(folder)), (GAP + at % ACROSS * width, GAP + at // ACROSS * height)
            )
    picture.quantize(64).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
