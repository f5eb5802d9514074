"""Both reports in headless Chromium: nothing is fetched, tables sort, images enlarge, a phone and a printer will do.

Needed are the package `playwright` and a Chromium: the file that DPDD_CHROMIUM names, or one on the path. Where either
is missing, this is skipped; the same pages are checked by a parser in any case.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpdd.scenarios.compare.cells import Ended
from dpdd.scenarios.compare.page import compare_page
from dpdd.scenarios.compare.results import results_of
from dpdd.server.report.finished import finished_run
from dpdd.server.report.run_page import run_page
from tests.scenarios.compare.grids import finished
from tests.server.finished_runs import images
from tests.server.report.reported_runs import reported_run

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need the package playwright")
CHROMIUM = os.environ.get("DPDD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need a Chromium: none is on this machine")
EVIL = "<script>document.title = 'broken'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run's report and a comparison's, with a failed cell and names that are markup."""
    folder = tmp_path_factory.mktemp("reports")
    reported_run(folder / "run", images(), card={"name": EVIL, "classes": [EVIL, "b"], "protects_people": False})
    cells = finished(folder / "grid", epsilon=[1.0, 4.0, 10.0, 0.5], seeds=2)
    cells.ended[cells.cells[2].key] = cells.ended[cells.cells[6].key] = Ended(failure=EVIL)
    texts = {
        "run": run_page(finished_run(folder / "run")),
        "compare": compare_page(results_of(cells), cells, EVIL, "dpdd-sim compare quickstart"),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(params=["run", "compare"])
def page(request: pytest.FixtureRequest, browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    """A page that is open; in the end nothing was fetched, and nothing complained."""
    yield from opened(browser, files[request.param])


@pytest.fixture
def comparison(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    yield from opened(browser, files["compare"])


def opened(browser: Any, path: Path, **more: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1000, "height": 800}, **more)
    page, asked, said = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    yield page
    outside = [url for url in asked if url.partition("#")[0] != path.as_uri() and not url.startswith("data:image/")]
    assert outside == [] and said == []
    assert page.title() != "broken"
    context.close()


def test_it_renders_with_its_style_its_script_and_its_pictures(page: Any) -> None:
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert page.evaluate("document.images.length") >= 1
    assert page.evaluate("getComputedStyle(document.body).maxWidth") != "none"
    assert page.evaluate("document.querySelectorAll('th button').length") > 0
    assert EVIL in page.inner_text("body")


def column(page: Any, number: int) -> list[str]:
    return [
        str(text) for text in page.locator(f"#results tbody tr:first-child > *:nth-child({number})").all_inner_texts()
    ]


def test_tables_sort_both_ways_and_commands_move_with_their_row(comparison: Any) -> None:
    head = comparison.locator("#results thead th").nth(2)
    assert head.inner_text().startswith("ε") and column(comparison, 3) == ["1", "4", "10", "0.5"]
    head.locator("button").click()
    assert column(comparison, 3) == ["0.5", "1", "4", "10"] and head.get_attribute("aria-sort") == "ascending"
    for body in comparison.locator("#results tbody").all():
        epsilon = body.locator("tr").first.locator("td").nth(1).inner_text()
        assert f"eps-{epsilon}.silos" in body.locator("tr.below pre").first.inner_text()
    head.locator("button").press("Enter")
    assert column(comparison, 3) == ["10", "4", "1", "0.5"] and head.get_attribute("aria-sort") == "descending"
    accuracy = comparison.locator("#results thead th").nth(6)
    accuracy.locator("button").click()
    shown = column(comparison, 7)
    assert shown[-1] == "failed" and shown[:-1] == sorted(shown[:-1])  # what is not known is last
    accuracy.locator("button").click()
    assert column(comparison, 7)[-1] == "failed"


def test_pictures_enlarge_and_close_again(page: Any) -> None:
    link = page.locator("a.enlarge").first
    figure = page.locator("figure.picture").first
    before = figure.locator("img").bounding_box()
    link.scroll_into_view_if_needed()
    link.click()
    assert figure.evaluate("each => getComputedStyle(each).position") == "fixed"
    after = figure.locator("img").bounding_box()
    assert after["height"] > before["height"] and after["height"] <= 800 and after["width"] <= 1000
    figure.locator("a.close").click()
    assert figure.evaluate("each => getComputedStyle(each).position") != "fixed"
    link.click()
    page.keyboard.press("Escape")
    assert figure.evaluate("each => getComputedStyle(each).position") != "fixed"


@pytest.mark.parametrize("name", ["run", "compare"])
def test_without_scripts_everything_is_there(name: str, browser: Any, files: dict[str, Path]) -> None:
    for page in opened(browser, files[name], java_script_enabled=False):
        assert page.locator("table").count() >= 3 and page.locator("th button").count() == 0
        page.locator("a.enlarge").first.click()
        box = page.locator("figure.picture img").first.bounding_box()
        assert box["height"] > 600  # the style alone enlarges it


def test_a_phone_does_not_scroll_sideways(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wide = "[...document.querySelectorAll('body *')].filter(each => each.getBoundingClientRect().right > 361"
    assert (
        page.evaluate(f"{wide} && !each.closest('.scroll, .chart, pre')).map(each => each.outerHTML.slice(0, 80))")
        == []
    )
    small = "[...document.querySelectorAll('main p, main td, main dd')].map(each => getComputedStyle(each).fontSize)"
    assert min(float(size.removesuffix("px")) for size in page.evaluate(small)) >= 12


def test_on_paper_nothing_is_cut_off_or_dark(page: Any) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 within its margins
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(e => getComputedStyle(e).overflowX == 'visible')"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 722


def test_without_colour_rows_and_lines_still_differ(comparison: Any) -> None:
    failed = comparison.locator("tbody.failed")
    assert failed.count() == 1 and "Failed, seed 0:" in failed.inner_text()
    marks = comparison.evaluate(
        "[...document.querySelectorAll('#epsilon ul.legend li')].map(each => [...each.querySelectorAll('path')]"
        ".map(path => path.getAttribute('stroke-dasharray') + path.getAttribute('d')).join())"
    )
    assert len(marks) == len(set(marks)) > 0


def test_in_the_dark_text_is_light(browser: Any, files: dict[str, Path]) -> None:
    for page in opened(browser, files["compare"], color_scheme="dark"):
        colours = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        ink, paper = (sum(map(int, colour[4:-1].split(","))) for colour in page.evaluate(colours))
        assert ink > 600 and paper < 150
