"""The page of a store in a real Chromium: searched, sorted and watched, and what it says without rows."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from browser import Browser, browser, chromium
from held_commits import COMMIT, TEXT, rows
from held_rows import DELETE, HeldRows
from http_client import HttpClient

from penstock import KafkaStreams, Serdes, StreamsBuilder
from tests.free_port import free_port
from tests.waiting import eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no Chromium with its chromedriver: the page is not looked at"),
]
TOKEN = "let me in"
ENTER = "\ue007"
PHONE = (390, 844)
#: More than a float can hold.
LARGE = 2**53 + 1
#: Keys whose path a browser, or the server, could take for another one.
ODD = (".", "..", "100%", "changes", "x?y#z")
SIZES = {"a": LARGE, "bb": 2}
HTML = "<img src=x onerror=alert(1)>"


class Shown(HeldRows):
    """Also has a table of JSON, and one whose topic is empty."""

    def declare(self, builder: StreamsBuilder) -> Any:
        stream = super().declare(builder)
        typed = stream.map_values(lambda key, _: {"name": key, "n": SIZES.get(key, 0), "x": "y" * 500}, with_key=True)
        typed.to_table(store="objects", key_serde=TEXT, value_serde=Serdes.json())
        stream.filter(lambda *_: False).to_table(store="empty", key_serde=TEXT, value_serde=TEXT)
        return stream


@pytest.fixture
def held(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Shown:
    shown = Shown(bootstrap_servers, application_id, make_topic("in"), make_topic("names"), tmp_path / "state")
    shown.config["penstock.http.token"] = TOKEN
    return shown


@contextmanager
def opened(streams: KafkaStreams, tmp_path: Path) -> Iterator[Browser]:
    """The dashboard, with the token."""
    with browser(tmp_path / "profile") as page:
        page.open(f"http://127.0.0.1:{streams.http_port}/")
        eventually(lambda: "who have its token" in page.text("#message"), "it asks for the token")
        page.type("#token", TOKEN + ENTER)
        eventually(lambda: "cached" in page.text("#stores"), "the stores are listed")
        yield page
        allowed = (*(f"status of {code}" for code in (400, 401, 404, 503)), "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE")
        assert [line for line in page.complaints() if not any(reason in line for reason in allowed)] == []


def table(page: Browser) -> list[list[str]]:
    """Return the text of all cells."""
    script = (
        "return [...document.querySelectorAll('#rows tbody tr')].map((row) => [...row.cells].map((c) => c.innerText))"
    )
    found: list[list[str]] = page.run(script)
    return found


def heads(page: Browser) -> list[str]:
    found: list[str] = page.run("return [...document.querySelectorAll('#rows th button')].map((b) => b.textContent)")
    return found


def values(page: Browser) -> dict[str, str]:
    return {row[0]: row[1] for row in table(page)}


def show(page: Browser, streams: KafkaStreams, query: str) -> None:
    page.open(f"http://127.0.0.1:{streams.http_port}/store?{query}")


def search(page: Browser, text: str, how: str = "key") -> None:
    page.run("document.getElementById('how').value = arguments[0]; document.getElementById('text').value = ''", how)
    page.type("#text", text + ENTER)


def test_a_store_is_searched_sorted_and_watched(held: Shown, tmp_path: Path) -> None:
    with held.running() as streams:
        held.produce(("a", "x"), ("b", "x"), ("b", "x"), *((key, "x") for key in (f"b/{HTML}", *ODD)))
        eventually(lambda: len((rows(streams, "cached") or ({}, None))[0]) == 3 + len(ODD), "the records are counted")
        with opened(streams, tmp_path) as page:
            page.click("#stores a[href='/store?name=cached']")
            whole = {**dict.fromkeys(ODD, "1"), "a": "1", "b": "2", f"b/{HTML}": "1"}
            eventually(lambda: values(page) == whole, "the rows are shown")
            assert heads(page) == ["Key", "Value", "Time, UTC"]
            assert ["a", "1", "1970-01-01 00:00:05"] in table(page)
            is_searched(page, whole)
            is_sorted(page)
            is_watched(page, held)
            fits_a_phone(page)


def is_searched(page: Browser, whole: dict[str, str]) -> None:
    search(page, f"b/{HTML}")
    eventually(lambda: list(values(page)) == [f"b/{HTML}"], "one key is found")
    search(page, "b", "prefix")
    eventually(lambda: list(values(page)) == ["b", f"b/{HTML}"], "keys with a prefix are found")
    assert page.run("return location.search") == "?name=cached&prefix=b"
    page.run("location.reload()")
    eventually(lambda: list(values(page)) == ["b", f"b/{HTML}"], "the address has the search")
    search(page, "b/", "from")
    eventually(lambda: list(values(page)) == [f"b/{HTML}", "changes", "x?y#z"], "keys from one on are found")
    for odd in ODD:
        search(page, odd)
        eventually(lambda: list(values(page)) == [odd], f"{odd} is found")  # noqa: B023
    search(page, "nothing")
    eventually(lambda: page.text("#none") == "No row matches.", "it says so")
    assert page.text("#message") == ""
    page.run("document.getElementById('text').value = ''")
    page.type("#text", ENTER)
    eventually(lambda: values(page) == whole, "all rows are shown again")
    assert page.run("return document.getElementById('none').hidden") is True


def is_sorted(page: Browser) -> None:
    value = "#rows th:nth-child(2) button"
    page.click(value)
    ones = ["1"] * (len(ODD) + 2)
    assert [row[1] for row in table(page)] == [*ones, "2"]
    page.click(value)
    assert [row[1] for row in table(page)] == ["2", *ones]
    assert page.run("return document.querySelectorAll('#rows th')[1].ariaSort") == "descending"
    page.click(value)
    assert [row[0] for row in table(page)] == sorted(["a", "b", f"b/{HTML}", *ODD]), "the order of the store"


def is_watched(page: Browser, held: Shown) -> None:
    """Commits are seen at once, and nothing before its commit."""
    page.click("#watch")
    held.produce(("commit", COMMIT))
    eventually(lambda: values(page).get("commit") == "1", "committed rows are shown")
    assert page.text("#watching") == "live"
    held.produce(("a", "x"), ("c", COMMIT))
    eventually(lambda: (values(page).get("a"), values(page).get("c")) == ("2", "1"), "a changed and a new row")
    eventually(lambda: page.run("return document.querySelectorAll('#rows tr.changed').length") == 0, "they calm down")
    page.run("document.getElementById('store').value = 'headers'")
    page.run("document.getElementById('store').dispatchEvent(new Event('change'))")
    eventually(lambda: "Headers" in heads(page) and values(page).get("c") == "1", "another store is watched")
    assert [row[3] for row in table(page) if row[0] == "a"] == ["n: 2"]
    held.produce(("a", DELETE), ("b", COMMIT))
    eventually(lambda: (values(page).get("a"), values(page).get("b")) == (None, "3"), "the row is deleted")
    page.click("#watch")
    eventually(lambda: page.text("#watch") == "Watch", "it is not watched any more")


def fits_a_phone(page: Browser) -> None:
    page.show(*PHONE, dark=True)
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    colors = page.run("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
    text, ground = (sum(map(int, color[4:-1].split(", "))) for color in colors)
    assert text > 500 > 120 > ground  # light upon dark


def test_windows_versions_objects_and_stores_without_rows(held: Shown, tmp_path: Path) -> None:
    with held.running() as streams:
        held.produce(("a", "x"), ("bb", "x"), ("a", COMMIT))
        held.produce(("a", COMMIT), timestamp=60_000)
        eventually(lambda: rows(streams, "cached") == ({"a": 3, "bb": 1}, held.at(3)), "the records are counted")
        with opened(streams, tmp_path) as page:
            windows_are_shown(page, streams)
            versions_are_shown(page, streams, held)
            objects_are_shown(page, streams)
            show(page, streams, "name=empty")
            eventually(lambda: page.text("#none") == "The store has no rows.", "it says so")
            show(page, streams, "name=other")
            eventually(lambda: "There is no store other" in page.text("#message"), "it says so")
            show(page, streams, "name=names")
            page.click("#watch")
            eventually(lambda: "names is a global store" in page.text("#message"), "it cannot be watched")
            assert page.text("#none") == "The store has no rows."


def test_a_store_is_watched_across_a_restart_of_the_application(held: Shown, tmp_path: Path) -> None:
    """It continues where it was: a change of the meantime is shown, too, and no row is read again."""
    held.config["penstock.http.port"] = free_port()
    with held.running() as streams:
        held.produce(("a", "x"), ("b", COMMIT))
        eventually(lambda: rows(streams, "cached") == ({"a": 1, "b": 1}, held.at(1)), "the records are counted")
        with opened(streams, tmp_path) as page:
            show(page, streams, "name=cached")
            page.click("#watch")
            eventually(lambda: page.text("#watching") == "live" and values(page) == {"a": "1", "b": "1"}, "it is live")
            page.run("window.loads = 0; const before = load; load = (committed) => (loads++, before(committed))")
            assert streams.close()
            eventually(lambda: page.text("#watching") == "connecting again", "it says that it is not live")
            with held.running():
                held.produce(("a", "x"), ("c", COMMIT))
                eventually(lambda: values(page) == {"a": "2", "b": "1", "c": "1"}, "the changes are shown")
                assert page.text("#watching") == "live"
                assert page.run("return loads") == 0


def windows_are_shown(page: Browser, streams: KafkaStreams) -> None:
    show(page, streams, "name=windows&key=a")
    starts = ["1970-01-01 00:00:05", "1970-01-01 00:01:00"]
    eventually(lambda: [row[1] for row in table(page)] == starts, "all windows of a key")
    assert heads(page)[:4] == ["Key", "Window start, UTC", "Window end, UTC", "Value"]
    assert [row[2:4] for row in table(page)] == [["1970-01-01 00:00:06", "2"], ["1970-01-01 00:01:01", "1"]]
    assert page.run("return document.querySelector('#how option[value=prefix]').disabled")
    show(page, streams, "name=windows&since=1970-01-01T00:00:30")
    eventually(lambda: [row[1] for row in table(page)] == starts[1:], "windows from a time on")


def versions_are_shown(page: Browser, streams: KafkaStreams, held: Shown) -> None:
    show(page, streams, "name=versioned")
    eventually(lambda: "enter a key" in page.text("#none"), "it needs a key")
    search(page, "a")
    eventually(lambda: [row[1] for row in table(page)] == ["3", "2", "1"], "the versions, the newest first")
    assert [row[3] for row in table(page)] == ["now", "1970-01-01 00:01:00.003", "1970-01-01 00:00:05.002"]
    page.click("#watch")
    eventually(lambda: page.text("#watching") == "live", "it is watched")
    held.produce(("a", COMMIT), timestamp=60_000)
    eventually(lambda: [row[1] for row in table(page)] == ["4", "3", "2", "1"], "the new version is shown")


def objects_are_shown(page: Browser, streams: KafkaStreams) -> None:
    show(page, streams, "name=objects")
    eventually(lambda: heads(page) == ["Key", "name", "n", "x", "Time, UTC"], "fields are columns")
    assert [row[:3] for row in table(page)] == [["a", "a", str(LARGE)], ["bb", "bb", "2"]]
    page.click("#rows th:nth-child(3) button")
    assert [row[2] for row in table(page)] == ["2", str(LARGE)], "numbers are sorted by size"
    assert "y" * 120 + "…" in table(page)[0][3]
    assert "y" * 121 not in table(page)[0][3]
    page.click("#rows summary")
    assert "y" * 500 in table(page)[0][3], "a large value is unfolded"
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")


def test_a_store_that_does_not_answer_is_reported(held: Shown, tmp_path: Path) -> None:
    with held.running() as streams:
        at = held.produce(("a", "x"))
        eventually(lambda: rows(streams, "cached") == ({"a": 1}, at), "the record is counted")
        with opened(streams, tmp_path) as page:
            show(page, streams, "name=cached")
            eventually(lambda: values(page) == {"a": "1"}, "the row is shown")
            busy = psutil.Process(streams.status()[0].pid)
            busy.send_signal(signal.SIGSTOP)
            try:
                page.click("#search button[type=submit]")
                assert page.text("#summary") == "Reading …"
                eventually(lambda: "did not answer within 5 s" in page.text("#message"), "it says why")
                assert table(page) == []
            finally:
                busy.send_signal(signal.SIGCONT)
            page.click("#search button[type=submit]")
            eventually(lambda: values(page) == {"a": "1"}, "the row is shown again")
            assert page.text("#message") == ""
            position = page.run("return document.getElementById('position').textContent")
            assert json.loads(position) == {held.source: {"0": 0}}
            assert HttpClient.of(streams).ask("/store").status == 200, "the page needs no token, its rows do"
