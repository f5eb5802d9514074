"""The parts of pages: what is text stays text, tables sort by numbers, charts can be read without colours."""

from __future__ import annotations

import base64
import hashlib
import math
import re

import pytest

from dpdd.server.report.html.chart import Axes, Point, Reference, Series, chart, ticks
from dpdd.server.report.html.layout import Section, page
from dpdd.server.report.html.markup import Html, element, escape
from dpdd.server.report.html.picture import picture
from dpdd.server.report.html.table import Cell, Row, figure, table
from tests.server.report.reported_runs import Page, check_document

NASTY = "</title></script><script>alert('1')</script>\" onload=x \u202e\x00"


def test_text_is_text_wherever_it_stands() -> None:
    body = [
        element("p", NASTY, title=NASTY),
        table(NASTY, [NASTY], [Row([NASTY], NASTY)]),
        picture("anchor", b"\x89PNG", NASTY, NASTY),
        chart(Axes(NASTY, NASTY, NASTY), [Series(NASTY, [Point(1.0, 2.0, 0.0, NASTY)], 0)]),
    ]
    found = check_document(page(NASTY, NASTY, [Section("one", NASTY, body)], foot=NASTY))
    shown = NASTY.replace("\u202e\x00", "\ufffd\ufffd")
    assert found.text.count(shown) >= 11
    assert [each for each in found.named("p") if each.get("title") == shown]


def test_markup_is_not_escaped_twice() -> None:
    assert element("b", escape("a < b")) == "<b>a &lt; b</b>"
    assert element("p", ["x", element("br"), None, Html("&amp;")]) == "<p>x<br>&amp;</p>"


def test_the_policy_allows_this_script_and_style_and_nothing_else() -> None:
    document = page("title", None, [])
    (policy,) = (each["content"] for each in Page.of(document).named("meta") if "content-security" in str(each).lower())
    for name in ("script", "style"):
        (inside,) = re.findall(f"(?s)<{name}>(.*?)</{name}>", document)
        assert f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:;") and "unsafe" not in policy


def test_cells_carry_the_number_that_they_are_sorted_by() -> None:
    rows = [Row(["north", figure(1e6, "1 MB"), Cell("–")]), Row(["south", figure(math.inf, "∞")], failed=True)]
    shown = Page.of(table("sizes", ["silo", "bytes", "more"], rows))
    assert [each.get("data-number") for each in shown.named("td")] == ["1000000.0", None, "inf"]
    assert [each.get("class") for each in shown.named("tbody")] == [None, "failed"]
    assert shown.named("table")[0]["class"] == "sortable"
    assert shown.named("td")[2]["colspan"] == "2"  # the last cell of a short row takes what is left


def test_series_differ_by_marks_and_dashes_and_not_by_colour_alone() -> None:
    series = [Series(str(n), [Point(1.0, 50.0 + n, 1.0, ""), Point(10.0, 60.0 + n, 0.0, "")], n) for n in range(8)]
    found = Page.of(chart(Axes("title", "x", "y"), series))
    marks = [each for each in found.named("path") if "mark" in each.get("class", "")][-8:]  # the legend's
    shapes = {(re.sub(r"[\d.-]+", "0", each["d"]), each["class"].split()[1]) for each in marks}
    dashes = {
        each.get("stroke-dasharray")
        for each in found.named("path")
        if "line" in each.get("class", "") and each["d"].startswith("M1 8")
    }
    assert len(dashes) >= 7 and len(shapes) >= 4


def test_points_lie_inside_and_in_order() -> None:
    points = [Point(x, y, 2.0, "") for x, y in ((0.1, 10.0), (1.0, 55.0), (math.inf, 99.0))]
    document = chart(Axes("t", "x", "y", (0.1, 1.0)), [Series("a", points, 0)], [Reference("a", 1.0, 90.0, "theirs")])
    (way,) = (
        each["d"] for each in Page.of(document).named("path") if re.fullmatch(r"M[\d. ]+(L[\d. ]+){2}", each["d"])
    )
    places = [tuple(map(float, pair.split())) for pair in way[1:].split("L")]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    assert all(0 < x < 520 and 0 < y < 330 for x, y in places)
    assert "∞" in document and "theirs" in document


@pytest.mark.parametrize("low,high", [(0.0, 0.0), (51.2, 52.9), (0.1, 99.9), (79.999, 80.0)])
def test_ticks_enclose_what_is_drawn(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 9


def test_a_chart_of_nothing_says_so() -> None:
    assert "nothing to draw" in chart(Axes("t", "x", "y"), [])


def test_a_picture_is_inside_the_page_and_enlarges_without_a_script() -> None:
    found = Page.of(picture("look", b"\x89PNG...", "shoes", "caption"))
    (image,) = found.named("img")
    assert image["src"].startswith("data:image/png;base64,") and image["alt"] == "shoes"
    assert [each["href"] for each in found.named("a")] == ["#look", "#shown"]
    with pytest.raises(ValueError, match="PNG or JPEG"):
        picture("look", b"<svg onload=alert(1)>", "x", "y")
