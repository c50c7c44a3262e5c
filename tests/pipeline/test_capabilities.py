"""The capability report: it has every operator, and refuses unsupported ones before anything starts."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import penstock.topology.operators as operators
from penstock import (
    AutoOffsetReset,
    EmitStrategy,
    JoinWindows,
    Processor,
    Record,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
    TopologyError,
)
from penstock.cli import cli
from penstock.pipeline.queries.capabilities import OPERATORS, Capability, CapabilityReport, report_capabilities
from penstock.supervisor.exit_codes import ExitCode
from penstock.topology.operators import stream_join
from penstock.topology.operators.operator import Operator
from tests.custom_stores import tally_builder, tallying
from tests.own_stores import OwnSuppliers

HERE = Path(__file__).parent
STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


def report(topology: Topology, **config: Any) -> CapabilityReport:
    given = {"application.id": "a", **{name.replace("_", "."): value for name, value in config.items()}}
    return report_capabilities(topology, StreamsConfig(given))


def of(found: CapabilityReport, node: str) -> str:
    return next(str(finding) for finding in found.findings if node in finding.node)


def concrete_operators() -> Iterator[type]:
    for module in pkgutil.iter_modules(operators.__path__):
        found = importlib.import_module(f"{operators.__name__}.{module.name}")
        for _, each in inspect.getmembers(found, inspect.isclass):
            if issubclass(each, Operator) and not each.__subclasses__() and each is not Operator:
                yield each


def test_the_table_has_exactly_all_operators() -> None:
    assert {each.__name__ for each in concrete_operators()} == set(OPERATORS)


def counting() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", **STRINGS)
    stream.select_key(lambda key, value: value).group_by_key().count(store="counts").to_stream().to("out")
    return builder.build()


def test_a_cached_aggregation_has_fewer_updates_and_the_report_says_why() -> None:
    found = report(counting())
    assert [(each.number, each.stateless) for each in found.subtopologies] == [(0, True), (1, False)]
    assert "coarser, one update per key and micro-batch" in of(found, "KSTREAM-AGGREGATE")
    assert found.capability is Capability.COARSER


def test_without_a_cache_it_is_identical() -> None:
    found = report(counting(), statestore_cache_max_bytes=0)
    assert found.capability is Capability.IDENTICAL
    found.check()


@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
def test_the_report_says_that_rows_of_closed_windows_wait_for_the_wall_clock(kind: str) -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left", **STRINGS), builder.stream("right", **STRINGS)
    windows = JoinWindows.of_time_difference_and_grace(timedelta(seconds=5), timedelta(0))
    getattr(left, kind)(right, lambda one, other: f"{one}{other}", windows).to("out")
    topology = builder.build()
    found = report(topology)
    assert "coarser, results of closed windows are emitted when a record arrives" in str(found)
    without = StreamsConfig({"application.id": "a", stream_join.EMIT_INTERVAL_KEY: 0})
    assert report_capabilities(topology, without).capability is Capability.IDENTICAL


def test_the_report_says_so_for_final_results_too() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **STRINGS).group_by_key()
    windows = TimeWindows(timedelta(seconds=5), grace=timedelta(0))
    grouped.windowed_by(windows).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count(store="counts")
    found = of(report(builder.build()), "KSTREAM-AGGREGATE")
    assert "results of closed windows are emitted when a record arrives" in found


class _Echo(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


def test_a_users_processor_runs_by_task_and_is_coarser() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **STRINGS).process(_Echo).to("out")
    found = report(builder.build())
    assert not found.subtopologies[0].stateless
    assert "attributes of your object live for one micro-batch" in of(found, "KSTREAM-PROCESSOR")


def test_the_refusal_of_a_global_table_says_what_to_do_instead() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("names", **STRINGS)
    builder.stream("in", **STRINGS).join(table, lambda key, value: key, lambda left, right: left).to("out")
    with pytest.raises(TopologyError, match=r"cannot run on Spark.*global stores: use a table"):
        report(builder.build()).check()


def test_a_custom_store_is_refused() -> None:
    topology = tallying("in", "out", tally_builder())
    with pytest.raises(TopologyError, match="KSTREAM-PROCESSVALUES-0000000001: refused, on Spark stores are opened"):
        report(topology).check()


def test_an_operator_over_a_custom_store_is_refused() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **STRINGS).group_by_key().count(store="counts")
    report(builder.build()).check()
    with pytest.raises(TopologyError, match="KSTREAM-AGGREGATE-0000000001: refused, on Spark stores are opened"):
        report(builder.build(), dsl_store_suppliers_class=OwnSuppliers).check()


def test_exactly_once_is_one_transaction_per_micro_batch() -> None:
    found = report(counting(), processing_guarantee="exactly_once_v2")
    found.check()
    assert "processing.guarantee=exactly_once_v2: coarser, what a task sends in a micro-batch is one" in str(found)


def test_a_start_by_duration_is_refused() -> None:
    builder = StreamsBuilder()
    builder.stream("in", offset_reset=AutoOffsetReset.by_duration(1000), **STRINGS).to("out")
    with pytest.raises(TopologyError, match="KSTREAM-SOURCE-0000000000: refused, Spark starts at the earliest"):
        report(builder.build()).check()


def test_plan_prints_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    result = CliRunner().invoke(cli, ["plan", "spark_app:topology", "--engine", "spark", "-c", "application.id=a"])
    assert result.exit_code == 0, result.output
    assert "Sub-topology 0: stateless, by Arrow batches (mapInArrow)" in result.output
    assert result.output.rstrip().endswith("In all: coarser")


def test_the_report_of_a_refused_topology_ends_with_the_error_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    given = ["plan", "spark_app:refused", "--engine", "spark", "-c", "application.id=a"]
    for options in ([], ["--json"]):
        result = CliRunner().invoke(cli, [*given, *options])
        assert (result.exit_code, "global stores names" in result.output) == (ExitCode.TOPOLOGY, True), result.output


def test_an_unsupported_topology_fails_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.spark_streams.require_pyspark", lambda: None)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr("penstock.pipeline.spark_streams.session_for", lambda *_: pytest.fail("Spark was started"))
    options = ["-c", "application.id=a", "-c", "bootstrap.servers=127.0.0.1:1"]
    result = CliRunner().invoke(cli, ["run", "spark_app:refused", "--engine", "spark", *options])
    assert result.exit_code == 3
    assert "The topology cannot run on Spark. global stores names" in result.output


def windowed() -> Topology:
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_and_grace(timedelta(seconds=1), timedelta(0))
    builder.stream("in", **STRINGS).group_by_key().windowed_by(windows).count(store="counts").to_stream().print()
    return builder.build()


def test_in_buckets_a_count_is_identical_and_a_windowed_one_names_its_stream_time() -> None:
    settings = {"penstock_spark_buckets": 4, "statestore_cache_max_bytes": 0}
    assert report(counting(), **settings).capability is Capability.IDENTICAL
    assert [each.buckets for each in report(counting(), **settings).subtopologies] == [1, 4]
    found = report(windowed(), **settings)
    assert "coarser, stream time, which decides lateness and when windows close, is that of" in of(found, "AGGREGATE")
    assert "Sub-topology 0: by key, in 4 buckets (transformWithState)" in str(found)
    assert "identical" in of(report(windowed(), **{**settings, "penstock_spark_buckets": 1}), "AGGREGATE")


def test_in_buckets_the_output_order_differs() -> None:
    builder = StreamsBuilder()
    builder.table("in", **STRINGS).group_by(lambda key, value: (value, key), **STRINGS).count().to_stream().to("out")
    in_order, in_buckets = report(builder.build()), report(builder.build(), penstock_spark_buckets=4)
    assert "identical" in of(in_order, "SINK")
    assert "may be forwarded in another order" in of(in_buckets, "SINK")


def test_in_buckets_several_topics_have_their_own_order() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", **STRINGS), builder.table("right", **STRINGS)
    left.join(right, lambda one, other: one + other).to_stream().to("out")
    in_order, in_buckets = report(builder.build()), report(builder.build(), penstock_spark_buckets=4)
    assert "identical" in of(in_order, "SOURCE")
    assert "may find other matches" in of(in_buckets, "SOURCE")


def test_user_objects_that_may_see_all_keys_keep_a_partition_in_one_task() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **STRINGS).process(_Echo).to("out")
    assert report(builder.build(), penstock_spark_buckets=4).subtopologies[0].buckets == 1
