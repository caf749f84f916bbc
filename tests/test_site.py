"""The site, built by Zensical, in a real browser: three pages on small, middle and large screens, light and dark."""

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.chromium import Chromium, find_chromium
from support.site import GENERATED

ROOT = Path(__file__).parent.parent
PROGRAM = find_chromium()
ZENSICAL = shutil.which("zensical", path=str(Path(sys.executable).parent)) or shutil.which("zensical")
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.skipif(ZENSICAL is None, reason="no Zensical here: pip install -e '.[docs]'"),
]
PAGES = ("index.html", "howto/which-rule.html", "strategies.html")
COMPLAINTS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")
# Every text that is shown, with less contrast to what is behind it than WCAG asks for: 4.5, of large text 3.
FAINT = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (element) => { const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]); };
  const light = (c) => { const [r, g, b] = c.map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const faint = [];
  const walker = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || element.closest("math, .headerlink, script, style, nav") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), ground = behind(element);
    const colours = [over(rgba(style.color), ground), ground].map(light).sort((a, b) => b - a);
    const ratio = (colours[0] + 0.05) / (colours[1] + 0.05), size = parseFloat(style.fontSize);
    if (ratio < (size >= 24 || (size >= 18.5 && style.fontWeight >= 700) ? 3 : 4.5))
      faint.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)} (${style.color})`);
  }
  return [...new Set(faint)].slice(0, 10);
})()"""
UNNAMED = """[...document.querySelectorAll("a[href], button, input:not([type=hidden])")]
  .filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.textContent.trim() || e.title
    || e.placeholder || e.labels?.length || e.querySelector("img[alt]:not([alt=''])")))
  .map((e) => e.outerHTML.slice(0, 120))"""


WAIT = "new Promise((done) => {{ const look = () => {} ? done(true) : requestAnimationFrame(look); look(); }})"
SCHEMES = {"light": "default", "dark": "slate"}  # as the theme calls them


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built once."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", place / "docs")
    shutil.copy(ROOT / "mkdocs.yml", place)
    for page, make in GENERATED.items():
        target = place / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(make(), encoding="utf-8")
    assert ZENSICAL is not None
    built = subprocess.run([ZENSICAL, "build", "--strict"], cwd=place, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    handler = functools.partial(_Silent, directory=str(place / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: Any) -> None:
        pass


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_read(browser: Chromium, site: str, page: str, width: int, scheme: str) -> None:
    browser.events.clear()
    browser.screen(width, 900, scheme=scheme)
    browser.ask("Storage.clearDataForOrigin", origin=site, storageTypes="local_storage")  # a first visit
    browser.open(f"{site}/{page}")
    assert [event for event in browser.events if event["method"] in COMPLAINTS] == []
    asked = [
        each["params"]["request"]["url"] for each in browser.events if each["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shown = f"document.body.getAttribute('data-md-color-scheme') == '{SCHEMES[scheme]}'"
    assert browser.evaluate(WAIT.format(shown))  # the theme's script may come to it only after the page has loaded
    assert browser.evaluate(FAINT) == []
    assert browser.evaluate(UNNAMED) == []
    assert (
        browser.evaluate("[...document.images].filter((e) => !e.alt.trim() || !e.naturalWidth).map((e) => e.src)") == []
    )
    assert browser.evaluate("document.documentElement.lang") == "en"
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1


def test_equations_are_drawn(browser: Chromium, site: str) -> None:
    browser.screen(1400, 900)
    browser.open(f"{site}/strategies.html")
    found, left = browser.evaluate(
        "[document.querySelectorAll('.arithmatex math').length,"
        " [...document.querySelectorAll('.arithmatex')].filter((e) => !e.querySelector('math')).length]"
    )
    assert found > 20
    assert left == 0


def test_the_first_key_reaches_the_content(browser: Chromium, site: str) -> None:
    """A reader without a mouse need not go through the navigation."""
    browser.screen(1400, 900)
    browser.open(f"{site}/index.html")
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    browser.settle()
    assert browser.evaluate("document.activeElement.textContent.trim()") == "Skip to content"


def test_search_finds_a_rule(browser: Chromium, site: str) -> None:
    """By its name, on the page of the API and on that of the strategies."""
    browser.screen(1400, 900)
    browser.open(f"{site}/index.html")
    browser.evaluate("document.querySelector('.md-search__button').click()")
    dialog = "document.activeElement.shadowRoot"
    assert browser.evaluate(WAIT.format(f"{dialog}?.activeElement?.tagName === 'INPUT'"))
    browser.ask("Input.insertText", text="LiveCompensation")
    assert browser.evaluate(WAIT.format(f"/[0-9]+ results/.test({dialog}?.textContent ?? '')"))
    found = browser.evaluate(f"[...{dialog}.querySelectorAll('a')].map((link) => link.getAttribute('href')).join(' ')")
    assert f"{site}/reference/api/strategies.html?h=LiveCompensation#livecompensation" in found
    assert f"{site}/strategies.html?h=LiveCompensation#livecompensation" in found
