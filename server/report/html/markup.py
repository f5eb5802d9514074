"""HTML from plain functions: what is text is escaped, what is markup already says so by its type.

>>> element("p", "a class called ", element("b", "<script>"), class_="note")
'<p class="note">a class called <b>&lt;script&gt;</b></p>'
>>> element("img", alt='a "quote"', hidden=True, title=None)
'<img alt="a &quot;quote&quot;" hidden>'
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

_VOID = frozenset({"br", "col", "hr", "img", "link", "meta"})
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")


class Html(str):
    """Text that is markup: nothing escapes it again."""

    __slots__ = ()


Child = str | Sequence["Child"] | None  # type: ignore[misc]
"""Text, which will be escaped; `Html`, which will not; several of these; or nothing."""


def escape(text: str) -> Html:
    """Text as markup that shows it: with no tags, and with no characters that turn what follows around."""
    return Html(html.escape(_DIRECTION.sub("\ufffd", _NO_TEXT.sub("\ufffd", text))))


def join(children: Iterable[Any], between: str = "") -> Html:
    """Children one after another."""
    return Html(escape(between).join(_markup(child) for child in children))


def element(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element. Of an attribute's name `_` becomes `-`, but for one at the end; None and False leave it out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def _markup(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return escape(child)
    return join(child)


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(f"{value:.6g}" if isinstance(value, float) else str(value))}"'
