"""Subscriptions to a store's committed changes, on a real broker. The judge is another client of the changelog."""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from broker_stage import kill_one, shared_by
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from event_source import Event, EventSource, RefusedError
from held_commits import COMMIT, COMMITTED, Held, has_committed, shows
from http_client import HttpClient, host_config
from typing_extensions import override

from penstock import KafkaStreams, Materialized, Position, Serdes, StreamsBuilder
from penstock.supervisor.http import connections, subscriptions
from penstock.supervisor.queries import store_changes
from tests.markdown import blocks
from tests.read_to_end import read_to_end
from tests.topics import create_topics, delete_topics
from tests.waiting import LONGEST_SESSION_MS, PATIENCE_SECONDS, allow_deletions, delete_records, eventually

pytestmark = pytest.mark.broker

PARTITIONS = 4
TEXT = Serdes.string()
GUARANTEES = ("at_least_once", "exactly_once_v2")


@pytest.fixture
def held(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Held:
    return Held(bootstrap_servers, application_id, make_topic("in"), make_topic("names"), tmp_path / "state")


class Latest:
    """An application whose store "latest" is the table of a topic."""

    def __init__(self, servers: str, application_id: str, source: str, state_dir: Path) -> None:
        self.servers, self.source = servers, source
        self.changelog = f"{application_id}-latest-changelog"
        self.config: dict[str, Any] = {
            "application.id": application_id,
            "bootstrap.servers": servers,
            "state.dir": str(state_dir),
            "commit.interval.ms": 100,
            "session.timeout.ms": LONGEST_SESSION_MS,
            "heartbeat.interval.ms": 300,
            "penstock.worker.beat.interval.ms": 50,
            "penstock.http.port": 0,
        }

    def streams(self, threads: int = 1, **config: Any) -> KafkaStreams:
        builder = StreamsBuilder()
        store = Materialized("latest", caching=False)
        builder.table(self.source, key_serde=TEXT, value_serde=TEXT, store=store)
        return KafkaStreams(builder.build(), self.config | {"num.stream.threads": threads} | config)

    @contextmanager
    def running(self, threads: int = 1, **config: Any) -> Iterator[KafkaStreams]:
        with self.streams(threads, **config) as streams:
            streams.start()
            eventually(lambda: streams.state.name == "RUNNING", "it runs")
            yield streams

    def produce(self, *records: tuple[str, str | None], partition: int | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "message.max.bytes": 10_000_000})
        for key, value in records:
            producer.produce(self.source, value, key, -1 if partition is None else partition)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def logged(self) -> list[Logged]:
        """Return the committed records of the changelog, by partition and offset."""
        found = read_to_end(self.servers, self.changelog)
        return sorted(
            (Logged(m.partition() or 0, m.offset() or 0, text(m.key()) or "", text(m.value())) for m in found),
            key=lambda logged: logged[:2],
        )


class Logged(NamedTuple):
    partition: int
    offset: int
    key: str
    value: str | None

    @classmethod
    def of(cls, event: Event) -> Logged:
        data = event.data
        assert ("value" in data) == (event.name == "change")
        return cls(data["partition"], data["offset"], data["key"], data.get("value"))


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


@pytest.fixture
def latest(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Latest:
    return Latest(bootstrap_servers, application_id, make_topic("in", PARTITIONS), tmp_path / "state")


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_rows_and_then_the_changes_of_every_kind_of_store(held: Held, guarantee: str) -> None:
    held.config["processing.guarantee"] = guarantee
    with held.running() as streams:
        http, at = HttpClient.of(streams), held.produce(("a", "x"), ("b", COMMIT))
        for number, store in enumerate(("cached", "uncached", "in-memory", "windows", "memory-windows", "sessions")):
            read = f"/stores/{store}?isolation=read_committed"
            eventually(has_committed(http, read, at), store)
            with EventSource(streams.http_port, f"/stores/{store}/changes") as source:
                first, *found, position = source.until("position")
                rows = http.get(read)
                assert (first.name, {event.name for event in found}) == ("snapshot", {"row"})
                assert [event.data for event in found] == [row | {"partition": 0} for row in rows["rows"]]
                assert (position.data["position"], position.id is not None) == (rows["position"], True)
                assert [event.id for event in found] == [None] * len(found), "they are no position"
                at = held.produce(("a", "x"), ("c", COMMIT))
                changed = dict(until_all(source, {"a": 2 + number, "c": 1 + number}))
                eventually(has_committed(http, read, at), store)  # the changelog has it before the stores do
                for row in (row for row in http.get(read)["rows"] if row["key"] in changed):
                    assert changed[row["key"]].items() >= row.items()


def until_all(source: EventSource, wanted: dict[str, int]) -> Iterator[tuple[str, Any]]:
    """Yield keys and data of changes until each key has its value; the first ones may be from before the test's."""
    left = dict(wanted)
    for event in source:
        assert event.name == "change"
        yield event.data["key"], event.data
        if left.get(event.data["key"]) == event.data["value"]:
            del left[event.data["key"]]
        if not left:
            return


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_rows_are_as_of_the_last_commit_also_if_it_has_not_stored_its_end(held: Held, guarantee: str) -> None:
    """Only the first of two commits in ten seconds stores the end of the changelog."""
    held.config["processing.guarantee"] = guarantee
    with held.running() as streams:
        eventually(shows(streams, "uncached", ({}, Position()), **COMMITTED), "commits write the rows from now on")
        for number in (1, 2):
            at = held.produce(("a", COMMIT))
            eventually(shows(streams, "uncached", ({"a": number}, at), **COMMITTED), "it is committed")
        with EventSource(streams.http_port, "/stores/uncached/changes") as source:
            assert [event.data["value"] for event in source.until("position") if event.name == "row"] == [2]
            held.produce(("a", COMMIT))
            assert source.next(1)[0].data["value"] == 3


def test_a_subscription_begins_now_or_where_an_event_says_and_shows_deletions(latest: Latest) -> None:
    with latest.running() as streams:
        latest.produce(("a", "1"), ("b", "1"), partition=1)
        eventually(lambda: len(latest.logged()) == 2, "they are in the changelog")
        with EventSource(streams.http_port, "/stores/latest/changes") as all_rows:
            assert {event.data["key"] for event in all_rows.until("position") if event.name == "row"} <= {"a", "b"}
            with EventSource(streams.http_port, "/stores/latest/changes?from=now&partition=1&key=a") as now:
                assert [event.name for event in now.until("position")] == ["position"]
                latest.produce(("b", None), ("a", "2"), ("a", None), partition=1)
                names = [(event.name, event.data["key"], event.data.get("value")) for event in now.next(2)]
                assert names == [("change", "a", "2"), ("delete", "a", None)]
        logged = latest.logged()
        assert len(logged) == 5
        with EventSource(streams.http_port, "/stores/latest/changes?from=now&partition=1", now.last_id) as resumed:
            latest.produce(("c", "1"), partition=1)
            assert Logged.of(resumed.next(1)[0]).key == "c"
        (id_, _, offsets) = str(now.last_id).partition(".")
        assert offsets == f"1-{logged[-1].offset + 1}"
        for back in range(5):
            path = f"/stores/latest/changes?partition=1&from={id_}.1-{logged[back].offset}"
            with EventSource(streams.http_port, path) as again:
                assert [Logged.of(event) for event in again.next(5 - back)] == logged[back:]
        with EventSource(streams.http_port, f"/stores/latest/changes?prefix=a&partition=1&from={id_}.1-0") as prefixed:
            assert [Logged.of(event) for event in prefixed.next(3)] == [one for one in logged if one.key == "a"]


class Follower:
    """Subscribes, is cut after a random number of events, and continues from its last id, until it is stopped.

    port: of the host to ask next. events_max: between two cuts.
    """

    def __init__(self, port: Callable[[], int | None], path: str, chance: random.Random, events_max: int = 200) -> None:
        self._port, self._path, self._chance, self._events_max = port, path, chance, events_max
        self._source: EventSource | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rows: dict[str, str] = {}
        self.changes: list[Logged] = []
        self.last_id: str | None = None
        self.cuts = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._source is not None:
            self._source.cut()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with EventSource(self._port(), self._path, self.last_id) as source:
                    self._follow(source)
            except RefusedError as error:
                if error.status != 503:
                    self.wrong.append(str(error))
                    return
            except (OSError, AssertionError):  # the host is away
                pass
            self._stopped.wait(0.02)

    def _follow(self, source: EventSource) -> None:
        if self.last_id is None:
            self.rows, self.changes = {}, []
        self._source = source
        left = self._chance.randint(1, self._events_max)
        for event in () if self._stopped.is_set() else source:
            if event.name == "row":
                self.rows[event.data["key"]] = event.data["value"]
            elif event.name in ("change", "delete"):
                self.changes.append(Logged.of(event))
            self.last_id = event.id
            left -= self._counts(event)
            if left == 0 or event.name == "end" or self._stopped.is_set():
                self.cuts += 1
                return

    def _counts(self, event: Event) -> bool:
        """Return whether the cut comes closer with an event."""
        return True

    def faults(self, logged: list[Logged]) -> list[str]:
        """Return how what it saw differs from a row of each key, and all later records of the changelog."""
        found = list(self.wrong)
        for key in {one.key for one in logged} | self.rows.keys():
            whole = [one for one in logged if one.key == key]
            mine = [one for one in self.changes if one.key == key]
            begin = len(whole) - len(mine)
            row = None if begin <= 0 else whole[begin - 1].value
            if begin < 0 or whole[begin:] != mine or self.rows.get(key) != row:
                found.append(
                    f"{key}: the row {self.rows.get(key)}, then {mine[:3]}, {len(mine)}; logged: {whole[:3]}, "
                    f"{len(whole)}, at the row {row}"
                )
        return found


class Writer:
    """Writes unique values and deletions of some keys, at random, until it is stopped."""

    def __init__(self, latest: Latest, chance: random.Random) -> None:
        self._latest, self._chance = latest, chance
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.last: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._latest.servers})
        for number in itertools.count():
            if self._stopped.wait(0.002):
                break
            key = f"key-{self._chance.randrange(60):02}"
            value = None if self._chance.random() < 0.2 else f"v{number}"
            producer.produce(self._latest.source, key=key, value=value)
            producer.poll(0)
            self.last[key] = value
        assert producer.flush(PATIENCE_SECONDS) == 0

    def is_logged(self) -> bool:
        """Return whether everything was processed and committed."""
        kept = {one.key: one.value for one in self._latest.logged()}
        return all(kept.get(key) == value for key, value in self.last.items())


class Visitor(Follower):
    """Subscribes with the rows each time, and keeps what each subscription has seen."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.visits: list[tuple[dict[str, str], list[Logged]]] = []

    @override
    def _follow(self, source: EventSource) -> None:
        super()._follow(source)
        if self.last_id is not None:
            self.visits.append((self.rows, self.changes))
        self.last_id = None

    @override
    def _counts(self, event: Event) -> bool:
        return event.id is not None  # not while the rows are incomplete

    @override
    def faults(self, logged: list[Logged]) -> list[str]:
        """Return the visits in which the changes of a key were not those that follow its row in the changelog."""
        found = list(self.wrong)
        for rows, changes in self.visits:
            for key in {change.key for change in changes}:
                whole = [one for one in logged if one.key == key]
                mine = [one for one in changes if one.key == key]
                begin = whole.index(mine[0])
                row = whole[begin - 1].value if begin else None
                if whole[begin : begin + len(mine)] != mine or rows.get(key) != row:
                    found.append(f"{key}: the row {rows.get(key)}, then {mine[:3]}; logged before: {row}")
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_subscriber_that_is_cut_sees_each_committed_value_once(
    latest: Latest, guarantee: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stream threads are killed, and tasks move; the rows come in pages of several commits."""
    monkeypatch.setattr(store_changes, "PAGE_ROWS", 3)
    chance = random.Random(seed)
    with latest.running(2, **{"processing.guarantee": guarantee}) as streams:

        def arguments(path: str, events_max: int) -> Any:
            own = random.Random(chance.random())
            return (lambda: streams.http_port), f"/stores/latest/changes{path}", own, events_max

        with (
            Writer(latest, chance) as writer,
            Follower(*arguments("", 200)) as whole,
            Follower(*arguments("?key=key-07", 10)) as one,
            Visitor(*arguments("", 200)) as visitor,
            Visitor(*arguments("?prefix=key-", 200)) as of_prefix,
        ):
            eventually(lambda: min(whole.cuts, one.cuts) > 0, "both have subscribed")
            for _ in range(2):
                eventually(lambda: shared_by(streams, 2, PARTITIONS), "both threads have tasks")
                kill_one(streams, chance)
                cuts = whole.cuts
                eventually(lambda: whole.cuts > cuts + 2, "changes continue")  # noqa: B023
                streams.add_stream_thread()
                eventually(lambda: shared_by(streams, 3, PARTITIONS), "tasks have moved")
                streams.remove_stream_thread()
            eventually(
                lambda: min(len(visitor.visits), len(of_prefix.visits)) > 2, "both have seen rows of several moments"
            )
            eventually(lambda: len(whole.changes) > 200 and bool(one.changes), "both have seen changes")
            writer.__exit__()
            eventually(writer.is_logged, "everything is committed")
            logged = latest.logged()
            of_one = [record for record in logged if record.key == "key-07"]
            eventually(lambda: not whole.faults(logged) and not one.faults(of_one), lambda: whole.faults(logged))
            for one_visitor in (visitor, of_prefix):
                one_visitor.__exit__()
                assert not one_visitor.faults(latest.logged())
            assert {record.key for record in one.changes} == {"key-07"}
    nothing_is_held()


@pytest.mark.slow
def test_a_subscriber_continues_at_another_host_and_after_a_restart(latest: Latest, tmp_path: Path) -> None:
    chance = random.Random(3)

    def host(name: str) -> dict[str, Any]:
        return host_config(tmp_path / name) | {"acceptable.recovery.lag": 10_000}

    one, two = host("one"), host("two")
    ports = [one["penstock.http.port"]]
    with (
        Writer(latest, chance) as writer,
        Follower(lambda: chance.choice(ports), "/stores/latest/changes", chance) as follower,
    ):
        with latest.running(**one) as first:
            eventually(lambda: follower.cuts > 0, "it has subscribed")
            with latest.running(**two) as second:
                ports.append(two["penstock.http.port"])
                eventually(lambda: shared_by(second, 1, PARTITIONS // 2), "the second host has tasks")
                cuts = follower.cuts
                eventually(lambda: follower.cuts > cuts + 3, "changes continue")
                read = "/stores/latest?isolation=read_committed&limit=100"
                eventually(lambda: HttpClient.of(first).ask(read).status == 200, "the rows of both hosts can be read")
                with EventSource(second.http_port, "/stores/latest/changes") as source:
                    assert len(source.until("position")) > 10, "with the rows of the other host"
                first.close(leave_group=True)
                ports.remove(one["penstock.http.port"])
                eventually(lambda: shared_by(second, 1, PARTITIONS), "the second host has all tasks")
                cuts = follower.cuts
                eventually(lambda: follower.cuts > cuts + 1, "changes continue")
        with latest.running(**two):
            writer.__exit__()
            eventually(writer.is_logged, "everything is committed")
            logged = latest.logged()
            eventually(lambda: not follower.faults(logged), lambda: follower.faults(logged))


def nothing_is_held() -> None:
    """No thread of a tail is left, which closes its clients at its end."""
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("penstock-changes")], "threads end")


def test_the_program_of_the_documentation_follows_a_table(latest: Latest) -> None:
    page = Path(__file__).parents[2] / "docs/http.md"
    (program,) = [block.text for block in blocks(page.read_text()) if "def follow" in block.text]
    names: dict[str, Any] = {}
    exec(program, names)
    with latest.running() as streams:
        latest.produce(("a", "1"), ("b", "2"))
        table: dict[str, str] = {}
        with closing(names["follow"](f"localhost:{streams.http_port}", "/stores/latest/changes")) as followed:
            while table != {"a": "1", "b": "2"}:
                event, data = next(followed)
                if event in ("row", "change"):
                    table[data["key"]] = data["value"]
        refused = names["follow"](f"localhost:{streams.http_port}", "/stores/other/changes")
        with pytest.raises(RuntimeError, match="UNKNOWN_STORE"):
            next(refused)


# -- limits


def until_end(source: EventSource) -> tuple[list[Event], Event]:
    *found, end = source.until("end")
    return found, end


def test_a_slow_subscriber_is_dropped_and_continues_where_it_was(latest: Latest) -> None:
    """It reads nothing until the changes that it needs next are not kept any more."""
    with latest.running(**{"penstock.http.subscriptions.buffer.bytes": 100_000}) as streams:
        changes = streams._http._view.changes
        with EventSource(streams.http_port, "/stores/latest/changes?from=now&partition=0") as slow:
            slow.until("position")
            large = [("a", f"{number:04}" + "x" * 100_000) for number in range(300)]
            latest.produce(*large, partition=0)
            eventually(lambda: not changes._tails, "it has been dropped")
            found, end = until_end(slow)
            assert (end.data["error"]["code"], end.id) == ("SLOW_READER", found[-1].id)
        seen = [event.data["value"][:4] for event in found if event.name == "change"]
        assert 0 < len(seen) < 300
        with EventSource(streams.http_port, "/stores/latest/changes?partition=0", slow.last_id) as again:
            seen += [event.data["value"][:4] for event in again.next(300 - len(seen))]
        assert seen == [f"{number:04}" for number in range(300)]
    nothing_is_held()


def test_a_subscriber_that_never_reads_is_disconnected(latest: Latest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PART_SECONDS", 1)
    with latest.running(**{"penstock.http.subscriptions.max": 1}) as streams:
        latest.produce(("a", "x"), partition=0)  # so little that it does not fall behind yet
        with socket.create_connection(("127.0.0.1", streams.http_port or 0)) as deaf:
            deaf.sendall(b"GET /stores/latest/changes?partition=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            eventually(lambda: bool(streams._http._view.changes._tails), "it has a place, and its changes are read")
            refused = refusal(streams, "/stores/latest/changes")
            assert (refused.status, refused.code) == (503, "TOO_MANY_REQUESTS")
            latest.produce(*(("a", "x" * 100_000) for _ in range(300)), partition=0)
            nothing_is_held()
            with EventSource(streams.http_port, "/stores/latest/changes?from=now") as source:
                source.until("position")


def test_a_silent_subscription_is_kept_alive(latest: Latest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position moves on although only other keys change."""
    monkeypatch.setattr(subscriptions, "HEARTBEAT_SECONDS", 0.1)
    path = "/stores/latest/changes?from=now&key=b"
    with latest.running() as streams, EventSource(streams.http_port, path) as source:
        first = source.until("position")[-1]
        assert [source._line(), source._line()] == [": heartbeat\n", "\n"]
        latest.produce(("a", "2"), partition=0)
        moved = source.until("position")[-1]
        assert moved.data["offsets"] == first.data["offsets"] | {"0": first.data["offsets"]["0"] + 1}
        assert moved.id != first.id


def test_a_host_that_stops_says_so(latest: Latest) -> None:
    with latest.running() as streams:
        stopping = threading.Thread(target=streams.close)
        with EventSource(streams.http_port, "/stores/latest/changes?from=now") as source:
            source.until("position")
            stopping.start()
            found, end = until_end(source)
            assert (end.data["error"]["code"], end.id, found) == ("STOPPING", source.last_id, [])
            assert source.response.read() == b"", "the response is complete"
        stopping.join()
    nothing_is_held()


# -- positions that are not there


def test_positions_of_the_future_the_past_and_another_changelog(latest: Latest) -> None:
    admin = AdminClient({"bootstrap.servers": latest.servers})
    with latest.running() as streams:
        latest.produce(*(("a", f"{number}") for number in range(5)), partition=0)
        path = "/stores/latest/changes?partition=0"
        with EventSource(streams.http_port, path) as source:
            while source.last_id is None or not source.last_id.endswith(".0-5"):
                next(iter(source))
        topic = source.last_id.partition(".")[0]
        future = refusal(streams, f"{path}&from={topic}.0-6")
        assert (future.status, future.code) == (400, "FUTURE_POSITION")
        other = refusal(streams, f"{path}&from={'0' * 32}.0-1")
        assert (other.status, other.code) == (410, "CHANGELOG_RECREATED")
        wrong = refusal(streams, f"/stores/latest/changes?partition=1&from={topic}.0-5")
        assert (wrong.status, wrong.code) == (400, "BAD_REQUEST")
        allow_deletions(admin, latest.changelog)
        delete_records(admin, latest.changelog, {0: 3})
        gone = refusal(streams, f"{path}&from={topic}.0-2")
        assert (gone.status, gone.code) == (410, "POSITION_GONE")
        assert "begins at offset 3, the id is at 2" in gone.error["message"]
        with EventSource(streams.http_port, f"{path}&from={topic}.0-3") as rest:
            assert [event.data["value"] for event in rest.next(2)] == ["3", "4"]
    nothing_is_held()


def refusal(streams: KafkaStreams, path: str, **headers: str) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        EventSource(streams.http_port, path, **headers)
    return refused.value


def test_a_changelog_that_is_recreated_ends_the_subscription(held: Held) -> None:
    """The application does not notice: it commits nothing meanwhile."""
    admin = AdminClient({"bootstrap.servers": held.servers})
    with held.running() as streams:
        at = held.produce(("a", COMMIT))
        eventually(shows(streams, "uncached", ({"a": 1}, at), **COMMITTED), "it is committed")
        with EventSource(streams.http_port, "/stores/uncached/changes") as source:
            changelog = source.until("position")[0].data["changelog"]
            delete_topics(admin, changelog)
            create_topics(admin, NewTopic(changelog, 1, 1))
            _, end = until_end(source)
        assert end.data["error"]["code"] == "CHANGELOG_RECREATED"
        refused = refusal(streams, "/stores/uncached/changes", **{"Last-Event-ID": str(source.last_id)})
        assert (refused.status, refused.code) == (410, "CHANGELOG_RECREATED")


# -- bad requests


@pytest.mark.parametrize(
    ("path", "status", "code", "message"),
    [
        ("other/changes", 404, "UNKNOWN_STORE", "The topology has no state store 'other'"),
        ("names/changes", 400, "BAD_REQUEST", "names is a global store, which has no changelog"),
        ("cached/changes?from=later", 400, "BAD_REQUEST", "'later' is no id of an event"),
        ("cached/changes?from=", 400, "BAD_REQUEST", "'' is no id of an event"),
        (f"cached/changes?from={'0' * 32}.0-99999999999999999999", 400, "BAD_REQUEST", "is no id of an event"),
        (f"cached/changes?from={'0' * 32}.0-1.0-2", 400, "BAD_REQUEST", "is no id of an event"),
        ("cached/changes?partition=1", 400, "BAD_REQUEST", "The store cached has 1 partitions, from 0 to 0."),
        ("cached/changes?key=a&prefix=a", 400, "BAD_REQUEST", "leave out one of them"),
        ("windows/changes?prefix=a", 400, "BAD_REQUEST", "prefix= is for key-value stores"),
        ("cached/changes?limit=1", 400, "BAD_REQUEST", "There is no parameter 'limit' here"),
        ("cached/changes?from=now&from=now", 400, "BAD_REQUEST", "A parameter is given twice."),
        ("cached/changes?key=%FF", 400, "BAD_REQUEST", "is not UTF-8"),
    ],
)
def test_bad_requests_are_refused(shared: KafkaStreams, path: str, status: int, code: str, message: str) -> None:
    refused = refusal(shared, f"/stores/{path}")
    assert (refused.status, refused.code) == (status, code)
    assert message in refused.error["message"]
    nothing_is_held()


@pytest.fixture(scope="module")
def shared(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStreams]:
    """An application for requests that change nothing."""
    name = tmp_path_factory.getbasetemp().name + "-changes"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    create_topics(admin, NewTopic(f"{name}-in", 1, 1), NewTopic(f"{name}-names", 1, 1))
    held = Held(bootstrap_servers, name, f"{name}-in", f"{name}-names", tmp_path_factory.mktemp("state"))
    with held.running() as streams:
        yield streams


def test_stores_without_a_changelog_are_refused_with_the_reason(latest: Latest) -> None:
    builder = StreamsBuilder()
    table = builder.table(latest.source, key_serde=TEXT, value_serde=TEXT, store="reused")
    table.to_stream().group_by_key().count(store=Materialized("unlogged").with_logging_disabled())
    config = latest.config | {"topology.optimization": "all", "penstock.http.token": "let me in"}
    with KafkaStreams(builder.build(config), config) as streams:
        streams.start()
        eventually(lambda: streams.state.name == "RUNNING", "it runs")
        token = {"Authorization": "Bearer let me in"}
        reused = refusal(streams, "/stores/reused/changes", **token)
        assert f"reuses its input topic {latest.source}" in reused.error["message"]
        unlogged = refusal(streams, "/stores/unlogged/changes", **token)
        assert "logging is disabled" in unlogged.error["message"]
        assert refusal(streams, "/stores/reused/changes").code == "UNAUTHORIZED"
