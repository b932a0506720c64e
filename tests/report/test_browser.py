"""Pages in a headless Chromium: what a reader does with them, and what they must never do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page
from pages import COMPARISON, SUITE

from xmckit import pipeline
from xmckit.report.comparison_page import write_comparison
from xmckit.report.suite_page import write_suite

PHONE, PAPER = 390, 720
# Numbers, and words of our own, that stand on several lines where one word should stand on one.
BROKEN = """
[...document.querySelectorAll('td.number, th.number, td.own')].filter((cell) => {
  const words = [...cell.childNodes].flatMap((node) => node.nodeType === 3 ? [node] : [...node.childNodes]);
  return words.some((node) => node.nodeType === 3 && [...node.data.matchAll(/[^\\s\\-\\/…]+/g)].some((word) => {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
  }));
}).map((cell) => cell.outerHTML.slice(0, 120))
"""
CUT_OFF = """
[...document.querySelectorAll('svg.chart text')].filter((text) => {
  const own = text.getBoundingClientRect(), whole = text.ownerSVGElement.getBoundingClientRect();
  return own.left < whole.left - 1 || own.right > whole.right + 1;
}).map((text) => text.textContent)
"""
ROWS = "[...document.querySelector('{}').tBodies[0].rows]"


@pytest.fixture(scope="session")
def files(run: pipeline.Result, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    write_comparison(COMPARISON, folder / "comparison.html")
    write_suite(SUITE, folder / "suite.html")
    return {"run": run.report, "comparison": folder / "comparison.html", "suite": folder / "suite.html"}


@pytest.fixture
def page(browser: Browser, files: dict[str, Path]) -> Iterator[Page]:
    opened = browser.open(files["run"])
    yield opened
    opened.close()


@pytest.mark.parametrize("name", ["run", "comparison", "suite"])
@pytest.mark.parametrize(("width", "dark"), [(1160, False), (PHONE, True)])
def test_it_loads_without_a_complaint_or_a_request(
    browser: Browser, files: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    page = browser.open(files[name], width=width, dark=dark)
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.scripts.length") == 1
    assert page.complaints() == []
    assert page.requests() == []
    page.close()


@pytest.mark.parametrize("name", ["run", "comparison", "suite"])
def test_nothing_is_wider_than_a_phone(browser: Browser, files: dict[str, Path], name: str) -> None:
    page = browser.open(files[name], width=PHONE)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert page.evaluate(BROKEN) == []
    page.close()


@pytest.mark.parametrize("width", [PHONE, 1160])
def test_the_longest_figure_is_inside_its_card(browser: Browser, files: dict[str, Path], width: int) -> None:
    page = browser.open(files["run"], width=width)
    page.evaluate("document.querySelectorAll('.card b').forEach(figure => figure.textContent = '23 h 59 min')")
    inside = "[...document.querySelectorAll('.card b')].map(figure => figure.scrollWidth <= figure.clientWidth)"
    assert page.evaluate(inside) == [True] * page.evaluate("document.querySelectorAll('.card').length")
    page.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["run", "comparison", "suite"])
def test_texts_can_be_read_on_what_is_behind_them(
    browser: Browser, files: dict[str, Path], name: str, dark: bool
) -> None:
    """The contrast that WCAG asks for, of every text on the page and in its charts."""
    page = browser.open(files[name], dark=dark)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 150) is dark
    worst = page.evaluate(
        """
        (() => {
          const light = (colour) => {
            const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map((value) => {
              const share = value / 255;
              return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const behind = (element) => {
            for (let one = element; one; one = one.parentElement) {
              const colour = getComputedStyle(one).backgroundColor;
              if (!colour.endsWith(', 0)') && colour !== 'transparent') return colour;
            }
          };
          let worst = [99, ''];
          for (const element of document.querySelectorAll('body *')) {
            if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
            const style = getComputedStyle(element);
            if (!element.getClientRects().length || ['SCRIPT', 'TITLE'].includes(element.tagName)) continue;
            const colour = element instanceof SVGElement ? style.fill : style.color;
            const [a, b] = [light(colour), light(behind(element))];
            const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (contrast < worst[0]) worst = [contrast, element.outerHTML.slice(0, 80)];
          }
          return worst;
        })()
        """
    )
    assert worst[0] >= 4.5, worst
    page.close()


def test_a_click_on_a_heading_sorts(page: Page) -> None:
    first = "table[data-sort]"
    headings = page.evaluate(
        f"[...document.querySelectorAll('{first} thead tr:last-child th')].map(one => one.innerText)"
    )
    column = next(place for place, text in enumerate(headings) if text.startswith("@3"))
    heading = f"{first} thead tr:last-child th:nth-child({column + 1})"
    values = f"{ROWS.format(first)}.map(row => Number(row.cells[{column}].dataset.v))"
    page.click(f"{heading} button")
    assert page.evaluate(f"document.querySelector('{heading}').getAttribute('aria-sort')") == "descending"
    down = page.evaluate(values)
    assert down == sorted(down, reverse=True)
    assert len(down) == 4
    page.click(f"{heading} button")
    assert page.evaluate(f"document.querySelector('{heading}').getAttribute('aria-sort')") == "ascending"
    assert page.evaluate(values) == sorted(down)


def test_the_keyboard_sorts_too_and_only_one_heading_is_sorted_by(page: Page) -> None:
    first = "table[data-sort]"
    page.click(f"{first} thead tr:last-child th:nth-child(2) button")
    page.evaluate(f"document.querySelector('{first} thead tr:last-child th button').focus()")
    page.press("Enter", 13)
    page.call("Input.dispatchKeyEvent", type="char", text="\r")
    order = page.evaluate(f"[...document.querySelectorAll('{first} thead tr:last-child th')].map(one => one.ariaSort)")
    assert order[0] == "ascending"
    assert set(order[1:]) == {"none"}
    names = page.evaluate(f"{ROWS.format(first)}.map(row => row.cells[0].innerText)")
    assert names == sorted(names)


def test_a_field_filters_rows(page: Page) -> None:
    table = "#labels table[data-filter]"
    everything = page.evaluate(f"{ROWS.format(table)}.length")
    page.evaluate(
        "(() => { const input = document.querySelector('#labels .filter input'); input.value = 'ALPHA group'; "
        "input.dispatchEvent(new Event('input')); })()"
    )
    shown = page.evaluate(f"{ROWS.format(table)}.filter(row => !row.hidden).map(row => row.innerText)")
    assert 0 < len(shown) < everything
    assert all("alpha" in text and "group" in text for text in shown)
    assert (
        page.evaluate("document.querySelector('#labels .filter output').innerText") == f"{len(shown)} of {everything}"
    )


def test_examples_are_filtered_by_what_is_in_them(page: Page) -> None:
    page.evaluate(
        "(() => { const input = document.querySelector('#examples .filter input'); input.value = 'sure'; "
        "input.dispatchEvent(new Event('input')); })()"
    )
    shown = page.evaluate(
        "[...document.querySelectorAll('.example')].filter(one => !one.hidden).map(one => one.innerText)"
    )
    assert shown
    assert all("sure and wrong" in text for text in shown)


def test_charts_are_drawn_and_tell_their_values(page: Page) -> None:
    charts = page.evaluate(
        "[...document.querySelectorAll('svg.chart')].map(one => [one.getBoundingClientRect().height, "
        "one.querySelectorAll('.mark').length, one.querySelectorAll('.mark[data-tip=\"\"]').length])"
    )
    assert len(charts) >= 10
    assert all(height > 60 and marks and not silent for height, marks, silent in charts)
    mark = "figure[data-name=\\'precision-at-k\\'] .mark"
    x, y = page.evaluate(
        f"(() => {{ const mark = document.querySelector('{mark}'); mark.scrollIntoView({{block: 'center'}}); "
        "const box = mark.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.move(x, y)
    said = page.evaluate("document.querySelector('.tip').innerText")
    assert re.fullmatch(r".+: [\d.]+ at 1", said), said
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate("document.querySelector('.tip').getBoundingClientRect().height") > 10


def test_arrow_keys_go_through_the_values_of_a_chart(page: Page) -> None:
    page.evaluate("document.querySelector('svg.chart').focus()")
    page.press("ArrowRight", 39)
    first = page.evaluate("document.querySelector('.tip').innerText")
    page.press("ArrowRight", 39)
    assert page.evaluate("document.querySelector('.tip').innerText") != first
    page.press("Escape", 27)
    assert page.evaluate("document.querySelector('.tip').hidden")


@pytest.mark.parametrize("what", ["SVG", "PNG"])
def test_a_chart_can_be_saved(page: Page, tmp_path: Path, what: str) -> None:
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click(f"figure[data-name=calibration] button[aria-label='Save as {what}']")
    for _ in range(100):
        done = [file for file in tmp_path.iterdir() if file.suffix == f".{what.lower()}" and file.stat().st_size]
        if done:
            break
        page.evaluate("new Promise(done => setTimeout(done, 50))")
    (file,) = done
    assert file.name == f"calibration.{what.lower()}"
    content = file.read_bytes()
    if what == "PNG":
        assert content.startswith(b"\x89PNG")
    else:
        assert content.startswith(b"<svg")
        assert b"var(--" not in content
        assert content.count(b"rgb(") > 10
    assert page.complaints() == []


@pytest.mark.parametrize("name", ["run", "comparison", "suite"])
def test_nothing_is_wider_than_paper(browser: Browser, files: dict[str, Path], name: str) -> None:
    """A browser would print everything smaller, until the widest table fits."""
    page = browser.open(files[name], width=PAPER, dark=True)
    page.call("Emulation.setEmulatedMedia", media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
    page.close()


def test_on_paper_everything_is_unfolded(page: Page) -> None:
    pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf()))
    assert pages > 2
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") > 0


def test_other_peoples_words_keep_their_direction_to_themselves(page: Page) -> None:
    shown = page.evaluate("document.body.innerText")
    assert "\u202e" not in shown
    assert "\\u202egnp.exe" in shown
    assert "שלום עולם" in shown
    assert page.evaluate("[...document.querySelectorAll('bdi')].some(one => one.innerText === 'שלום עולם')")
    assert "\u0007" not in shown
    assert "x" * 300 not in shown
