"""A page: one file with its style and script inside, which no browser fetches anything for.

The page says so to the browser, too: its policy forbids every resource but data within the file, and every script and
style but the two that are hashed there. So a string that got past escaping would still run nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from dpdd.server.report.html.markup import Child, Html, element, join


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading, and an anchor that the list of contents leads to."""

    anchor: str
    title: str
    body: Sequence[Child]


def page(title: str, about: Child, sections: Sequence[Section], *, foot: Child = None) -> str:
    """The whole document."""
    style, script = _inside("style.css"), _inside("script.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(style)),
    )
    contents = element(
        "nav",
        element("ul", [element("li", element("a", each.title, href=f"#{each.anchor}")) for each in sections]),
        aria_label="Contents",
    )
    body = element(
        "body",
        element("header", element("h1", title), about),
        contents,
        element("main", [_section(each) for each in sections]),
        element("footer", foot) if foot is not None else None,
        element("script", Html(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _section(section: Section) -> Html:
    heading = f"{section.anchor}-heading"
    return element(
        "section",
        element("h2", section.title, id=heading),
        list(section.body),
        id=section.anchor,
        aria_labelledby=heading,
    )


def _inside(name: str) -> str:
    """A file of this package, as it stands in the page."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return f"\n{text}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def paragraph(*children: Child) -> Html:
    """A paragraph of text."""
    return element("p", *children)


def warning(*children: Child) -> Html:
    """What must not be overlooked, in words as well as by its looks."""
    return element("p", element("strong", "Note: "), *children, class_="warning")


def figures(values: Sequence[tuple[str, str]]) -> Html:
    """The few figures that a reader looks for first, each with what it is."""
    tiles = [element("div", element("dt", what), element("dd", value)) for value, what in values]
    return element("dl", tiles, class_="figures")


def facts(values: Sequence[tuple[str, Child]]) -> Html:
    """Names and values, one to a line."""
    return element("dl", [join([element("dt", name), element("dd", value)]) for name, value in values], class_="facts")


def listed(lines: Sequence[Child]) -> Html:
    """Lines with a mark before each."""
    return element("ul", [element("li", line) for line in lines])


def command(*lines: str) -> Html:
    """What somebody types."""
    return element("pre", element("code", "\n".join(lines)), class_="command")


def plain(text: str) -> Html:
    """Text in columns that is laid out already."""
    return element("pre", text, class_="plain", tabindex="0")


def folded(summary: Child, *children: Child) -> Html:
    """What is there for who wants it."""
    return element("details", element("summary", summary), *children)


def code(text: str) -> Html:
    """A name, a hash or a formula."""
    return element("code", text)
