"""Colours by name, for light and for dark pages; the stage colours are Okabe and Ito's, safe for the colour-blind."""

from typing import Final

LIGHT: Final = {
    "data": "#e69f00",
    "forward": "#0072b2",
    "backward": "#d55e00",
    "optimizer": "#009e73",
    "other": "#8c939d",
    "accent": "#0b5cad",
    "alert": "#b3261e",
    "extra": "#a8558a",
    "muted": "#5d6571",
    "grid": "#e3e6ea",
    "window": "#6b4fbb",
    "text": "#1b1f24",
    "ground": "#ffffff",
}
DARK: Final = {
    "data": "#f0b53c",
    "forward": "#56b4e9",
    "backward": "#f58a4b",
    "optimizer": "#35c79b",
    "other": "#98a1ad",
    "accent": "#79b8ff",
    "alert": "#ff8a80",
    "extra": "#d88fbc",
    "muted": "#9aa4b1",
    "grid": "#2c333c",
    "window": "#b39ddb",
    "text": "#e6e9ed",
    "ground": "#161a1f",
}
SERIES: Final = ("forward", "data", "optimizer", "extra", "backward", "window", "other", "muted")
"""The order in which curves without a colour of their own take theirs."""
