"""The page in headless Chromium: it renders, nothing is refused or fails; keyboard, themes, phone, paper, no script."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import eagletrace
from eagletrace.cli.demo import DEMO_RUN
from eagletrace.report.html import load_tokenizer
from eagletrace.report.text import safe
from tests.report.html_parse import page_of, page_of_two
from tests.report.html_runs import HOSTILE, hostile_run, tree_run

playwright = pytest.importorskip("playwright.sync_api")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TARGET = Path(eagletrace.__file__).parent / "lab" / "pair" / "data" / "llama" / "target"
WIDTHS = (360, 768, 1280)


@dataclass
class Opened:
    """A page in the browser, and what went wrong on it."""

    page: Any
    complaints: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium on this machine: `make browser` installs it")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {
        "demo": page_of(DEMO_RUN),
        "tree": page_of(tree_run(folder / "tree"), load_tokenizer(TARGET)),
        "hostile": page_of(hostile_run(folder / "hostile")),
    }
    pages["two runs"] = page_of_two(folder / "tree", DEMO_RUN)
    pages["two hostile runs"] = page_of_two(DEMO_RUN, folder / "hostile")
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


def visit(browser: Any, file: Path, width: int = 1280, **options: Any) -> Opened:
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    opened = Opened(page)

    def said(message: Any) -> None:
        opened.complaints.append(f"{message.type}: {message.text}")

    def failed(error: Any) -> None:
        opened.complaints.append(str(error))

    def asked(request: Any) -> None:
        opened.requests.append(request.url)

    page.on("console", said)
    page.on("pageerror", failed)
    page.on("request", asked)
    page.goto(file.as_uri())
    return opened


@pytest.mark.parametrize("name", ["demo", "tree", "hostile", "two runs", "two hostile runs"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_without_a_complaint(name: str, scheme: str, browser: Any, files: dict[str, Path]) -> None:
    opened = visit(browser, files[name], color_scheme=scheme)
    page = opened.page
    charts = page.locator(".chart")
    assert charts.count() == page.locator(".chart > svg").count() >= 5
    for chart in charts.all():
        assert chart.bounding_box()["height"] > 100
        assert chart.locator("svg [aria-label$=mark], svg g[aria-label]").count() >= 1
    assert opened.complaints == [] and opened.requests == [files[name].as_uri()]
    page.close()


def test_markup_of_a_trace_is_text(browser: Any, files: dict[str, Path]) -> None:
    page = visit(browser, files["hostile"]).page
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    page.wait_for_timeout(200)
    assert (
        safe(HOSTILE).replace("\\", "\\\\") not in page.title()
        and "hacked" in page.title()
        and page.title() != "hacked"
    )
    assert page.locator("img, iframe, object, embed, form").count() == 0
    assert page.locator("script").count() == 4
    assert page.locator("body").inner_text().count("<script>document.title='hacked'</script>") >= 50
    page.close()


def test_the_policy_refuses_other_scripts(browser: Any, files: dict[str, Path]) -> None:
    """What would run if a text got through: it is refused, and said to be."""
    opened = visit(browser, files["demo"])
    opened.page.evaluate("""() => {
        const added = document.createElement("script");
        added.textContent = "document.title = 'hacked'";
        document.body.append(added);
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='document.title=\\"hacked\\"'>");
    }""")
    opened.page.wait_for_timeout(300)
    assert opened.page.title() != "hacked"
    assert sum("Content Security Policy" in text for text in opened.complaints) >= 2
    opened.page.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["demo", "tree", "hostile"])
def test_nothing_is_wider_than_the_window(width: int, name: str, browser: Any, files: dict[str, Path]) -> None:
    page = visit(browser, files[name], width).page
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in page.locator(".chart > svg").all():
        box = chart.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width + 1
    page.close()


def test_charts_follow_the_window(browser: Any, files: dict[str, Path]) -> None:
    page = visit(browser, files["demo"]).page
    chart = page.locator("#timeline .chart > svg")
    before = chart.bounding_box()["width"]
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function("document.querySelector('#timeline svg').getBoundingClientRect().width < 500")
    assert float(chart.get_attribute("width")) < 500 < before
    page.close()


def test_a_pointer_shows_the_numbers(browser: Any, files: dict[str, Path]) -> None:
    page = visit(browser, files["demo"]).page
    chart = page.locator("#depth .chart > svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = chart.locator("[aria-label=tip]")
    playwright.expect(tip).to_contain_text("95 % interval")
    assert "depth 2" in tip.text_content()
    page.close()


def background(page: Any) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_themes_by_keyboard(browser: Any, files: dict[str, Path]) -> None:
    page = visit(browser, files["demo"], color_scheme="light").page
    button = page.get_by_role("button", name="Theme")
    seen = [(button.text_content(), background(page))]
    for _ in range(3):
        button.focus()
        page.keyboard.press("Enter")
        seen.append((button.text_content(), background(page)))
    light, dark = "rgb(255, 255, 255)", "rgb(21, 24, 28)"
    assert seen == [("Theme: auto", light), ("Theme: light", light), ("Theme: dark", dark), ("Theme: auto", light)]
    page.emulate_media(color_scheme="dark")
    assert background(page) == dark
    page.close()


def test_it_can_be_read_by_keyboard_alone(browser: Any, files: dict[str, Path]) -> None:
    """Tab first offers to skip the navigation; every fold opens with Enter; focus can be seen."""
    page = visit(browser, files["tree"]).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    fold = page.locator("#checks details > summary").last
    assert not fold.evaluate("(summary) => summary.parentElement.open")
    fold.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    assert fold.evaluate("(summary) => summary.parentElement.open")
    page.get_by_role("button", name="Show token ids").focus()
    token = page.locator(".tree .tok").nth(1)
    as_text = token.inner_text()
    page.keyboard.press("Space")
    assert token.inner_text() == "11" != as_text
    page.close()


def test_long_tables_are_filtered(browser: Any, files: dict[str, Path]) -> None:
    page = visit(browser, files["demo"]).page
    rows = page.locator("#contract tbody tr")
    whole = rows.count()
    page.get_by_label("Filter facts").press_sequentially("aux captured")
    shown = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < whole and all("aux" in row.text_content() for row in shown)
    assert page.locator("#contract [role=status]").text_content() == f"{len(shown)} of {whole}"
    page.get_by_label("Filter facts").fill("")
    assert all(row.is_visible() for row in rows.all())
    page.close()


def test_screen_readers_find_their_way(browser: Any, files: dict[str, Path]) -> None:
    page = visit(browser, files["demo"]).page
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))")
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.locator("main, nav, header, footer").count() == 4 and page.locator("html").get_attribute("lang") == "en"
    assert page.locator("table:not(:has(> caption))").count() == 0
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator(".scroll:not([tabindex='0'][role=region][aria-label])").count() == 0
    assert page.locator(".chart:not([role=img][aria-label])").count() == 0
    page.close()


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
  };
  const under = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(rgba(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, [r, g, b, a]) => [r, g, b].map((c, i) => c * a + below[i] * (1 - a)), [255, 255, 255]);
  };
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (c) => c.slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const poor = new Map();
  document.querySelectorAll("body *:not(script, style, svg, svg *)").forEach((e) => {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) return;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(under(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.set(`${e.tagName}.${e.className}`, ratio);
  });
  return [...poor];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["demo", "tree"])
def test_text_stands_out(scheme: str, name: str, browser: Any, files: dict[str, Path]) -> None:
    """4.5 to 1, as WCAG asks at level AA."""
    page = visit(browser, files[name], color_scheme=scheme).page
    assert page.evaluate(CONTRAST) == []
    page.close()


def test_paper(browser: Any, files: dict[str, Path], tmp_path: Path) -> None:
    """Dark on the screen, light on paper, everything unfolded, no buttons, and folded again after."""
    page = visit(browser, files["demo"], color_scheme="dark").page
    folded = page.locator("details:not([open])").count()
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.locator(".controls").is_visible() and not page.locator("nav").is_visible()
    assert page.locator("#hooks tbody tr").first.is_visible()
    assert page.locator("details:not([open], .value)").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == folded
    paper = page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert paper.startswith(b"%PDF") and len(paper) > 50_000
    page.close()


def test_without_scripts_the_tables_have_it_all(browser: Any, files: dict[str, Path]) -> None:
    page = visit(browser, files["demo"], java_script_enabled=False).page
    assert page.get_by_text("Charts need scripts").is_visible()
    with_scripts = visit(browser, files["demo"]).page
    assert not with_scripts.get_by_text("Charts need scripts").is_visible()
    with_scripts.close()
    assert page.locator("#depth table").is_visible() and not page.locator(".controls").is_visible()
    page.close()
