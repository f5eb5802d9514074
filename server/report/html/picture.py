"""Pictures inside the page: small, and as large as the window when one is chosen, without a script.

The link around a picture leads to its own anchor, and the style shows what an address leads to over the whole window.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from dpdd.server.report.html.markup import Child, Html, element

_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}
NOWHERE = "#shown"
"""An address that nothing answers to: whoever follows it stays where they are."""


def picture(anchor: str, content: bytes, words: str, caption: Child, *, pixels: bool = True) -> Html:
    """A picture with a caption; `words` say what it shows to who cannot see it. `pixels` are kept apart."""
    kind = next((kind for start, kind in _TYPES.items() if content.startswith(start)), None)
    if kind is None:
        raise ValueError("a picture in a page is PNG or JPEG")
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    image = element("img", src=source, alt=words, class_="pixels" if pixels else None)
    return element(
        "figure",
        element("a", image, href=f"#{anchor}", class_="enlarge", aria_label=f"Enlarge: {words}"),
        element("figcaption", caption),
        element("a", "Close", href=NOWHERE, class_="close"),
        id=anchor,
        class_="picture",
    )


def picture_of(path: Path, anchor: str, words: str, caption: Child, *, pixels: bool = True) -> Html | None:
    """The same from a file; nothing where there is none."""
    return picture(anchor, path.read_bytes(), words, caption, pixels=pixels) if path.exists() else None


def gallery(pictures: Sequence[Html]) -> Html:
    """Pictures beside each other, as many as fit."""
    return element("div", list(pictures), class_="gallery")
