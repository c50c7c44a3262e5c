"""state.dir as users treat it: relative, removed, or copied while the application runs."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from broker_stage import App, last_line, produce, read_table

from penstock.statestore.directory.state_directory import PROCESS_FILE_NAME
from penstock.supervisor.exit_codes import ExitCode
from tests.suspended import suspended
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker


@pytest.fixture
def counting_app(app: App, make_topic: Callable[..., str]) -> App:
    """Counts by key. It changes the working directory when it is imported."""
    app.topics = make_topic("in"), make_topic("out")
    source, sink = app.topics
    (app.folder / "elsewhere").mkdir()
    return app.module(
        f"""
        import os
        os.chdir("elsewhere")
        topology = StreamsBuilder()
        counts = topology.stream("{source}", key_serde=TEXT, value_serde=TEXT).group_by_key().count(store="counts")
        counts.to_stream().to("{sink}", value_serde=JSON)
        """
    )


def count(app: App, expected: str) -> None:
    """Send a record of k0 and wait for its count."""
    source, sink = app.topics
    produce(app.config["bootstrap.servers"], source, "x")
    eventually(lambda: read_table(app.config["bootstrap.servers"], sink) == {"k0": expected}, f"k0 counts {expected}")


def end(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    return log


@pytest.mark.parametrize("given", ["state", "~/state"])
def test_all_processes_use_the_same_state_directory(
    counting_app: App, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(counting_app.folder / "home"))
    process = counting_app.start(threads=1, state_dir=given)
    count(counting_app, "1")
    log = end(process)
    assert process.returncode == ExitCode.OK, log
    assert log.count("Set state.dir to a place that lasts") == 1
    application = Path(given.replace("~", "home"), counting_app.config["application.id"])
    assert sorted(counting_app.folder.glob(f"**/{PROCESS_FILE_NAME}")) == [
        counting_app.folder / application / PROCESS_FILE_NAME
    ]
    assert (counting_app.folder / application / "0_0" / "stores" / "counts").is_dir()
    assert list((counting_app.folder / "elsewhere").iterdir()) == []


@pytest.mark.slow
def test_a_removed_state_directory_is_reported_at_the_end(counting_app: App) -> None:
    counting_app.config["session.timeout.ms"] = (
        "6000"  # the process id is removed too, so there is a new member beside the old one
    )
    process = counting_app.start(threads=1)
    count(counting_app, "1")
    shutil.rmtree(counting_app.config["state.dir"])
    count(counting_app, "2")
    log = end(process)
    assert process.returncode == ExitCode.FAILED, log
    assert "its files were removed while it was open. The next start restores the missing data" in last_line(log)
    assert "is the disk full?" not in log
    process = counting_app.start(threads=1)
    count(counting_app, "3")
    log = end(process)
    assert process.returncode == ExitCode.OK, log


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_the_fenced_process_names_a_copied_state_directory(counting_app: App, protocol: str) -> None:
    first = counting_app.start(threads=1, group_protocol=protocol)
    count(counting_app, "1")
    state, copy = Path(counting_app.config["state.dir"]), counting_app.folder / "copy"
    with ExitStack() as stopped:  # meanwhile a commit would replace files
        for process in psutil.Process(first.pid).children(recursive=True):
            stopped.enter_context(suspended(process.pid))
        shutil.copytree(state, copy, ignore=shutil.ignore_patterns("*.sock"))
    second = counting_app.start(threads=1, state_dir=str(copy), group_protocol=protocol)
    eventually(lambda: any(one.poll() is not None for one in (first, second)), "one of them is fenced")
    fenced, other, at = (first, second, state) if first.poll() is not None else (second, first, copy)
    _, log = fenced.communicate(timeout=PATIENCE_SECONDS)
    end(other)
    assert fenced.returncode == ExitCode.FAILED, log
    file = at / counting_app.config["application.id"] / PROCESS_FILE_NAME
    assert f"This id is made from {file}: was state.dir copied while this host runs the application?" in last_line(log)
    assert "group.instance.id?" not in log
