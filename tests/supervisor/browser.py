"""A real Chromium, controlled through chromedriver with the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key for an element's id
DRIVER_SECONDS = 60.0
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
)


def chromium() -> tuple[str, str] | None:
    """Return the installed Chromium and its driver, None without them."""
    found = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    return None if found[0] is None or found[1] is None else (found[0], found[1])


class Browser:
    """One window."""

    def __init__(self, port: int, options: dict[str, Any]) -> None:
        self._port = port
        self._session = ""
        capabilities = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        self._session = f"/session/{self._call('POST', '/session', capabilities=capabilities)['sessionId']}"

    def _call(self, method: str, path: str, **body: Any) -> Any:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=DRIVER_SECONDS)
        try:
            connection.request(method, self._session + path, json.dumps(body) if method == "POST" else None)
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{path}: {value['error']}: {value['message'].splitlines()[0]}")
        return value

    def open(self, url: str) -> None:
        self._call("POST", "/url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", "/execute/sync", script=script, args=list(arguments))

    def text(self, selector: str) -> str:
        script = "const it = document.querySelector(arguments[0]); return it?.innerText ?? it?.textContent ?? ''"
        return str(self.run(script, selector))

    def _element(self, selector: str) -> str:
        return str(self._call("POST", "/element", using="css selector", value=selector)[ELEMENT])

    def click(self, selector: str) -> None:
        self._call("POST", f"/element/{self._element(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        self._call("POST", f"/element/{self._element(selector)}/value", text=text)

    def press(self, *keys: str) -> None:
        """Press keys in the element with the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def accept(self) -> None:
        """Accept the dialog."""
        self._call("POST", "/alert/accept")

    def show(self, width: int, height: int, dark: bool = False) -> None:
        """Set the window size, and the light or dark color scheme."""
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._devtools("Emulation.setEmulatedMedia", features=scheme)

    def _devtools(self, command: str, **parameters: Any) -> None:
        self._call("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def complaints(self) -> list[str]:
        """Return the errors in the page's log, including resources that failed to load."""
        return [line["message"] for line in self._call("POST", "/se/log", type="browser") if line["level"] == "SEVERE"]

    def quit(self) -> None:
        self._call("DELETE", "")


def started(driver: str) -> tuple[subprocess.Popen[str], int]:
    """Start the driver; return it and the port on which it listens.

    The system chooses a port that is free for IPv4; the driver wants it for IPv6, too, and ends if another has it.
    """
    while True:
        process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if "started successfully on port" in line:
                return process, int(line.rstrip().rstrip(".").rpartition(" ")[2])
        process.communicate()
        assert any("port not available" in line for line in printed), "".join(printed)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with its own profile, and end it."""
    found = chromium()
    assert found is not None
    binary, driver = found
    process, port = started(driver)
    try:
        window = Browser(port, {"binary": binary, "args": [*FLAGS, f"--user-data-dir={profile}"]})
        try:
            yield window
        finally:
            window.quit()
    finally:
        process.terminate()
        process.communicate()
