"""penstock plan: which differences between two topologies are safe for the first one's state, and which are not."""

from __future__ import annotations

import importlib
import json
import linecache
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Materialized, Processor, Serdes, StoreBuilder, Stores, StreamsBuilder, TimeWindows
from penstock.sinks import SqliteSink
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.graph.topology_facts import PACKED_BYTES_MAX, facts_of, internal_names, pack_facts, unpack_facts
from penstock.topology.graph.topology_plan import Plan, Verdict, combined, compare, compare_names, compare_reads
from penstock.topology.serdes.serde_facts import serde_name

TEXT, NUMBER = Serdes.string(), Serdes.int64()
Declare = Callable[[StreamsBuilder], Any]


def facts(declare: Declare, **config: str) -> dict[str, Any]:
    """Return a topology's description after a round trip through its file."""
    builder = StreamsBuilder()
    declare(builder)
    values = StreamsConfig({key.replace("_", "."): value for key, value in config.items()})
    loaded: dict[str, Any] = json.loads(json.dumps(facts_of(builder.build(values), values)))
    return loaded


def plan(old: Declare, new: Declare) -> Plan:
    return compare(facts(old), facts(new))


def texts(found: Plan, verdict: Verdict) -> str:
    return "\n".join(f"{finding.subject}: {finding.text}" for finding in found.findings if finding.verdict is verdict)


def stream(builder: StreamsBuilder, topic: str = "in") -> Any:
    return builder.stream(topic, key_serde=TEXT, value_serde=TEXT)


def count(builder: StreamsBuilder, store: str = "counts") -> Any:
    return stream(builder).group_by_key().count(store=store)


def test_the_description_is_equal_in_each_process() -> None:
    class Own:
        def serialize(self, topic: str, value: bytes | None) -> bytes | None:
            return value

        def deserialize(self, topic: str, data: bytes | None) -> Any:
            return data

    def own(builder: StreamsBuilder) -> None:
        builder.stream("in", key_serde=Own(), value_serde=Own()).group_by_key().count(store="counts")

    assert facts(own) == facts(own)
    assert plan(own, own) == Plan((), ())
    assert " at 0x" not in serde_name(Own())


def with_store(builder: StoreBuilder[Any], **more: Any) -> Declare:
    """Return a topology whose processor has this store."""

    def declare(topology: StreamsBuilder) -> None:
        topology.add_state_store(replace(builder, **more))
        topology.stream("in").process(Processor, builder.name)

    return declare


@pytest.mark.parametrize(
    ("without", "with_headers"),
    [
        (
            Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("s")),
            Stores.timestamped_key_value_store_with_headers_builder(
                Stores.persistent_timestamped_key_value_store_with_headers("s")
            ),
        ),
        (
            Stores.window_store_builder(Stores.persistent_window_store("s", 20, 10)),
            Stores.timestamped_window_store_with_headers_builder(
                Stores.persistent_timestamped_window_store_with_headers("s", 20, 10)
            ),
        ),
        (
            Stores.session_store_builder(Stores.persistent_session_store("s", 20)),
            Stores.session_store_with_headers_builder(Stores.persistent_session_store_with_headers("s", 20)),
        ),
    ],
    ids=["rows", "windows", "sessions"],
)
def test_a_store_gets_headers_with_one_restart_but_does_not_lose_them(
    without: StoreBuilder[Any], with_headers: StoreBuilder[Any]
) -> None:
    added = plan(with_store(without), with_store(with_headers))
    assert (added.verdict, added.rebuild) == (Verdict.REBUILD, ("s",))
    dropped = plan(with_store(with_headers), with_store(without))
    assert "the store has headers, which would be lost" in texts(dropped, Verdict.REFUSE)
    unlogged = plan(with_store(without, logging=False), with_store(with_headers, logging=False))
    assert "no changelog to be restored from" in texts(unlogged, Verdict.REFUSE)
    same = facts(with_store(without))
    del same["stores"]["s"]["keeps_headers"]  # of an earlier version
    assert compare(same, facts(with_store(without))) == Plan((), ())


def test_operators_keep_no_headers_so_the_format_of_their_stores_may_change() -> None:
    plain, with_headers = facts(count), facts(count, dsl_store_format="HEADERS")
    assert compare(plain, with_headers).verdict is Verdict.SAFE
    assert compare(with_headers, plain).verdict is Verdict.SAFE


def test_an_additional_operator_is_safe_with_explicit_names() -> None:
    found = plan(count, lambda b: stream(b).filter(lambda k, v: True).group_by_key().count(store="counts"))
    assert found.verdict is Verdict.SAFE
    assert "state does not depend on that" in texts(found, Verdict.SAFE)


def test_an_additional_operator_changes_generated_names() -> None:
    found = plan(
        lambda b: stream(b).group_by_key().count(),
        lambda b: stream(b).filter(lambda k, v: True).group_by_key().count(),
    )
    assert found.verdict is Verdict.REFUSE
    text = texts(found, Verdict.REFUSE)
    assert "KSTREAM-AGGREGATE-STATE-STORE-0000000001: the store is now called" in text
    assert "KSTREAM-AGGREGATE-STATE-STORE-0000000002: it starts empty" in text


def test_a_store_under_another_name_is_refused() -> None:
    found = plan(count, lambda b: count(b, "totals"))
    assert found.summary() == "refuse"
    assert "counts: the store is now called totals" in texts(found, Verdict.REFUSE)


def test_removed_and_added_stores_are_safe() -> None:
    def other(builder: StreamsBuilder) -> None:
        stream(builder, "other").group_by_key().aggregate(
            str, lambda k, v, a: v, store=Materialized.as_("last").with_value_serde(TEXT)
        )

    found = plan(count, other)
    assert found.verdict is Verdict.SAFE
    text = texts(found, Verdict.SAFE)
    assert "counts: the store and its rows are removed; its changelog counts-changelog remains" in text
    assert "last: the store is new: it starts empty" in text
    assert "in: the topic is no longer read" in text
    assert "other: the topic is read from now on" in text


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (
            lambda b: b.stream("in", key_serde=NUMBER, value_serde=TEXT).group_by_key().count(store="counts"),
            "key_serde was Serdes.string() and is Serdes.int64()",
        ),
        (
            lambda b: (
                stream(b)
                .group_by_key()
                .aggregate(str, lambda k, v, a: v, store=Materialized.as_("counts").with_value_serde(TEXT))
            ),
            "value_serde was Serdes.int64() and is Serdes.string()",
        ),
        (
            lambda b: (
                stream(b)
                .group_by_key()
                .windowed_by(TimeWindows.of_size_with_no_grace(timedelta(hours=1)))
                .count(store="counts")
            ),
            "the store's kind was timestamped_key_value and is timestamped_window",
        ),
    ],
    ids=["key serde", "value serde", "kind"],
)
def test_a_store_that_could_not_read_its_bytes_is_refused(new: Declare, message: str) -> None:
    found = plan(count, new)
    assert found.verdict is Verdict.REFUSE
    assert message in texts(found, Verdict.REFUSE)


def windowed(size: timedelta, retention: timedelta = timedelta(days=2)) -> Declare:
    windows = TimeWindows.of_size_with_no_grace(size)
    store = Materialized.as_("counts").with_retention(retention)
    return lambda b: stream(b).group_by_key().windowed_by(windows).count(store=store)


def test_another_window_size_is_refused_but_not_another_retention() -> None:
    hour = timedelta(hours=1)
    assert plan(windowed(hour), windowed(2 * hour)).verdict is Verdict.REFUSE
    longer = plan(windowed(hour), windowed(hour, timedelta(days=3)))
    assert longer.verdict is Verdict.SAFE
    assert "retention_ms was 172800000 and is 259200000" in texts(longer, Verdict.SAFE)


def test_a_store_in_another_sub_topology_is_rebuilt() -> None:
    def behind_another(builder: StreamsBuilder) -> None:
        stream(builder, "first").to("out")
        count(builder)

    found = plan(count, behind_another)
    assert found.summary() == "rebuild these stores: counts"
    assert "it was in sub-topology 0 and is in 1" in texts(found, Verdict.REBUILD)
    assert "Stop all hosts, and wait for session.timeout.ms" in texts(found, Verdict.SAFE)


def test_another_backend_is_rebuilt_if_there_is_a_changelog() -> None:
    def kept(in_memory: bool, logged: bool = True) -> Declare:
        supplier = (
            Stores.in_memory_key_value_store("counts") if in_memory else Stores.persistent_key_value_store("counts")
        )
        store = Materialized.as_(supplier)
        store = store if logged else store.with_logging_disabled()
        return lambda b: stream(b).group_by_key().count(store=store)

    assert plan(kept(True), kept(False)).rebuild == ("counts",)
    found = plan(kept(True, logged=False), kept(False, logged=False))
    assert found.verdict is Verdict.REFUSE
    assert "the store has no changelog to be restored from" in texts(found, Verdict.REFUSE)
    assert plan(kept(False), kept(False, logged=False)).verdict is Verdict.SAFE
    assert plan(kept(False, logged=False), kept(False)).verdict is Verdict.REFUSE


def repartitioned(name: str | None = "by-value", partitions: int | None = None, value_serde: Any = TEXT) -> Declare:
    return lambda b: (
        stream(b)
        .select_key(lambda k, v: v)
        .repartition(name=name, number_of_partitions=partitions, key_serde=TEXT, value_serde=value_serde)
        .to("out", key_serde=TEXT, value_serde=TEXT)
    )


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (repartitioned("by-other"), "by-value-repartition: the repartition topic is no longer read"),
        (repartitioned(partitions=4), "partitions of the repartition topic was derived and is 4"),
        (repartitioned(value_serde=Serdes.json()), "value_serde of the repartition topic was Serdes.string()"),
    ],
    ids=["renamed", "partitions", "serde"],
)
def test_repartition_topics_keep_name_partitions_and_serdes(new: Declare, message: str) -> None:
    found = plan(repartitioned(), new)
    assert found.verdict is Verdict.REFUSE
    assert message in texts(found, Verdict.REFUSE)


def test_default_serdes_count_like_explicit_ones() -> None:
    def declare(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count(store="counts")

    assert compare(facts(declare), facts(declare, default_key_serde="string")).verdict is Verdict.SAFE
    assert compare(facts(declare), facts(declare, default_key_serde="int64")).verdict is Verdict.REFUSE


def test_global_tables_are_compared_too() -> None:
    def table(value_serde: Any) -> Declare:
        return lambda b: b.global_table("names", key_serde=TEXT, value_serde=value_serde, store="names")

    assert plan(table(TEXT), table(TEXT)) == Plan((), ())
    assert plan(table(TEXT), table(NUMBER)).verdict is Verdict.REFUSE


def test_a_description_of_another_version_is_not_compared() -> None:
    found = compare({"version": 99}, facts(count))
    assert found.verdict is Verdict.SAFE
    assert "cannot be compared" in texts(found, Verdict.SAFE)


class Scaled:
    """A serde without its own repr. sides: a set, whose repr would differ between processes."""

    def __init__(self, scale: int, password: str = "secret") -> None:
        self.scale, self.password = scale, password
        self.sides = frozenset({"left", "right"})
        self.encode = str

    def serialize(self, topic: str, value: Any) -> bytes | None:
        return None if value is None else str(value * self.scale).encode()

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        return None if data is None else int(data) // self.scale


def summed(serde: Any) -> Declare:
    store = Materialized.as_("counts").with_value_serde(serde)
    return lambda b: stream(b).group_by_key().aggregate(int, lambda k, v, a: a, store=store)


def test_a_serde_with_other_arguments_is_reported() -> None:
    old, new = facts(summed(Scaled(2))), facts(summed(Scaled(3)))
    found = compare(old, new)
    assert found.verdict is Verdict.SAFE
    assert "value_serde" in texts(found, Verdict.SAFE)
    assert "has another scale: make sure that it reads" in texts(found, Verdict.SAFE)
    assert "secret" not in json.dumps(new)
    assert compare(old, facts(summed(Scaled(2)))) == Plan((), ())
    assert compare(without(old, "_settings", "_code"), new) == Plan((), ())  # from an earlier Penstock


def without(described: dict[str, Any], *suffixes: str) -> dict[str, Any]:
    stores = {
        name: {field: value for field, value in store.items() if not field.endswith(suffixes)}
        for name, store in described["stores"].items()
    }
    return {**described, "stores": stores}


def test_changed_code_of_a_serde_is_reported_but_not_a_comment(importing: Callable[[str, str], Any]) -> None:
    code = "class Own:\n    def serialize(self, topic, value):\n        return value\n"
    code += "    def deserialize(self, topic, data):\n        return data\n"
    first = facts(summed(importing("own_1", code).Own()))

    def told(changed: str) -> str:
        return texts(compare(renamed(first), facts(summed(importing("own_2", changed).Own()))), Verdict.SAFE)

    def renamed(described: dict[str, Any]) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(json.dumps(described).replace("own_1", "own_2"))
        return loaded

    assert told(code.replace("return value", "# why not\n\n        return value  # as it is")) == ""
    assert "has other code: make sure" in told(code.replace("return value", "return value[::-1]"))


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Writes a module and imports it."""
    monkeypatch.syspath_prepend(tmp_path)

    def do_import(name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        linecache.clearcache()
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # a second version in the same second
        return importlib.import_module(name)

    return do_import


def test_members_facts_survive_a_round_trip_and_damage_is_refused() -> None:
    described = facts(count)
    packed = pack_facts(described)
    assert unpack_facts(packed) == described
    assert unpack_facts(b"") is None
    for damaged in (packed[:-5], b"nonsense", zlib.compress(b"[]"), zlib.compress(b" " * (2 << 20) + packed)):
        with pytest.raises(ValueError, match="not a description of a topology"):
            unpack_facts(damaged)


def test_a_too_large_description_is_not_sent() -> None:
    names: dict[str, Any] = {secrets.token_hex(8): {} for _ in range(PACKED_BYTES_MAX // 8)}
    assert pack_facts({**facts(count), "stores": names}) == b""


def test_a_streams_groups_topology_is_known_by_its_topic_names() -> None:
    def shuffled(store: str, topic: str) -> Declare:
        return lambda b: stream(b).select_key(lambda k, v: v).repartition(name=topic).group_by_key().count(store=store)

    old, same, store, topic = (
        internal_names(facts(shuffled(*names)), "app")
        for names in (("counts", "by-value"), ("counts", "by-value"), ("totals", "by-value"), ("counts", "again"))
    )
    assert old["1"]["changelogs"] == ["app-counts-changelog"]
    assert compare_names(old, same) == Plan((), ())
    assert "is now called app-totals-changelog" in texts(compare_names(old, store), Verdict.REFUSE)
    assert "app-by-value-repartition: the repartition topic is no longer read" in texts(
        compare_names(old, topic), Verdict.REFUSE
    )
    gone = compare_names(old, {"0": old["0"]})
    assert "app-counts-changelog: the store of this changelog is removed" in texts(gone, Verdict.SAFE)


def test_a_java_groups_topology_is_known_by_the_topics_of_its_tasks() -> None:
    own = internal_names(facts(count), "app")
    reads = {number: [*names["sources"], *names["repartitions"]] for number, names in own.items()}
    assert compare_reads(reads, own) == Plan((), ())
    other = compare_reads({**reads, "0": ["elsewhere"], "9": ["more"]}, own)
    assert f"sub-topology 0: in the running group it reads elsewhere, in this topology {reads['0'][0]}." in texts(
        other, Verdict.REFUSE
    )
    assert "sub-topology 9: in the running group it reads more, in this topology nothing." in texts(
        other, Verdict.REFUSE
    )


def test_comparisons_are_combined_and_differences_reported_once() -> None:
    found = plan(count, lambda b: count(b, "totals"))
    assert combined([found, Plan((), ("other",)), found]) == Plan(found.findings, ("other",))


# -- sinks outside of Kafka


def sinking(name: str = "rows-sink", table: str = "rows", topic: str = "in", copied: bool = False) -> Declare:
    """Return a topology that writes a topic to a table; copied: something else reads the topic, too."""

    def declare(builder: StreamsBuilder) -> None:
        read = stream(builder, topic)
        read.to_sink(SqliteSink("rows.db", table), name=name)
        if copied:
            read.to("copy")

    return declare


@pytest.mark.parametrize(
    ("new", "verdict", "text"),
    [
        (sinking(name="other"), Verdict.REFUSE, "rows-sink: the sink is now called other, and its offsets belong to"),
        (sinking(topic="more"), Verdict.REFUSE, "rows-sink: the sink read in and reads more, and its offsets belong"),
        (sinking(copied=True), Verdict.REFUSE, "rows-sink: the sink read in and reads rows-sink-repartition, and its"),
        (sinking(table="more"), Verdict.SAFE, "writes to table more in SQLite file rows.db; earlier rows stay where"),
        (sinking("other", "more"), Verdict.SAFE, "rows-sink: the sink is removed; its rows and offsets remain: table"),
        (sinking("other", "more"), Verdict.SAFE, "other: the sink is new: it writes to table more in SQLite file"),
    ],
)
def test_offsets_in_a_database_belong_to_the_name_and_the_topic_of_a_sink(
    new: Declare, verdict: Verdict, text: str
) -> None:
    found = plan(sinking(), new)
    assert text in texts(found, verdict)
    assert found.verdict is verdict
    assert plan(new, new) == Plan((), ())


def test_descriptions_of_earlier_versions_have_no_sinks() -> None:
    old = facts(sinking())
    del old["sinks"]
    assert compare(old, facts(sinking(name="other"))).verdict is Verdict.SAFE
