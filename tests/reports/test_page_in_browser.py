"""The report page in a real browser: it loads, draws, toggles, zooms and prints, in silence and without the network."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import paceline as pl
from paceline import look
from paceline.reports.page import describe, page
from paceline.storage.reading import read_run
from support.chromium import Chromium, find_chromium
from support.saved_runs import save_run, with_perplexity_alone

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
]
EVIL = "lgc <img src=x onerror=alert(1)>"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(17, 21, 28)"
COMPLAINTS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page")
    runs = {"ssgd": pl.Synchronous(), EVIL: pl.LiveCompensation(quorum=3, blocks=4), "k": pl.FastestK(quorum=3)}
    described = []
    for number, (name, strategy) in enumerate(runs.items()):
        save_run(path / str(number), strategy)
        described.append(describe(name, read_run(path / str(number))))
    (path / "page.html").write_text(page(described), encoding="utf-8")
    return (path / "page.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def tab(browser: Chromium, url: str) -> Iterator[Chromium]:
    """The page, freshly loaded on a light desktop. Whatever a test does with it, nothing may be complained of."""
    browser.events.clear()
    browser.screen(1280, 900)
    browser.open(url)
    yield browser
    browser.settle()
    assert [event for event in browser.events if event["method"] in COMPLAINTS] == []
    assert {event["params"]["request"]["url"] for event in requests(browser)} == {url}


def requests(tab: Chromium) -> list[dict[str, Any]]:
    return [event for event in tab.events if event["method"] == "Network.requestWillBeSent"]


def background(tab: Chromium) -> str:
    return str(tab.evaluate("getComputedStyle(document.body).backgroundColor"))


def middle(tab: Chromium, selector: str) -> tuple[float, float]:
    """Scroll an element into view; where its middle then is."""
    x, y = tab.evaluate(
        f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
        " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    return x, y


def click(tab: Chromium, selector: str) -> None:
    x, y = middle(tab, selector)
    tab.mouse("mouseMoved", x, y)
    tab.mouse("mousePressed", x, y, held=True)
    tab.mouse("mouseReleased", x, y)
    tab.settle()


def painted(tab: Chromium, host: str, colour: str) -> int:
    """How many pixels of a chart have a colour of the page, about."""
    return int(
        tab.evaluate(
            f"(() => {{ const c = document.querySelector('#{host} canvas'), wanted = css({colour!r});"
            " const [r, g, b] = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));"
            " const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', {willReadFrequently: true});"
            " copy.drawImage(c, 0, 0); const d = copy.getImageData(0, 0, c.width, c.height).data; let n = 0;"
            " for (let i = 0; i < d.length; i += 4) n += d[i + 3] > 200 && Math.abs(d[i] - r) < 12"
            " && Math.abs(d[i + 1] - g) < 12 && Math.abs(d[i + 2] - b) < 12; return n; })()"
        )
    )


def test_the_page_draws_every_chart(tab: Chromium) -> None:
    assert tab.evaluate("charts.length") == 4 + 3 + 3
    assert tab.evaluate("document.querySelectorAll('canvas').length") == 10
    assert tab.evaluate("document.querySelectorAll('.nothing').length") == 0
    assert painted(tab, "loss-seconds", "run0") > 100
    for kind in ("compute", "wait", "transfer"):
        assert painted(tab, "timeline-panels", kind) > 100
    assert "reached" in tab.evaluate("document.getElementById('verdict').textContent")


def test_a_page_without_loss_and_accuracy_has_no_empty_chart(browser: Chromium, tmp_path: Path) -> None:
    save_run(tmp_path / "run", pl.Synchronous())
    with_perplexity_alone(tmp_path / "run")
    (tmp_path / "page.html").write_text(page([describe("run", read_run(tmp_path / "run"))]), encoding="utf-8")
    browser.events.clear()
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.evaluate("charts.length") == 2 + 1 + 1
    assert painted(browser, "metric0-seconds", "run0") > 100
    assert browser.evaluate("document.querySelectorAll('.nothing').length") == 0
    assert browser.evaluate("document.getElementById('target').checkVisibility()") is False
    assert [event for event in browser.events if event["method"] in COMPLAINTS] == []


def test_names_from_files_stay_text(tab: Chromium) -> None:
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert tab.evaluate("document.querySelectorAll('#legend button')[1].textContent") == EVIL


SMUGGLED = (
    "<script>document.title = 'run'</script>"
    "<img src=x onerror=\"document.title = 'run'\"><p onclick=\"document.title = 'run'\" id=smuggled>x</p>"
)


@pytest.mark.parametrize("allowed", [False, True], ids=["policy of the page", "policy that allows all"])
def test_a_script_that_got_into_the_page_is_not_run(browser: Chromium, url: str, tmp_path: Path, allowed: bool) -> None:
    """Even if something from a file stood in the page as it is. That it would run elsewhere shows that it is one."""
    text = Path(unquote(urlsplit(url).path)).read_text(encoding="utf-8").replace("<main>", f"<main>{SMUGGLED}", 1)
    if allowed:
        text = re.sub("script-src [^;]*;", "script-src 'unsafe-inline';", text, count=1)
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri())
    browser.evaluate("document.getElementById('smuggled').click()")
    browser.settle()
    assert (browser.evaluate("document.title") == "run") == allowed
    assert browser.evaluate("charts.length") == 4 + 3 + 3  # the page's own scripts run either way
    if not allowed:
        assert "Content Security Policy" in str([event for event in browser.events if event["method"] in COMPLAINTS])


def test_the_legend_toggles_a_curve_everywhere(tab: Chromium) -> None:
    chosen, panel = "#legend button:nth-child(2)", "document.querySelector('figure.panel[data-run=\"1\"]').hidden"
    before = painted(tab, "loss-seconds", "run1")
    assert before > 50
    click(tab, chosen)
    assert tab.evaluate(f"document.querySelector({chosen!r}).getAttribute('aria-pressed')") == "false"
    assert painted(tab, "loss-seconds", "run1") < before / 10
    assert painted(tab, "accuracy-updates", "run1") < before / 10
    assert tab.evaluate(panel) is True
    click(tab, chosen)
    assert painted(tab, "loss-seconds", "run1") == before
    assert tab.evaluate(panel) is False


def test_kinds_of_spans_can_be_hidden(tab: Chromium) -> None:
    click(tab, "#kinds button:nth-child(1)")
    assert painted(tab, "timeline-panels", "compute") == 0


def test_the_page_is_light_or_dark_as_the_reader_wishes(tab: Chromium) -> None:
    assert background(tab) == LIGHT
    tab.screen(1280, 900, scheme="dark")
    assert background(tab) == DARK
    assert painted(tab, "loss-seconds", "run0") > 100
    click(tab, "#theme")
    assert background(tab) == LIGHT
    click(tab, "#theme")
    assert background(tab) == DARK


def test_a_timeline_is_zoomed_by_dragging_and_by_buttons(tab: Chromium) -> None:
    before = tab.evaluate("state.view")
    x, y = middle(tab, "#timeline-panels .u-over")
    tab.mouse("mouseMoved", x - 100, y)
    tab.mouse("mousePressed", x - 100, y, held=True)
    tab.mouse("mouseMoved", x + 100, y, held=True)
    tab.mouse("mouseReleased", x + 100, y)
    tab.settle()
    zoomed = tab.evaluate("state.view")
    assert before[0] < zoomed[0] < zoomed[1] < before[1]
    click(tab, "[data-zoom=all]")
    assert tab.evaluate("state.view") == tab.evaluate("wholeView()")
    scales = tab.evaluate("charts.filter((c) => c.timeline).map((c) => [c.scales.x.min, c.scales.x.max])")
    assert scales == [tab.evaluate("state.view")] * 3


def test_charts_over_the_same_abscissa_are_zoomed_together(tab: Chromium) -> None:
    tab.evaluate("charts[0].setScale('x', {min: 5, max: 10})")
    tab.settle()
    scales = tab.evaluate("charts.slice(0, 4).map((c) => [c.across, c.scales.x.min === 5 && c.scales.x.max === 10])")
    assert scales == [["seconds", True], ["updates", False], ["seconds", True], ["updates", False]]


@pytest.mark.parametrize(
    ("chart", "expected"), [("#loss-seconds", "ssgd"), ("#timeline-panels", "worker"), ("#histograms", "contributions")]
)
def test_the_cursor_is_told_what_it_is_over(tab: Chromium, chart: str, expected: str) -> None:
    x, y = middle(tab, f"{chart} .u-over")
    tab.mouse("mouseMoved", x - 5, y)
    tab.mouse("mouseMoved", x, y)
    tab.settle()
    assert expected in tab.evaluate(f"document.querySelector({f'{chart} .tip:not([hidden])'!r}).textContent")


def test_another_target_gives_other_times(tab: Chromium) -> None:
    target = "document.getElementById('target')"
    change = f"{target}.value = '{{}}'; {target}.dispatchEvent(new Event('input'))"
    reached = "[...document.querySelectorAll('.reached')].map((e) => e.textContent)"
    tab.evaluate(change.format(1))
    assert tab.evaluate(reached) == ["0.0 s"] * 3
    tab.evaluate(change.format(100))
    assert tab.evaluate(reached) == ["not reached"] * 3
    tab.evaluate(change.format(""))
    assert tab.evaluate(reached) == ["–"] * 3


SCREENS = [(360, 740), (800, 900), (1400, 900)]
# For every text: its colour, that of the nearest ground that is not transparent, and the text.
TEXTS = """(() => {
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const holder = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !holder.checkVisibility() || holder.closest("script, style")) continue;
    let ground = holder;
    while (ground && getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
    const behind = getComputedStyle(ground || document.body).backgroundColor;
    found.push([getComputedStyle(holder).color, behind, texts.currentNode.data]);
  }
  return found;
})()"""
NAMELESS = """[...document.querySelectorAll("button, input, .chart, [role=region], [role=group]")].filter(
  (each) =>
    each.checkVisibility() && !each.getAttribute("aria-label") && !each.textContent.trim() && !each.closest("label")
).length"""


def contrast(one: str, other: str) -> float:
    """WCAG 2.2: of two colours as a style has them, rgb(r, g, b)."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_the_first_screen_says_who_won_by_how_much_and_who_was_waited_for(
    tab: Chromium, url: str, width: int, height: int, scheme: str
) -> None:
    tab.screen(width, height, scheme=scheme)
    tab.open(url)
    assert tab.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert tab.evaluate("document.getElementById('answer').getBoundingClientRect().bottom") <= height
    said = tab.evaluate("document.getElementById('answer').innerText")
    assert re.search(r"reached \d+ % after [\d.]+ s; .* took [\d.]+ times as long", said)
    assert re.search(r"ssgd: workers waited \d+% of their time, most for worker [34]: it came last in \d+% of", said)
    texts = tab.evaluate(TEXTS)
    assert len(texts) > 100
    assert [each for each in texts if contrast(each[0], each[1]) < 4.5] == []


def test_every_axis_has_three_marks_and_every_chart_words(tab: Chromium, url: str) -> None:
    for width, height in SCREENS:
        tab.screen(width, height)
        tab.open(url)
        marks = "charts.map((c) => c.axes.slice(0, c.timeline ? 1 : 2).map((a) => a._values.filter((v) => v).length))"
        assert min(min(each) for each in tab.evaluate(marks)) >= 3
    assert "ssgd ends at" in tab.evaluate("document.getElementById('loss-seconds').getAttribute('aria-label')")
    assert tab.evaluate(NAMELESS) == 0
    assert tab.evaluate("document.documentElement.lang") == "en"
    assert tab.evaluate("document.querySelectorAll('h1').length") == 1


def test_runs_have_the_colours_and_dashes_of_their_rules(tab: Chromium) -> None:
    styles = look.lines([pl.Synchronous(), pl.LiveCompensation(quorum=3, blocks=4), pl.FastestK(quorum=3)])
    assert [tab.evaluate(f"css('run{number}')") for number in range(3)] == [each["color"] for each in styles]
    assert tab.evaluate("new Set(report.runs.map((run) => String(run.dashes))).size") == 3


def test_the_keyboard_reaches_everything(tab: Chromium) -> None:
    """What can be clicked can be reached and pressed: buttons, the target, tables that scroll, details."""
    for key in ("Tab", "Enter"):
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        tab.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        tab.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
    tab.settle()
    assert tab.evaluate("document.activeElement.id") == "theme"
    assert background(tab) == DARK
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    reachable = "[...document.querySelectorAll('button, input, summary, .scroll')].filter((e) => e.tabIndex < 0).length"
    assert tab.evaluate(reachable) == 0


def test_print_is_light_with_every_table_open(tab: Chromium) -> None:
    tab.screen(1280, 900, scheme="dark")
    tab.evaluate("document.querySelector('#stragglers details').open = false")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.settle()
    assert tab.evaluate("document.querySelectorAll('#stragglers details:not([open])').length") == 0
    assert background(tab) == LIGHT
    assert tab.evaluate("Math.max(...charts.map((chart) => chart.width))") == 690
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.settle()
    assert background(tab) == DARK
    assert tab.ask("Page.printToPDF", printBackground=True)["data"]
