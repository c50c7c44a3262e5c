"""Cogroups of the aggregates of penstock.agg, compared with plain Python over all values."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Serdes, SessionWindows, StreamsBuilder, Suppressed, TimeWindows, TopologyError, agg
from penstock.testing import TopologyTestDriver
from penstock.topology.declare.aggregated import cogrouped_functions
from penstock.topology.stores.materialized import MaterializedInternal
from tests.examples import examples
from tests.operators.test_agg import ALL, CACHES, CHANGELOG, VALUES, WINDOWS, model, restored, rows

#: The aggregates of each of two topics.
TOPICS: dict[str, dict[str, Any]] = {
    topic: {f"{topic}_{name}": aggregate for name, aggregate in ALL.items()} for topic in ("orders", "visits")
}
EVENTS = st.lists(
    st.tuples(st.sampled_from(sorted(TOPICS)), st.sampled_from("abc"), st.none() | VALUES, st.integers(0, 60)),
    max_size=30,
)


COUNT_AND_SUM = {"visits": agg.count(), "total": agg.sum()}


def cogrouped(builder: StreamsBuilder, inputs: dict[str, Any], windows: Any = None) -> Any:
    """Return a cogroup of topics, each with its function or aggregates."""
    found: Any = None
    for topic, given_ in inputs.items():
        grouped = builder.stream(topic).group_by_key()
        found = grouped.cogroup(given_) if found is None else found.cogroup(grouped, given_)
    return found if windows is None else found.windowed_by(windows)


def noted(topic: str) -> Callable[[Any, Any, Any], Any]:
    return lambda _key, value, events: [*events, [topic, value]]


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("cache", CACHES)
@settings(max_examples=examples(40), deadline=None)
@given(events=EVENTS)
def test_rows_have_the_results_of_all_streams(kind: str, cache: int, events: list[Any]) -> None:
    builder, windows = StreamsBuilder(), WINDOWS[kind]
    merger = (lambda _key, one, other: one + other,) if kind == "sessions" else ()
    cogrouped(builder, {topic: noted(topic) for topic in TOPICS}, windows).aggregate(list, *merger, store="lists")
    table = cogrouped(builder, TOPICS, windows).aggregate(store="store")
    table.to_stream().to("out")
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache}) as driver:
        for topic, key, value, at in events:
            driver.create_input_topic(topic).pipe_input(key, value, at)
        expected = {key: of_topics(found) for key, found in rows(driver, "lists").items()}
        assert rows(driver, "store") == expected
        sent = dict(driver.create_output_topic("out").read_key_values_to_list())
        assert {key: row for key, row in sent.items() if row is not None} == expected
        assert restored(driver) == expected


def of_topics(events: list[Any]) -> dict[str, Any]:
    """Return the expected row of [topic, value] pairs."""
    by_topic = {topic: model([value for found, value in events if found == topic]) for topic in TOPICS}
    return {f"{topic}_{name}": result for topic, row in by_topic.items() for name, result in row.items()}


def test_a_stream_updates_its_own_part_of_the_row() -> None:
    builder = StreamsBuilder()
    orders = {"orders": agg.count(), "total": agg.sum("amount")}
    table = cogrouped(builder, {"orders": orders, "visits": {"visits": agg.count()}}).aggregate(store="store")
    table.to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("visits").pipe_input("ann", "/")
        driver.create_input_topic("orders").pipe_input("ann", {"amount": 30})
        assert driver.create_output_topic("out").read_values_to_list() == [
            {"orders": 0, "total": 0, "visits": 1},
            {"orders": 1, "total": 30, "visits": 1},
        ]
        log = driver.create_output_topic(CHANGELOG, value_serde=Serdes.string())
        assert log.read_values_to_list()[-1] == '{"orders":1,"total":30,"visits":1}'


def test_aggregates_that_are_added_for_the_same_stream_are_kept() -> None:
    builder = StreamsBuilder()
    orders, visits = (builder.stream(topic).group_by_key() for topic in ("orders", "visits"))
    twice = orders.cogroup({"n": agg.count()}).cogroup(visits, {"visits": agg.count()})
    twice.cogroup(orders, {"total": agg.sum()}).aggregate().to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("orders").pipe_input("ann", 30)
        driver.create_input_topic("visits").pipe_input("ann", "/")
        rows_sent = driver.create_output_topic("out").read_values_to_list()
        assert rows_sent[-1] == {"n": 1, "total": 30, "visits": 1}


def test_the_aggregator_of_a_stream_can_be_sent_to_another_process() -> None:
    functions, aggregators = cogrouped_functions(MaterializedInternal(None), [{"n": agg.count()}, COUNT_AND_SUM], None)
    states = functions.initializer()
    for number, aggregator in enumerate(pickle.loads(pickle.dumps(aggregators))):
        assert aggregator("key", 7, states) == [(1, 0, 0), (0, 1, 7)][number]


def test_a_dict_that_changes_later_has_no_effect() -> None:
    builder, given_ = StreamsBuilder(), {"n": agg.count()}
    together = builder.stream("orders").group_by_key().cogroup(given_)
    given_["total"] = agg.count()
    together.aggregate().to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("orders").pipe_input("ann", 30)
        assert driver.create_output_topic("out").read_value() == {"n": 1}


def test_final_rows_of_windows_are_results() -> None:
    builder = StreamsBuilder()
    inputs = {"orders": {"mean": agg.mean()}, "visits": {"visits": agg.count()}}
    for name, windows in (("tumbling", TimeWindows(10)), ("sessions", SessionWindows(3))):
        table = cogrouped(builder, inputs, windows).aggregate(name=name)
        table.suppress(Suppressed.until_window_closes()).to_stream().to(name)
    with TopologyTestDriver(builder.build()) as driver:
        for topic, value, at in (("orders", 1, 1), ("visits", "/", 2), ("orders", 2, 3), ("visits", "/", 14)):
            driver.create_input_topic(topic).pipe_input("k", value, at)
        for name in ("tumbling", "sessions"):
            assert driver.create_output_topic(name).read_values_to_list() == [{"mean": 1.5, "visits": 1}]


def test_an_error_names_the_aggregate_and_the_stream() -> None:
    builder = StreamsBuilder()
    table = cogrouped(builder, {"orders": {"total": agg.sum()}, "visits": {"visits": agg.count()}}).aggregate()
    table.to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("visits").pipe_input("ann", "/")
        with pytest.raises(Exception, match=r"topic=orders.* total: sum\(\): a number is needed, not 'x'"):
            driver.create_input_topic("orders").pipe_input("ann", "x")


COUNT, TOTAL = {"n": agg.count()}, {"total": agg.sum()}


def add(_key: object, value: Any, total: Any) -> Any:
    return total + value


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda one, other: one.cogroup(agg.count()), r"needs a name for each aggregate, such as \{'n': count\(\)\}"),
        (lambda one, other: one.cogroup({}), r"cogroup\(\) needs at least one aggregate"),
        (lambda one, other: one.cogroup({"n": len}), r"cogroup\(\) takes aggregates of penstock.agg by name"),
        (lambda one, other: one.cogroup(COUNT).cogroup(other, COUNT), "already an aggregate named 'n'"),
        (lambda one, other: one.cogroup(COUNT).cogroup(one, COUNT), "already an aggregate named 'n'"),
        (lambda one, other: one.cogroup(COUNT).cogroup(other, add), "functions for all streams or aggregates"),
        (lambda one, other: one.cogroup(add).cogroup(other, COUNT), "functions for all streams or aggregates"),
        (lambda one, other: one.cogroup(COUNT).aggregate(int), r"with aggregates of penstock.agg takes no functions"),
        (
            lambda one, other: one.cogroup(COUNT).windowed_by(SessionWindows(5)).aggregate(session_merger=add),
            "with aggregates of penstock.agg takes no functions",
        ),
        (lambda one, other: one.cogroup(add).aggregate(COUNT), r"takes no aggregates .*: give them to cogroup\(\)"),
        (lambda one, other: one.cogroup(add).aggregate(agg.sum()), r"takes no aggregates .*: give them to cogroup\(\)"),
        (lambda one, other: one.cogroup(add).aggregate(), "initializer must be a function, got None"),
        (lambda one, other: one.cogroup(add).windowed_by(TimeWindows(5)).aggregate(), "initializer must be a function"),
        (
            lambda one, other: one.cogroup(add).windowed_by(SessionWindows(5)).aggregate(int),
            "session_merger must be a function, got None",
        ),
    ],
)
def test_a_wrong_declaration_is_refused(declare: Callable[[Any, Any], Any], said: str) -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match=said):
        declare(builder.stream("one").group_by_key(), builder.stream("other").group_by_key())
