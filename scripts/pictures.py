"""The pictures of the docs: `python scripts/pictures.py [NAME...]` writes docs/NAME.png, all or those named.

Pages are made from the examples, small runs on this CPU and the shared recordings; a picture is the top
of a page as a browser shows it. Needs a Chromium, Pillow and the packages of the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
SHARED = Path(os.environ.get("LAB_SHARED_DATA", ROOT.parent / "shared/data"))
SWEEP = SHARED / "sweep_h200"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
COLORS = 256  # of a picture; with fewer, colours of small areas merge
LAB = (sys.executable, "-m", "lab")
COMPARED = EXAMPLES / "compare_traces"
SAFE = "{name: safe, env: {SAFE: 1}}"
FLAKY = (
    sys.executable,
    "-c",
    "import os, random, sys; sys.exit(random.random() < 0.4 and 'SAFE' not in os.environ)",
)

# picture -> (arguments of lab; {out} is the folder it writes), height of the window in pixels
PAGES: dict[str, tuple[list[str], int]] = {
    "analyze": (["analyze", f"{EXAMPLES}/read_trace/step.json.gz", "-o", "{out}"], 1000),
    "diff": (
        ["diff", f"{COMPARED}/base/run1.json.gz", f"{COMPARED}/head/run1.json.gz", "-o", "{out}"],
        1000,
    ),
    "sweep": (["analyze", str(SWEEP), "-o", "{out}"], 1100),
    "ranks": (["ranks", str(SHARED / "ranks/pipeline_h200/plain_slow1"), "-o", "{out}"], 1000),
    "nan": (
        ["run", "-q", "-o", "{out}", "nan", "baseline", "--device", "cpu", "--provoke", "overflow"],
        1000,
    ),
    "nsys": (
        ["nsys", "answers", str(SHARED / "kernels_h200/cs336_small_training.json.gz"), "-o", "{out}"],
        1000,
    ),
    "kernels": (
        ["run", "-q", "-o", "{out}", "kernels", "profile", "tiny-bloom", "--max-new-tokens", "4"],
        1000,
    ),
    "semicrf": (["run", "-q", "-o", "{out}", "semicrf", "diagnose"], 1000),
    "trials": (
        ["run", "-q", "-o", "{out}", "trials", "-n", "24", "--cell", "none", "--cell", SAFE, "--", *FLAKY],
        1000,
    ),
}
ROOMS = ("sweep", "nan", "nsys", "kernels", "semicrf", "trials")


def screenshot(page: Path, height: int, png: Path, width: int = 1050, scale: float = 0.75) -> None:
    """The top of a page as a browser first shows it. Raises CalledProcessError where there is none."""
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        size = f"--window-size={width},{height}"
        argv = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={shot}"]
        subprocess.run([*argv, page.resolve().as_uri()], check=True, capture_output=True)
        image = Image.open(shot).convert("RGB")
        small = image.resize((int(width * scale), int(height * scale)), Image.Resampling.LANCZOS)
        small.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE).save(png, optimize=True)


def draw_page(name: str) -> None:
    arguments, height = PAGES[name]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / name
        subprocess.run(
            [*LAB, *(word.replace("{out}", str(out)) for word in arguments)], cwd=folder, check=False
        )
        screenshot(next(out.rglob("*.html")), height, DOCS / f"{name}.png")


def draw_rooms() -> None:
    """The pages of the rooms as one picture, three in a row; made of their own pictures."""
    width, height, gap = 626, 590, 12  # no page is shorter at that width
    picture = Image.new("RGB", (3 * (width + gap) + gap, 2 * (height + gap) + gap), "#e2e5ee")
    for index, name in enumerate(ROOMS):
        page = Image.open(DOCS / f"{name}.png").convert("RGB")
        page = page.resize((width, page.height * width // page.width)).crop((0, 0, width, height))
        row, column = divmod(index, 3)
        picture.paste(page, (gap + column * (width + gap), gap + row * (height + gap)))
    picture.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE).save(DOCS / "rooms.png", optimize=True)


def draw_layers() -> None:
    """The layers of lab/ from the top, as import-linter holds them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    figure, axes = plt.subplots(figsize=(7.5, 0.42 * len(layers)))
    for row, layer in enumerate(reversed(layers)):
        names = [name.strip() for name in layer.split("|")]
        for column, name in enumerate(names):
            width = 10 / len(names)
            box = plt.Rectangle((column * width + 0.05, row + 0.08), width - 0.1, 0.84, color="#dfe7f5")
            axes.add_patch(box)
            axes.text((column + 0.5) * width, row + 0.5, name, ha="center", va="center", fontsize=10)
    axes.annotate(
        "imports",
        (10.4, 0.2),
        (10.4, len(layers) - 0.2),
        rotation=90,
        ha="center",
        va="top",
        arrowprops={"arrowstyle": "->", "color": "#567"},
        color="#567",
    )
    axes.set(xlim=(0, 10.9), ylim=(0, len(layers)))
    axes.axis("off")
    figure.savefig(DOCS / "layers.png", dpi=110, bbox_inches="tight")


def draw_gantt() -> None:
    trace = EXAMPLES / "read_trace/step.json.gz"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*LAB, "kernels", "gantt", str(trace), "-o", folder], check=True, capture_output=True)
        image = Image.open(next(Path(folder).rglob("gantt.png"))).convert("RGB")
        image.thumbnail((1100, 700))
        image.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE).save(DOCS / "gantt.png", optimize=True)


OTHERS = {"layers": draw_layers, "gantt": draw_gantt, "rooms": draw_rooms}


def main(names: list[str]) -> None:
    for name in names or [*PAGES, *OTHERS]:
        print(name, flush=True)
        OTHERS[name]() if name in OTHERS else draw_page(name)


if __name__ == "__main__":
    main(sys.argv[1:])
