"""A headless Chromium, driven over a pipe in its own DevTools protocol; nothing but the standard library is needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0  # seconds for one answer, on a machine that is busy


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Chromium:
    """One browser with one tab. Messages end with a zero byte; it reads them from descriptor 3 and writes them to 4."""

    def __init__(self, program: str, profile: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._waiting = b""
        self._sent = 0
        their_in, self._out = _pipe()
        self._in, their_out = _pipe()
        silent = os.open(os.devnull, os.O_WRONLY)
        places = ((silent, 1), (silent, 2), (their_in, 3), (their_out, 4))
        actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in places]
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._pid = os.posix_spawn(program, arguments, dict(os.environ), file_actions=actions, setpgroup=0)
        for descriptor in (their_in, their_out, silent):
            os.close(descriptor)
        self._session: str | None = None
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise

    def _attach(self) -> None:
        targets = self.ask("Target.getTargets")["targetInfos"]
        tab = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._out)
        os.close(self._in)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:  # it ends when the pipe is closed
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return
            time.sleep(0.02)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events on the way are kept in ``events``."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while (answer := self._read()).get("id") != message["id"]:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Load a page, anew if it is the one that is shown. Nothing is asked of the tab between the two documents."""
        loader = self.ask("Page.navigate", url=url)["loaderId"]
        while not any(_has_loaded(event, loader) for event in self.events):
            self.events.append(self._read())
        self.settle()

    def evaluate(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def settle(self) -> None:
        """Let the page draw what it has to."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def screen(self, width: int, height: int, *, scheme: str = "light", scale: float = 1) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def mouse(self, kind: str, x: float, y: float, *, held: bool = False) -> None:
        button = "left" if held or kind != "mouseMoved" else "none"
        self.ask(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=int(held), clickCount=int(held)
        )

    def picture(self, path: Path) -> None:
        """Save the whole page as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            assert ready, "Chromium does not answer"
            more = os.read(self._in, 1 << 20)
            assert more, "Chromium ended by itself"
            self._waiting += more
        message, _, self._waiting = self._waiting.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded


def _has_loaded(event: dict[str, Any], loader: str) -> bool:
    told = event.get("params", {})
    return event.get("method") == "Page.lifecycleEvent" and (told["name"], told["loaderId"]) == ("load", loader)


def _pipe() -> tuple[int, int]:
    """A pipe for reading and writing, with descriptors that stay clear of those that the browser expects."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
