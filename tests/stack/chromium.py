"""A real headless Chromium, spoken to over pipes: no driver, no websocket."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shlex
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

# Without the background-networking flags it tries to reach hosts that no test has.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
DEADLINE_S = 60.0


def _pipe() -> tuple[int, int]:
    """Both ends, out of the way of the descriptors that the browser uses."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high[0], high[1]


class Chromium:
    """One browser with one tab; context manager.

    Attributes:
        complaints: What its console and its log said: errors, warnings, refused loads.
    """

    def __init__(self, profile: Path) -> None:
        self.complaints: list[str] = []
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        self._number = 0
        self._read, write_there = _pipe()
        read_there, self._write = _pipe()
        command = shlex.join(["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"])
        # The browser reads from descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command} 3<&{read_there} 4>&{write_there}"],
            pass_fds=(read_there, write_there),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_there)
        os.close(write_there)

    def __enter__(self) -> Chromium:
        try:
            self._attach()
        except BaseException:
            self.close()
            raise
        return self

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol, and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._take(answer)

    def show(self, url: str, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        """Load a page in a window of that size and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def wait_for(self, method: str) -> None:
        """Until such an event has come since the last `show`."""
        while not any(event["method"] == method for event in self._events):
            self._take(self._receive())

    def ask(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def screenshot(self) -> bytes:
        """The whole page as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def _take(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method", ""), event.get("params", {})
        self._events.append({"method": method})
        if method == "Log.entryAdded":
            entry = parameters["entry"]
            if entry["level"] in ("warning", "error"):
                self.complaints.append(f"{entry['level']}: {entry['text']}")
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(parameters)[:500])
        elif method == "Network.loadingFailed":
            self.complaints.append(f"not loaded: {parameters['errorText']}")

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser was silent for {DEADLINE_S} s"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer
