"""`lab --help` against importing click alone (bar: under 1.5x)."""

from __future__ import annotations

from bench.measure import median_cost


def main() -> None:
    click = median_cost(9, "import click")
    ours = median_cost(9, "import sys; sys.argv = ['lab', '--help']; from lab.cli.main import main; main()")
    print(
        f"click {click.cpu_s * 1e3:.0f} ms, lab --help {ours.cpu_s * 1e3:.0f} ms CPU: "
        f"{ours.cpu_s / click.cpu_s:.2f}x"
    )
