"""One look for every page of lab: page, figures, tables and the colours they share."""

from typing import NamedTuple

# Each colour has a light and a dark value. The data colours follow Okabe and Ito's colour-blind-safe set
# (https://jfly.uni-koeln.de/color/), with more contrast.


class Ink(NamedTuple):
    light: str
    dark: str


# Every light value is unique, because figures are drawn in it and CSS variables then replace it.
PALETTE: dict[str, Ink] = {
    "paper": Ink("#ffffff", "#12171d"),
    "panel": Ink("#f5f7f9", "#1a2129"),
    "ink": Ink("#16202b", "#e7ecf1"),
    "muted": Ink("#556270", "#a1adb9"),
    "rule": Ink("#d8dee5", "#303a45"),
    "link": Ink("#0b5c94", "#79bdf0"),
    "computation": Ink("#0072b2", "#3f9fd8"),
    "communication": Ink("#d55e00", "#ee7f35"),
    "memcpy": Ink("#e0a100", "#f0bb3c"),
    "idle": Ink("#c3ccd6", "#4a5663"),
    "ok": Ink("#00795a", "#3cc79c"),
    "warn": Ink("#a76400", "#efb04a"),
    "fail": Ink("#b8321b", "#ff8b73"),
    "unknown": Ink("#7b8794", "#8a96a3"),
}


def light(role: str) -> str:
    """The light value of a colour by its role, as figures draw it."""
    return PALETTE[role].light


def css_variables() -> str:
    """`:root` rules that give every role its value: light by default, dark if the reader prefers it."""
    lights = "".join(f"--{role}:{ink.light};" for role, ink in PALETTE.items())
    darks = "".join(f"--{role}:{ink.dark};" for role, ink in PALETTE.items())
    return (
        f":root{{color-scheme:light dark;{lights}}}\n"
        f"@media screen and (prefers-color-scheme: dark){{:root{{{darks}}}}}"
    )
