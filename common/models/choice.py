"""Which public backbone suits images of a shape, where nobody named one; and names of those that are built in code.

>>> backbone_for((1, 28, 28)), backbone_for((3, 32, 32)), backbone_for((3, 300, 200))
('scatter28', 'scatter32', 'scattering-3x300x200')
>>> built_shape("scattering-3x300x200"), built_shape("scatter28")
((3, 300, 200), None)
>>> backbone_for((14,))
Traceback (most recent call last):
dpdd.common.errors.ConfigError: there is no backbone for records of shape (14,): images have channels, height and width
"""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable

from dpdd.common.errors import ConfigError

AUTO = "auto"
"""In settings: the backbone that `backbone_for` gives."""
SMALLEST_SIDE, LARGEST_SIDE, MOST_CHANNELS = 8, 4096, 16
"""Of images that a scattering transform is built for."""
_FILES: dict[tuple[int, ...], str] = {(1, 28, 28): "scatter28", (3, 32, 32): "scatter32"}
_BUILT = re.compile(r"scattering-([0-9]{1,9})x([0-9]{1,9})x([0-9]{1,9})")


def shipped_weights() -> Traversable:
    """The folder with the backbones that ship with dpdd."""
    return resources.files("dpdd.common.models").joinpath("weights")


def available() -> tuple[str, ...]:
    """Names of the backbones that ship with dpdd."""
    folder = shipped_weights()
    if not folder.is_dir():
        return ()
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def comes_with_dpdd(name: str) -> bool:
    """Whether a name means a shipped backbone or one that is built in code, and not somebody's file.

    >>> comes_with_dpdd("scatter28"), comes_with_dpdd("scattering-3x64x64"), comes_with_dpdd("weights/mine")
    (True, True, False)
    """
    try:
        return name in available() or built_shape(name) is not None
    except ConfigError:
        return False


def check_built_for(name: str, shape: tuple[int, ...]) -> None:
    """ConfigError for the scattering transform of another shape than this one, before it is built.

    >>> check_built_for("scattering-1x8x8", (1, 8, 8))
    """
    if built_shape(name) not in (None, shape):
        raise ConfigError(f"backbone {name} is for other images than those of shape {shape}")


def backbone_for(shape: tuple[int, ...]) -> str:
    """The name of the default backbone for images of a shape; it was made without any data, public or private.

    ConfigError where there is none.
    """
    if len(shape) != 3:
        raise ConfigError(
            f"there is no backbone for records of shape {tuple(shape)}: images have channels, height and width"
        )
    return _FILES.get(tuple(shape)) or built_name(shape)


def built_name(shape: tuple[int, ...]) -> str:
    """What the scattering transform that is built in code for a shape is called; ConfigError where none can be."""
    channels, height, width = shape
    fits = all(SMALLEST_SIDE <= side <= LARGEST_SIDE for side in (height, width))
    if not (fits and 1 <= channels <= MOST_CHANNELS):
        raise ConfigError(
            f"there is no backbone for images of {channels}x{height}x{width}: scattering transforms are built for up "
            f"to {MOST_CHANNELS} channels and sides from {SMALLEST_SIDE} to {LARGEST_SIDE} pixels (the methods dosser "
            "and dp-merf need no backbone)"
        )
    return f"scattering-{channels}x{height}x{width}"


def built_shape(name: str) -> tuple[int, int, int] | None:
    """The shape in a built backbone's name, or None for any other name; ConfigError where none can be built."""
    match = _BUILT.fullmatch(name)
    if match is None:
        return None
    channels, height, width = map(int, match.groups())
    if name != built_name((channels, height, width)):  # one spelling, as requests are told apart by their bytes
        raise ConfigError(f"backbone {name} is called {built_name((channels, height, width))}")
    return channels, height, width
