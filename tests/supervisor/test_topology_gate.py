"""A topology that does not fit the earlier one's state is refused; state that must be rebuilt is deleted."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest
from broker_stage import App, Counting, wait_for_line
from click.testing import CliRunner

from penstock import Serdes, StreamsBuilder
from penstock.cli import cli
from penstock.statestore.directory.state_directory import FileLock
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.source.topology_gate import FACTS_FILE_NAME, admit
from penstock.supervisor.source.topology_source import TopologyLoadError
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ProcessorStateError
from penstock.topology.graph.topology import Topology
from tests.waiting import PATIENCE_SECONDS

COUNTING = """
topology = StreamsBuilder()
{before}
stream = topology.stream({source!r}, key_serde=TEXT, value_serde=TEXT)
stream.group_by_key().count(store={store!r}).to_stream().to({sink!r}, key_serde=TEXT, value_serde=Serdes.int64())
"""


def counting_topology(store: str = "counts", before: bool = False) -> Topology:
    builder, text = StreamsBuilder(), Serdes.string()
    if before:
        builder.stream("other", key_serde=text, value_serde=text).to("elsewhere")
    builder.stream("in", key_serde=text, value_serde=text).group_by_key().count(store=store)
    return builder.build()


def config(folder: Path, **values: Any) -> StreamsConfig:
    given = {key.replace("_", "."): value for key, value in values.items()}
    return StreamsConfig({"application.id": "app", "state.dir": str(folder), **given})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The files of a store of the first topology, which has been accepted."""
    admit(counting_topology(), config(tmp_path))
    path = tmp_path / "app" / "0_0" / "stores" / "counts"
    path.mkdir(parents=True)
    (path / "CURRENT").write_text("a file of RocksDB")
    (path.parent / "other").mkdir()
    return path


def test_an_incompatible_topology_is_refused_each_time(tmp_path: Path, store: Path) -> None:
    earlier = (tmp_path / "app" / FACTS_FILE_NAME).read_text()
    for _ in range(2):
        with pytest.raises(TopologyLoadError, match="counts: the store is now called totals"):
            admit(counting_topology("totals"), config(tmp_path))
    assert (tmp_path / "app" / FACTS_FILE_NAME).read_text() == earlier
    assert store.exists()
    admit(counting_topology(), config(tmp_path))


def test_an_accepted_topology_becomes_the_reference(
    tmp_path: Path, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        admit(counting_topology("totals"), config(tmp_path, penstock_topology_changes="accept"))
    assert "The topology has changed (REFUSE): counts" in caplog.text
    admit(counting_topology("totals"), config(tmp_path))


def test_a_store_to_rebuild_is_deleted_and_nothing_else(tmp_path: Path, store: Path) -> None:
    admit(counting_topology(before=True), config(tmp_path))
    assert not store.exists()
    assert (store.parent / "other").exists()


def test_nothing_is_deleted_under_a_running_task(tmp_path: Path, store: Path) -> None:
    with (
        FileLock(tmp_path / "app" / ".locks" / "0_0", ""),
        pytest.raises(TopologyLoadError, match="Restart the whole application"),
    ):
        admit(counting_topology(before=True), config(tmp_path))
    assert store.exists()
    admit(counting_topology(before=True), config(tmp_path))


def test_a_damaged_description_is_reported(tmp_path: Path, store: Path) -> None:
    (tmp_path / "app" / FACTS_FILE_NAME).write_text("[]")
    with pytest.raises(ProcessorStateError, match="Delete it; the next start recreates it"):
        admit(counting_topology(), config(tmp_path))


def test_plan_without_an_earlier_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gate_app.py").write_text("from penstock import StreamsBuilder\ntopology = StreamsBuilder()\n")
    monkeypatch.syspath_prepend(tmp_path)
    options = ["-c", "application.id=app", "-c", f"state.dir={tmp_path}"]
    result = CliRunner().invoke(cli, ["plan", "gate_app:topology", *options], prog_name="penstock")
    assert result.exit_code == ExitCode.USAGE
    assert "There is nothing to compare with" in result.output


def plan(app: App, *options: str) -> tuple[int, str]:
    settings = [part for key, value in app.config.items() for part in ("-c", f"{key}={value}")]
    result = CliRunner().invoke(cli, ["plan", "user_app:topology", *settings, *options], prog_name="penstock")
    return result.exit_code, result.output


def run_until_counted(app: App, counting: Counting) -> str:
    process = app.start()
    log = wait_for_line(process, "State transition from REBALANCING to RUNNING")
    counting.produce(1)
    counting.wait_for_all_counts()
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, log + rest
    return log


@pytest.mark.broker
@pytest.mark.slow
def test_three_versions_of_an_application(app: App, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first counts. The second would lose the counts. The third has them rebuilt and continues exactly."""
    monkeypatch.chdir(app.folder)
    monkeypatch.syspath_prepend(app.folder)
    app.config = {key: str(value) for key, value in counting.config.items()}
    names = {"source": counting.source, "sink": counting.sink}
    app.module(COUNTING.format(before="", store="counts", **names))
    run_until_counted(app, counting)
    state = Path(app.config["state.dir"]) / app.config["application.id"]

    app.module(COUNTING.format(before="", store="totals", **names), name="renamed")
    code, log = app.fails("renamed:topology")
    assert code == ExitCode.TOPOLOGY
    assert "counts: the store is now called totals" in log.splitlines()[-1]
    assert list(state.glob("*/stores/counts"))

    before = f"topology.stream({counting.sink!r}, key_serde=TEXT, value_serde=TEXT).filter(lambda k, v: False)"
    app.module(COUNTING.format(before=before, store="counts", **names))
    code, output = plan(app, "--json")
    assert (code, json.loads(output)["rebuild"]) == (ExitCode.OK, ["counts"])
    assert plan(app)[1].splitlines()[-1] == "Verdict: rebuild these stores: counts"
    log = run_until_counted(app, counting)
    assert "it does not fit the topology and is restored from its changelog" in log
    assert not list(state.glob("0_*/stores/counts"))
    assert list(state.glob("1_*/stores/counts"))
