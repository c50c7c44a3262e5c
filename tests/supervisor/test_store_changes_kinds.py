"""Subscriptions to stores of further kinds: plain, versioned, with headers, with rows that end; pages of a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from event_source import Event, EventSource
from held_commits import COMMIT, has_committed
from held_rows import DELETE, NAMES, HeldRows
from http_client import HttpClient

from penstock import KafkaStreams, Position
from penstock.supervisor.queries import store_changes
from tests.waiting import eventually

pytestmark = pytest.mark.broker
GUARANTEES = ("at_least_once", "exactly_once_v2")
EVENTS = ("change", "delete")


@pytest.fixture
def held(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> HeldRows:
    return HeldRows(bootstrap_servers, application_id, make_topic("in"), make_topic("names"), tmp_path / "state")


def until(source: EventSource, wanted: Callable[[Event], bool]) -> Iterator[Event]:
    """Yield changes up to the one that is wanted."""
    for event in source:
        assert event.name in EVENTS, event
        yield event
        if wanted(event):
            return


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_rows_changes_and_deletions_of_further_kinds_of_stores(held: HeldRows, guarantee: str) -> None:
    held.config["processing.guarantee"] = guarantee
    with held.running() as streams:
        count = 0
        for store in NAMES:
            at = held.produce(("a", "x"), ("b", COMMIT))
            count += 1
            rows_and_changes_of(streams, held, store, at, count)
            count += 2


def rows_and_changes_of(streams: KafkaStreams, held: HeldRows, store: str, at: Position, count: int) -> None:
    """The rows are those of a read, and changes have their form; at, count: of the records of "a" so far."""
    http = HttpClient.of(streams)
    one_key = "?key=a" if store == "versioned" else ""
    path = "/a" if store == "versioned" else ""
    read = f"/stores/{store}{path}?isolation=read_committed"
    eventually(has_committed(http, read, at), store)
    with EventSource(streams.http_port, f"/stores/{store}/changes{one_key}") as source:
        first, *found, position = source.until("position")
        rows = http.get(read)["rows"]
        assert (first.name, {event.name for event in found}) == ("snapshot", {"row"}), store
        assert [event.data for event in found] == [row | {"partition": 0} for row in rows], store
        assert position.id is not None
        at = held.produce(("a", "x"), ("a", COMMIT))
        changes = list(until(source, lambda event: event.data.get("value") == count + 2))
        assert [change.data["value"] for change in changes if change.data["key"] == "a"][-2:] == [count + 1, count + 2]
        newest = changes[-1].data
        eventually(has_committed(http, read, at), store)  # the changelog has it before the store does
        (row,) = [row for row in http.get(read)["rows"] if (row["key"], row["value"]) == ("a", count + 2)]
        assert newest == row | {"partition": 0, "offset": newest["offset"]}, store


def test_deletions_are_shown_without_a_value(held: HeldRows) -> None:
    with held.running() as streams:
        held.produce(("a", COMMIT))
        for store in (name for name in NAMES if name != "ended"):
            with EventSource(streams.http_port, f"/stores/{store}/changes?from=now&key=a") as source:
                source.until("position")
                held.produce(("a", "x"), ("a", DELETE), ("b", COMMIT))
                *_, deletion = until(source, lambda event: event.name == "delete")
                assert deletion.data.items() >= {"key": "a", "partition": 0}.items()
                assert "value" not in deletion.data
                assert ("window" in deletion.data) == (store[-1] == "s" and "-" in store)


def test_rows_that_end_are_deleted(held: HeldRows) -> None:
    """A record whose time is later than all rows may last ends them."""
    with held.running() as streams:
        http, read = HttpClient.of(streams), "/stores/ended?isolation=read_committed"
        eventually(has_committed(http, read, held.produce(("a", "x"), ("b", COMMIT))), "it is committed")
        with EventSource(streams.http_port, "/stores/ended/changes") as source:
            found: list[Any] = source.until("position")
            assert [event.data["key"] for event in found if event.name == "row"] == ["a", "b"]
            at = held.produce(("later", COMMIT), timestamp=60_000)
            events = list(until(source, lambda event: event.data["key"] == "later"))
            assert sorted(event.data["key"] for event in events if event.name == "delete") == ["a", "b"]
        eventually(has_committed(http, read, at), "the store has it, too")
        with EventSource(streams.http_port, "/stores/ended/changes") as source:
            found = source.until("position")
            assert [event.data["key"] for event in found if event.name == "row"] == ["later"]


def test_rows_with_a_prefix_come_in_pages(held: HeldRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_changes, "PAGE_ROWS", 3)
    keys = [f"k{number:02}" for number in range(20)]
    with held.running() as streams:
        held.produce(*((key, "x") for key in ("j", "ka", *keys, "l")), ("j", COMMIT))
        http = HttpClient.of(streams)
        eventually(lambda: len(http.get("/stores/cached?isolation=read_committed")["rows"]) == 23, "it is committed")
        for prefix, wanted in (("k0", keys[:10]), ("k", [*keys, "ka"]), ("k19", keys[19:]), ("z", [])):
            with EventSource(streams.http_port, f"/stores/cached/changes?prefix={prefix}") as source:
                found = source.until("position")
                assert [event.data["key"] for event in found if event.name == "row"] == wanted
        pages: list[str] = []
        after: str | None = ""
        while after is not None:
            page = http.get(f"/stores/cached?prefix=k&partition=0&limit=4&after={after}")
            assert len(page["rows"]) <= 4
            pages += [row["key"] for row in page["rows"]]
            after = page.get("after")
        assert pages == [*keys, "ka"]
