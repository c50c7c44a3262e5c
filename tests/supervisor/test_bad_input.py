"""User errors, with the real command, real processes and a real broker: each gives one clear error."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from broker_stage import STATELESS, App, last_line, produce, read_until, wait_for_line

from penstock.supervisor.exit_codes import ExitCode
from tests.free_port import free_port
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    ("reference", "text", "message"),
    [
        ("nowhere:topology", "", "No module named 'nowhere'. Is the name right, and is"),
        ("user_app:nothing", "", "Is the part after the colon the name of a topology in user_app?"),
        ("user_app:topology", "topology = 42", "Expected a Topology, a StreamsBuilder, or a function that returns one"),
        ("user_app:topology", "raise RuntimeError('no license')", "RuntimeError: no license ("),
        ("user_app:topology", "def topology(:", "SyntaxError: invalid syntax (user_app.py, line 3)"),
        ("user_app:topology", "import sys; sys.exit('not me')", "SystemExit: not me ("),
        (
            "user_app:topology",
            """
            def topology():
                builder = StreamsBuilder()
                flights = builder.stream("in", key_serde=TEXT, value_serde=TEXT)
                flights.peek(print, name="twin").filter(lambda key, value: True, name="twin").to("out")
                return builder.build()
            """,
            "Processor twin is already added; operators need different names",
        ),
        (
            "user_app:topology",
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "ended with SIGSEGV before its stream thread started",
        ),
        ("user_app:topology", "import os; os._exit(7)", "ended with exit code 7 before its stream thread started"),
    ],
)
def test_the_last_line_names_what_cannot_be_loaded_and_nothing_is_retried(
    app: App, reference: str, text: str, message: str
) -> None:
    code, log = app.module(text).fails(reference)
    assert code == ExitCode.TOPOLOGY, log
    assert last_line(log).startswith("Error: ")
    assert message in last_line(log)
    assert "is replaced" not in log


def test_the_traceback_of_a_failing_module_has_only_the_users_lines(app: App) -> None:
    code, log = app.module("def helper():\n    return {}['carrier']\nhelper()").fails()
    assert code == ExitCode.TOPOLOGY
    shown = log.split("Traceback (most recent call last):")[1].split("KeyError")[0]
    assert "return {}['carrier']" in shown
    assert "penstock" not in shown.replace(str(app.folder), "")


def test_the_error_names_a_missing_source_topic(app: App) -> None:
    app.module(STATELESS.replace("'in'", "'no-such-topic'"))
    code, log = app.fails()
    assert code == ExitCode.FAILED
    assert "MissingSourceTopicError: Missing source topics: no-such-topic. Create them before" in last_line(log)


def test_joined_topics_need_equal_partition_counts(app: App, make_topic: Callable[..., str]) -> None:
    four, two = make_topic("four", 4), make_topic("two", 2)
    app.module(
        f"""
        topology = StreamsBuilder()
        table = topology.table({two!r}, key_serde=TEXT, value_serde=TEXT, store="table")
        topology.stream({four!r}, key_serde=TEXT, value_serde=TEXT).join(table, lambda a, b: a).foreach(print)
        """
    )
    code, log = app.fails()
    assert code == ExitCode.FAILED
    assert f"Topics not co-partitioned: {four} has 4, {two} has 2." in last_line(log)


@pytest.mark.slow
def test_an_unreachable_broker_is_logged_every_few_seconds_until_the_timeout(app: App) -> None:
    address = f"127.0.0.1:{free_port()}"
    code, log = app.module(STATELESS).fails(
        threads=1, bootstrap_servers=address, max_poll_interval_ms="24000", penstock_worker_stall_timeout_ms="60000"
    )
    assert code == ExitCode.FAILED
    told = [line for line in log.splitlines() if "Topics could not be made ready for" in line]
    assert len(told) >= 2  # within the 12 s
    assert all(f"the Kafka cluster at {address} does not answer" in line for line in told)
    assert "within 12000 ms, half of max.poll.interval.ms" in last_line(log)
    assert "Check bootstrap.servers" in last_line(log)


@pytest.mark.parametrize("moment", ["Started ", "Starting", "(Re-)joining"])
def test_ctrl_c_does_not_wait_for_an_unreachable_broker(app: App, moment: str) -> None:
    process = app.module(STATELESS).start(bootstrap_servers=f"127.0.0.1:{free_port()}")
    before = wait_for_line(process, moment)
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, before + log
    assert "State transition from PENDING_SHUTDOWN to NOT_RUNNING" in log
    assert "SIGABRT" not in log


def test_the_error_names_an_unknown_key_and_a_wrong_type(app: App) -> None:
    app.module(STATELESS)
    code, log = app.fails(num_stream_thread="2")
    assert code == ExitCode.USAGE
    assert "Unknown configuration key 'num.stream.thread' (-c). Did you mean num.stream.threads?" in last_line(log)
    code, log = app.fails(commit_interval_ms="soon")
    assert code == ExitCode.USAGE
    assert "commit.interval.ms='soon'" in last_line(log)
    assert "whole number of milliseconds" in last_line(log)


def test_the_error_names_a_setting_that_the_client_refuses(app: App) -> None:
    code, log = app.module(STATELESS).fails(consumer_fetch_min_byte="1")
    assert code == ExitCode.TOPOLOGY
    assert 'No such configuration property: "fetch.min.byte"' in last_line(log)


def test_a_second_instance_with_the_same_state_directory_is_refused(app: App, make_topic: Callable[..., str]) -> None:
    topic = make_topic("in")
    app.module(f"topology = StreamsBuilder()\ntopology.stream({topic!r}, key_serde=TEXT, value_serde=TEXT).peek(print)")
    first = app.start(threads=1)
    wait_for_line(first, "State transition from REBALANCING to RUNNING")
    code, log = app.fails(threads=1)
    assert code == ExitCode.LOCKED
    assert "another instance of this application runs in the state directory" in last_line(log)
    assert f"held by process {first.pid}" in last_line(log)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == ExitCode.OK


def test_the_error_names_an_unusable_state_directory(app: App) -> None:
    (app.folder / "file").write_text("")
    code, log = app.module(STATELESS).fails(state_dir=str(app.folder / "file" / "state"))
    assert code == ExitCode.USAGE
    assert "couldn't be created" in last_line(log)
    assert "check state.dir" in last_line(log)
    code, log = app.fails(state_dir="/proc/penstock")  # where even root cannot write
    assert code == ExitCode.USAGE
    assert "check state.dir" in last_line(log)


DIVIDING = """
topology = StreamsBuilder()
numbers = topology.stream({source!r}, key_serde=TEXT, value_serde=JSON)
numbers.map_values(lambda value: 12 // value, name="divide").to({sink!r}, key_serde=TEXT, value_serde=JSON)
"""


def test_an_unreadable_record_fails_or_is_skipped_as_configured(
    app: App, bootstrap_servers: str, make_topic: Callable[..., str]
) -> None:
    source, sink = make_topic("in"), make_topic("out")
    app.module(DIVIDING.format(source=source, sink=sink))
    produce(bootstrap_servers, source, "3", "{no json", "4")
    code, log = app.fails(threads=1)
    assert code == ExitCode.FAILED
    assert f"Deserialization error in {source}-0 at offset 1 (source KSTREAM-SOURCE-0000000000)" in last_line(log)
    assert "to skip such records set deserialization.exception.handler=log_and_continue" in last_line(log)

    process = app.start(threads=1, deserialization_exception_handler="log_and_continue")
    log = wait_for_line(process, "the record is dropped")
    assert f"topic={source} partition=0 offset=1" in log
    assert set(read_until(bootstrap_servers, sink, "3")) == {"4", "3"}
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK


@pytest.mark.parametrize("raises", ["sys.exit()", "sys.exit(0)", "KeyboardInterrupt"])
def test_the_error_names_a_function_that_exits_and_its_record(
    app: App, bootstrap_servers: str, make_topic: Callable[..., str], raises: str
) -> None:
    source = make_topic("in")
    body = raises if "exit" in raises else f"raise {raises}"
    app.module(
        f"""
        import sys
        def ends(_key, value):
            if value == "0":
                {body}
        topology = StreamsBuilder()
        topology.stream({source!r}, key_serde=TEXT, value_serde=TEXT).foreach(ends, name="ends")
        """
    )
    produce(bootstrap_servers, source, "3", "0", "4")
    code, log = app.fails(threads=1)
    assert code == ExitCode.FAILED
    kind = {"sys.exit()": "SystemExit: ", "sys.exit(0)": "SystemExit: 0: "}.get(raises, "KeyboardInterrupt: ")
    where = f"taskId=0_0, processor=ends, topic={source}, partition=0, offset=1, key='k1'"
    assert last_line(log) == f"Error: {kind}Exception caught in process. {where}"


def test_the_error_names_a_function_that_raises_and_its_record_and_nothing_is_lost(
    app: App, bootstrap_servers: str, make_topic: Callable[..., str]
) -> None:
    source, sink = make_topic("in"), make_topic("out")
    app.module(DIVIDING.format(source=source, sink=sink))
    produce(bootstrap_servers, source, "3", "0", "4")
    code, log = app.fails(threads=1)
    assert code == ExitCode.FAILED
    assert (
        f"processor=divide, topic={source}, partition=0, offset=1, key='k1': "
        "ZeroDivisionError: integer division or modulo by zero"
    ) in last_line(log)
    assert 'numbers.map_values(lambda value: 12 // value, name="divide")' in log  # the user's line in the traceback

    # After the fix it continues where it was: neither the failed record nor the one behind it is missing.
    app.module(DIVIDING.format(source=source, sink=sink).replace("12 // value", "12 // (value or 1)"))
    process = app.start(threads=1)
    wait_for_line(process, "State transition from REBALANCING to RUNNING")
    assert read_until(bootstrap_servers, sink, "3")[-2:] == ["12", "3"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK
