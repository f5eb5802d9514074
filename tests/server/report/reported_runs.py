"""Finished runs with their `metrics.json`, as reports read them; and pages as a parser sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from dpdd.common.synthesis.product import Product
from tests.server.finished_runs import SCORES, finished_run

VOID = {"meta", "img", "br", "hr", "link", "col"}
FETCHING = {"src", "href", "srcset", "action", "data", "poster", "xlink:href", "background", "formaction"}


def reported_run(
    folder: Path, product: Product, *, scores: Mapping[str, Any] = SCORES, card: Mapping[str, Any] = {}, **more: Any
) -> dict[str, Any]:
    """Leave a run in `folder` with changes to its card, and give its metrics; `more` are keys of those."""
    written = {**finished_run(folder, product, scores=scores), **card}
    (folder / "card.json").write_text(json.dumps(written))
    silos = written["silos"]
    influence = [{"silo": row["silo"], "shares": {"coat": 0.5}, "in_noise": 0.7, "relative": 0.1} for row in silos]
    metrics = {
        "scenario": written["name"],
        "accuracy": {},
        **scores,
        "implausible_releases": [],
        "influence": influence,
        "lost_in_noise": [],
        "privacy": silos,
        "dataset": {"classes": len(product.classes), "images_per_class": 2, **product.facts},
        "seconds": {"releases": 1.5, "synthesis": 70.0},
        **more,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return metrics


@dataclass
class Page(HTMLParser):
    """A document: every element with its attributes, the text outside scripts and styles, and what is not closed."""

    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: str = ""
    open: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def of(cls, document: str) -> Page:
        page = cls()
        page.feed(document)
        page.close()
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data

    @property
    def fetched(self) -> list[str]:
        """What a browser would fetch, or follow: everything that is not inside the file."""
        links = [value for _, attributes in self.elements for key, value in attributes.items() if key in FETCHING]
        return [link for link in links if not link.startswith(("#", "data:image/"))]

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def check_document(document: str) -> Page:
    """The page, after what every page has to be was checked."""
    page = Page.of(document)
    assert not page.wrong and not page.open, f"not closed in order: {page.wrong or page.open}"
    assert page.fetched == []
    assert "@import" not in document and "url(" not in document
    assert len(page.named("script")) == 1 and not any(key.startswith("on") for _, each in page.elements for key in each)
    assert all("style" not in each for _, each in page.elements)
    ids = [each["id"] for _, each in page.elements if "id" in each]
    assert len(ids) == len(set(ids))
    for link in (each["href"] for each in page.named("a")):
        assert link[1:] in ids or link == "#shown"
    assert all(image["alt"] for image in page.named("img"))
    return page
