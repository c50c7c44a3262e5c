"""penstock sql: a SELECT over the stores of a running application, as the user types it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.cli.running_application import EXIT_NOT_RUNNING
from tests.command_stage import APP, PARTITIONS, Stage, running
from tests.waiting import eventually

pytestmark = pytest.mark.broker
#: The same with a store of plain JSON.
APP_WITH_JSON = APP.replace(
    "    return",
    """    objects = words.map_values(lambda value: {"n": 1, "text": value}, name="as-objects")
    objects.to_table(store="objects", key_serde=Serdes.string(), value_serde=Serdes.json())
    return""",
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Stage]:
    with running(tmp_path_factory.mktemp("stage"), bootstrap_servers, app=APP_WITH_JSON) as stage:
        stage.produce(*((f"k{number}", "x") for number in range(20)), ("k7", "x"))
        eventually(lambda: stage.json("status")["totals"]["records_processed"] == 21)
        yield stage


def test_a_query_shows_a_table_or_json(stage: Stage) -> None:
    shown = stage.run("sql", "select key, value, null as nothing from counts where key in ('k7', 'k8') order by key")
    assert shown.exit_code == 0, shown.output
    assert [line.split() for line in shown.stdout.splitlines() if line.strip().startswith("k")] == [
        ["key", "value", "nothing"],
        ["k7", "2"],
        ["k8", "1"],
    ]
    found = stage.json("sql", "select count(*) as n, sum(value) as total from counts")
    assert (found["columns"], found["rows"]) == (["n", "total"], [[20, "21"]])
    assert sum(offset + 1 for offset in found["positions"]["counts"][stage.source].values()) == 21
    assert len(found["positions"]["counts"][stage.source]) <= PARTITIONS
    empty = stage.run("sql", "select key from counts where key = 'no'", "--isolation", "read_committed")
    assert empty.stdout == "No rows: key\n"


def test_the_columns_of_plain_json_can_be_given(stage: Stage) -> None:
    query = "select * from objects where key = 'k7'"
    assert stage.json("sql", query)["columns"] == ["key", "n", "text", "timestamp"]
    given = stage.json("sql", query, "--schema", "objects=n:double, later:string", "--schema", "counts=value:int32")
    assert given["columns"] == ["key", "timestamp", "n", "later"]
    assert given["rows"][0][2:] == [1.0, None]
    whole = stage.json("sql", "select value->>'$.n' as n from objects limit 1", "--schema", "objects=value:string")
    assert whole["rows"] == [["1"]]
    for schema, message in (
        ("objects=n:no such type", "The columns of objects have a type that cannot be a column"),
        ("objects=text:int64", "objects"),
        ("objects", "'objects' is not STORE=COLUMN:TYPE"),
        ("objects=n", "'objects=n' is not STORE=COLUMN:TYPE"),
        ("=n:int64", "'=n:int64' is not STORE=COLUMN:TYPE"),
    ):
        failed = stage.run("sql", query, "--schema", schema)
        assert failed.exit_code != 0, schema
        assert message in failed.output


def test_a_query_that_cannot_be_run_is_one_line(stage: Stage) -> None:
    for query, message in (
        ("select * from nix", "The topology has no state store 'nix'; it has: counts, objects."),
        ("delete from counts", "Only SELECT can be run: stores are read, not written."),
    ):
        failed = stage.run("sql", query)
        assert failed.exit_code == 1
        assert message in failed.output
    late = stage.run("sql", "select 1", "--timeout", "0.001")
    assert "has not ended within 0.001 s" in late.output


def test_an_application_that_does_not_run_is_said(stage: Stage) -> None:
    failed = stage.run("sql", "select 1", "-c", "application.id=other")
    assert failed.exit_code == EXIT_NOT_RUNNING
