"""The pictures of README.md, from a real application: ``python -m publish.pictures``. Needs Chromium and a broker.

A topology counts flights by carrier on two stream threads while flights arrive. docs/pictures/dashboard.png is its
dashboard as Chromium shows it, docs/pictures/store.png the page of its store, docs/pictures/top.svg what ``penstock
top`` prints.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.terminal_theme import MONOKAI

from penstock import KafkaStreams, Serdes, StreamsBuilder, StreamsConfig, TimeWindows, Topology
from penstock.cli.running_application import find
from penstock.cli.status_view import TextConsole, status_view
from penstock.supervisor.control.status_json import ApplicationJson

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
CARRIERS = ("AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")
AIRPORTS = ("EWR", "JFK", "LGA")
TOPICS = SOURCE, BY_CARRIER, DELAYED = "flights", "flights-by-carrier", "delayed-flights"
#: How long a page may take to show what was requested, in seconds.
SHOW_SECONDS = 5
#: How long the application runs before the pictures, in seconds: the dashboard shows the last five minutes.
RUN_SECONDS = 280
#: Of the dashboard's picture, in pixels.
SIZE = "1100,1390"


def build() -> Topology:
    """Return the topology."""
    builder = StreamsBuilder()
    flights = builder.stream(SOURCE, key_serde=Serdes.string(), value_serde=Serdes.json(), name="flights")
    arrived = flights.filter(lambda airport, flight: flight["delay"] is not None, name="arrived")
    arrived.filter(lambda airport, flight: flight["delay"] > 60, name="late").to(
        DELAYED, key_serde=Serdes.string(), value_serde=Serdes.json(), name="delayed"
    )
    by_carrier = arrived.select_key(lambda airport, flight: flight["carrier"], name="carrier").group_by_key(
        key_serde=Serdes.string(), value_serde=Serdes.json(), name="by-carrier"
    )
    counts = by_carrier.windowed_by(TimeWindows(60_000, grace=600_000)).count(name="count", store="flights-by-carrier")
    counts.to_stream(name="changes").to(BY_CARRIER, value_serde=Serdes.long(), name="counts")
    return builder.build()


def create_topics(servers: str) -> None:
    """Create the topics that are missing, and wait until the brokers know them."""
    admin = AdminClient({"bootstrap.servers": servers})
    missing = set(TOPICS) - admin.list_topics(timeout=60).topics.keys()
    if missing:
        for future in admin.create_topics([NewTopic(name, 2, 1) for name in missing], operation_timeout=60).values():
            future.result()


def produce(servers: str, ended: threading.Event) -> None:
    """Write several hundred flights per second until the event is set."""
    producer, chance = Producer({"bootstrap.servers": servers}), random.Random(2013)
    while not ended.wait(0.1):
        for _ in range(chance.randint(60, 90)):
            delay = chance.choice(["null", *map(str, range(-10, 90, 5))])
            producer.produce(
                SOURCE, f'{{"carrier": "{chance.choice(CARRIERS)}", "delay": {delay}}}', chance.choice(AIRPORTS)
            )
        producer.poll(0)
    producer.flush(10)


class Browser:
    """A Chromium without a window, by the WebDriver protocol of its chromedriver."""

    def __init__(self, driver: subprocess.Popen[str]) -> None:
        assert driver.stdout is not None
        started = next(line for line in driver.stdout if "started successfully on port" in line)
        self._url = f"http://127.0.0.1:{started.rstrip().rstrip('.').rpartition(' ')[2]}/session"
        options = {"args": ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE}"]}
        made = self._call("POST", "", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self._url += f"/{made['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self._url + path, data, method=method), timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        """Show a page."""
        self._call("POST", "/url", {"url": url})

    def click(self, element_id: str) -> None:
        """Click an element."""
        script = "document.getElementById(arguments[0]).click()"
        self._call("POST", "/execute/sync", {"script": script, "args": [element_id]})

    def screenshot(self, to: Path) -> None:
        """Write what is shown as PNG."""
        to.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def quit(self) -> None:
        """End it."""
        self._call("DELETE", "")


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium, and end it."""
    path = shutil.which("chromedriver")
    if path is None:
        sys.exit("Chromium is needed: apt install chromium chromium-driver")
    with subprocess.Popen([path, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            found = Browser(driver)
            yield found
            found.quit()
        finally:
            driver.terminate()


def terminal(status: ApplicationJson, to: Path) -> None:
    """Write what ``penstock top`` shows on a terminal of 80 columns as SVG."""
    with open(os.devnull, "w") as nowhere:
        console = TextConsole(record=True, width=80, file=nowhere, force_terminal=True)
        console.print(status_view(status, with_tasks=True, live=True), "")  # the last line would be cut
        svg = console.export_svg(title="penstock top --tasks", theme=MONOKAI)
    to.write_text(re.sub(r"@font-face {.*?}\s*", "", svg, flags=re.DOTALL))  # which are loaded from elsewhere


def main() -> None:
    """Run the application for some minutes, and make the pictures."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--bootstrap-servers", default=os.environ.get("KAFKA_BOOTSTRAP_SERVERS"), required=False)
    servers = arguments.parse_args().bootstrap_servers
    if servers is None:
        sys.exit("Say --bootstrap-servers, or start a broker: penstock broker start")
    create_topics(servers)
    PICTURES.mkdir(exist_ok=True)
    ended = threading.Event()
    threading.Thread(target=produce, args=(servers, ended), name="producer").start()
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        config = {
            "application.id": "flights",
            "bootstrap.servers": servers,
            "state.dir": directory,
            "num.stream.threads": 2,
            "commit.interval.ms": 1000,
            "penstock.http.port": 0,
            "penstock.metrics.sampling.percent": 10,
        }
        try:
            with KafkaStreams("publish.pictures:build", config) as streams:
                streams.start()
                with browser() as window:
                    window.open(f"http://127.0.0.1:{streams.http_port}/")
                    time.sleep(RUN_SECONDS)
                    window.screenshot(PICTURES / "dashboard.png")
                    window.open(f"http://127.0.0.1:{streams.http_port}/store?name=flights-by-carrier")
                    time.sleep(SHOW_SECONDS)
                    window.click("watch")
                    time.sleep(SHOW_SECONDS)
                    window.screenshot(PICTURES / "store.png")
                with find(StreamsConfig(config)) as running:
                    terminal(running.ask("status"), PICTURES / "top.svg")
        finally:
            ended.set()


if __name__ == "__main__":
    main()
