"""A page in a real headless Chromium, spoken to over its DevTools pipe: what it asked for, what it complained about."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
TIMEOUT = 60.0


class Chromium:
    """One browser with one tab. DevTools messages are JSON ended by a zero byte, read from fd 3 and written to fd 4."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        redirect = f'exec "$0" "$@" 3<&{theirs[0]} 4>&{ours[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, BINARY, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(theirs[0], ours[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs[0])
        os.close(ours[1])
        self._read, self._write = ours[0], theirs[1]
        self._ids, self._rest, self._session = itertools.count(1), b"", None
        self.events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        """Send a command, return its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        found = self._until(lambda m: m.get("id") == number)
        assert "error" not in found, (method, found.get("error"))
        return found["result"]

    def _until(self, wanted):
        deadline = time.monotonic() + TIMEOUT
        while True:
            while b"\0" in self._rest:
                line, self._rest = self._rest.split(b"\0", 1)
                message = json.loads(line)
                if "method" in message:
                    self.events.append(message)
                if wanted(message):
                    return message
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            assert piece, "Chromium ended" if ready else f"Chromium said nothing for {TIMEOUT} s"
            self._rest += piece

    def open(self, url: str) -> None:
        """Go to an address and wait until everything it names has loaded."""
        self.call("Page.navigate", url=url)
        if not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self._until(lambda m: m.get("method") == "Page.loadEventFired")

    def ask(self, script: str):
        """Value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def look(self, width: int, dark: bool) -> None:
        """Set the width in CSS pixels and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def requests(self) -> list[str]:
        """Addresses asked for."""
        sent = (e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent")
        return [url for url in sent if url != "about:blank"]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, uncaught exceptions, failed loads."""
        found = []
        for event in self.events:
            name, params = event["method"], event["params"]
            if name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif name == "Runtime.exceptionThrown" or name == "Network.loadingFailed":
                found.append(json.dumps(params))
            elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"]))
        return found

    def close(self) -> None:
        """End the browser and its children."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
