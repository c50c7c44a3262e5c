"""penstock topic as users run it: real processes, pipes and a terminal, on the broker of the run."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import Serdes
from penstock.cli import cli
from penstock.cli.topic_lines import json_line
from penstock.topology.errors import SerializationError
from penstock.topology.records import RawRecord
from penstock.workers.queries.record_lines import Record, TopicSerdes, read_line
from tests.clients.test_opening import silent
from tests.conftest import MakeTopic
from tests.topics import delete_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
ROOT = Path(__file__).resolve().parent.parent
PENSTOCK = [sys.executable, "-m", "penstock.cli", "topic"]


@pytest.fixture
def topic(bootstrap_servers: str) -> Callable[..., Result]:
    """Run a command of ``penstock topic`` on the broker of the run."""

    def run(*arguments: str, stdin: str | bytes | None = None, servers: str = bootstrap_servers) -> Result:
        runner = CliRunner(env={"PENSTOCK_CONFIG": None, "PENSTOCK_BOOTSTRAP_SERVERS": servers})
        return runner.invoke(cli, ["topic", *arguments], stdin, prog_name="penstock")

    return run


@contextmanager
def process(
    bootstrap_servers: str, *arguments: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A command that keeps running; it is killed at the end of the block."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PENSTOCK_BOOTSTRAP_SERVERS": bootstrap_servers}
    environment.pop("PENSTOCK_CONFIG", None)
    started = subprocess.Popen(
        [*PENSTOCK, *arguments],
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# -- create, list


def test_topics_are_created_and_listed(
    topic: Callable[..., Result], unique_name: Callable[[str], str], admin: AdminClient
) -> None:
    first, second = unique_name("a"), unique_name("b")
    try:
        created = topic("create", first, second, "--partitions", "3", "--set", "cleanup.policy=compact")
        assert (created.exit_code, created.stdout) == (0, f"Created {first}.\nCreated {second}.\n")
        assert topic("produce", first, stdin=lines({"key": "k", "value": 1})).exit_code == 0, "it can be used at once"
        again = topic("create", first)
        assert again.exit_code == 1
        assert f"{first}: exists already on " in again.stderr
        assert topic("create", first, "--if-not-exists").stdout == f"{first} exists and is left as it is.\n"
        listed = {row["topic"]: row for row in json.loads(topic("list", "--json").stdout)}
        assert listed[first] == {"topic": first, "partitions": 3, "replicas": 1, "records": 1}
        assert listed[second]["records"] == 0
        assert not [name for name in listed if name.startswith("__")]
        assert any(first in line for line in topic("list").stdout.splitlines())
    finally:
        delete_topics(admin, first, second)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("create", "no topic"), 1, "cannot create the topic no topic: "),
        (("create", "t", "--set", "cleanup.policy=sometimes"), 1, "sometimes"),
        (("create", "t", "--replicas", "9"), 1, "cannot create the topic t: "),
        (("create", "t", "--set", "compact"), 2, "'compact': expected KEY=VALUE"),
        (("create",), 2, "Missing argument 'TOPIC...'"),
        (("produce", "nowhere"), 1, "There is no topic nowhere on {servers}: .*`penstock topic create nowhere`"),
        (("consume", "nowhere"), 1, "There is no topic nowhere on {servers}: "),
        (("consume", "nowhere", "--value-serde", "int46"), 2, r"'int46' \(--value-serde\) is not valid"),
        (("produce", "t", "no-such-file"), 2, "no-such-file"),
    ],
)
def test_impossible_requests_give_errors_that_name_the_cause(
    topic: Callable[..., Result], bootstrap_servers: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = topic(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert re.search(said.format(servers=bootstrap_servers), result.stderr), result.stderr


def test_the_error_for_an_unreachable_broker_has_the_reason(
    topic: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.topics.TIMEOUT_SECONDS", 1.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = "{}:{}".format(*taken.getsockname())
        for command in (("list",), ("create", "t"), ("produce", "t"), ("consume", "t", "--follow")):
            result = topic(*command, servers=address)
            assert (result.exit_code, result.stdout) == (1, ""), result.output
            assert result.stderr.count("Connection refused") == 1, "once, not at each try"
            assert f"Error: No broker of {address} has answered within 1 s" in result.stderr
    result = CliRunner(env={"PENSTOCK_CONFIG": None}).invoke(cli, ["topic", "list"])
    assert result.exit_code == 2
    assert "bootstrap.servers" in result.stderr


#: Runs a command with a file in place of /etc/hosts.
IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
WITH_HOSTS = [*IN_NAMESPACE, "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']


def test_a_name_with_a_silent_address_can_be_used(
    make_topic: MakeTopic, bootstrap_servers: str, tmp_path: Path
) -> None:
    """librdkafka tries the addresses of a name in any order, so that each command runs several times."""
    port = int(bootstrap_servers.rpartition(":")[2])
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.2 several.test\n127.0.0.1 several.test\n127.0.0.1 localhost\n")
    with_hosts = [*WITH_HOSTS, str(hosts)]
    if shutil.which("unshare") is None or subprocess.run([*with_hosts, "true"], check=False).returncode:
        pytest.skip("this machine allows no mount namespaces")
    name, dead = make_topic("in"), make_topic("dead")
    servers = {"PENSTOCK_BOOTSTRAP_SERVERS": f"several.test:{port}", "PENSTOCK_APPLICATION_ID": "app"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **servers}
    environment.pop("PENSTOCK_CONFIG", None)
    commands = [["topic", "list"], ["topic", "consume", name], ["dlq", "list", "--topic", dead]] * 2
    with silent("127.0.0.2", port), ExitStack() as opened:
        running = [
            opened.enter_context(
                subprocess.Popen(
                    [*with_hosts, *PENSTOCK[:-1], *command],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for command in commands
        ]
        ended = [(started.communicate(timeout=PATIENCE_SECONDS)[0], started.returncode) for started in running]
    assert [code for _, code in ended] == [0] * len(commands), ended


# -- produce, consume


def test_records_survive_a_round_trip(topic: Callable[..., Result], make_topic: MakeTopic) -> None:
    name, copy = make_topic("in", partitions=3), make_topic("copy", partitions=3)
    records = [
        {"key": "JFK", "value": {"n": 1.5}, "headers": [["h", "7"], ["h", "0xff00"], ["none", None]], "timestamp": 5},
        {"key": None, "value": [1, "two"], "headers": {"one": "x"}, "timestamp": "1970-01-01T00:00:01+00:00"},
        {"key": "gone", "value": None},
        {"value": "a\tb\nc\u001b[31m"},
    ]
    produced = topic("produce", name, stdin=lines(*records).replace("\n", "\n\n", 1))
    assert (produced.exit_code, produced.stdout) == (0, "")
    assert produced.stderr == f"4 records written to {name}.\n"

    shown = topic("consume", name, "--json").stdout
    found = {str(row["value"]): row for row in map(json.loads, shown.splitlines())}
    assert len(found) == 4
    first = found[str({"n": 1.5})]
    assert (first["topic"], first["key"], first["timestamp"]) == (name, "JFK", 5)
    assert first["headers"] == [["h", "7"], ["h", "0xff00"], ["none", None]]
    assert found[str([1, "two"])]["timestamp"] == 1000
    assert found[str([1, "two"])]["headers"] == [["one", "x"]]
    assert found["None"]["key"] == "gone"

    assert topic("produce", copy, "--json", stdin=shown).stdout == f'{{"topic": "{copy}", "written": 4}}\n'
    copied = [json.loads(line) for line in topic("consume", copy, "--json").stdout.splitlines()]
    kept = ("key", "value", "headers", "timestamp")
    assert sorted(json.dumps([row[field] for field in kept]) for row in copied) == sorted(
        json.dumps([row[field] for field in kept]) for row in found.values()
    )


NUMBERS = st.integers() | st.decimals(allow_nan=False, allow_infinity=False).map(str).map(Decimal)
ANY_BYTES = st.none() | st.binary() | NUMBERS.map(lambda number: str(number).encode())
TIMES = st.integers(-1, 2**62)
HEADERS = st.lists(st.tuples(st.text(), st.none() | st.binary()))


@given(ANY_BYTES, ANY_BYTES, HEADERS, TIMES, st.sampled_from(["bytes", "json", "string", "int64", "float64"]))
@example(b"{}", b'{"n": 1}', [], 0, "json")
@example(b"k", b"{}", [], -1, "json")
@example(b"k", b"[" * 400 + b"]" * 400, [], 0, "json")
@example(b"k", b"1E-99999999999999999999", [], 0, "json")
@example(b"k", b"null", [("0x", b"0x00")], 0, "json")
@example(b"k", b"NaN", [("", None)], 0, "json")
@example(b"k", b"[123456789012345678901234567890, 0.1000000000000000055511151231257827]", [], 1, "json")
def test_a_json_line_has_every_byte_of_a_record(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int, serde: str
) -> None:
    """``consume --json | produce`` copies a topic."""
    serdes = TopicSerdes(Serdes.of("bytes"), Serdes.of(serde))
    message = RawRecord("in", 0, 7, timestamp, key, value, headers)
    try:
        line = json_line(message, serdes)  # type: ignore[arg-type]
    except SerializationError:
        return  # consume reports that the serde cannot read it
    assert read_line(line.encode(), "out", serdes) == Record(key, value, headers, timestamp)


def test_numbers_keep_all_their_digits() -> None:
    serdes = TopicSerdes(Serdes.of("json"), Serdes.of("json"))
    text = b"[123456789012345678901234567890,0.1000000000000000055511151231257827,1E+400,1.5,7]"
    assert read_line(b'{"value": ' + text + b"}", "in", serdes).value == text


def test_timestamp_zero_is_kept(topic: Callable[..., Result], make_topic: MakeTopic) -> None:
    """librdkafka replaces it by the current time."""
    name, copy = make_topic("in"), make_topic("copy")
    assert topic("produce", name, stdin=lines({"key": "a", "timestamp": 0})).exit_code == 0
    shown = topic("consume", name, "--json").stdout
    assert json.loads(shown)["timestamp"] == 0
    topic("produce", copy, stdin=shown)
    assert json.loads(topic("consume", copy, "--json").stdout)["timestamp"] == 0


@pytest.mark.parametrize("sender", ["auto", "librdkafka"])
def test_a_record_without_a_timestamp_keeps_none(
    topic: Callable[..., Result], make_topic: MakeTopic, sender: str
) -> None:
    name, copy = make_topic("in"), make_topic("copy")
    options = ("-c", f"penstock.sender={sender}")
    assert topic("produce", name, *options, stdin=lines({"key": "a", "timestamp": -1}, {"key": "b"})).exit_code == 0
    shown = topic("consume", name, "--json").stdout
    first, second = map(json.loads, shown.splitlines())
    assert first["timestamp"] == -1 < second["timestamp"]
    assert topic("produce", copy, *options, stdin=shown).exit_code == 0
    copied = [json.loads(line)["timestamp"] for line in topic("consume", copy, "--json").stdout.splitlines()]
    assert copied == [-1, second["timestamp"]]


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_the_error_names_a_record_that_is_too_deep_to_be_shown(
    topic: Callable[..., Result], make_topic: MakeTopic, options: tuple[str, ...]
) -> None:
    name = make_topic("in")
    deep = "[" * 900 + "]" * 900
    assert topic("produce", name, stdin=lines({"value": 1}, {"value_bytes": deep.encode().hex()})).exit_code == 0
    result = topic("consume", name, *options)
    assert (result.exit_code, result.stdout.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"Error: The record {name}-0@1 cannot be shown (a value has too many lists")
    assert topic("consume", name, *options, "--value-serde", "bytes").exit_code == 0


def test_serdes_come_from_the_configuration_or_the_options(topic: Callable[..., Result], make_topic: MakeTopic) -> None:
    name = make_topic("numbers")
    serdes = ("--key-serde", "uuid", "--value-serde", "LongSerde")
    key = "123e4567-e89b-12d3-a456-426614174000"
    assert topic("produce", name, *serdes, stdin=lines({"key": key, "value": 2**40})).exit_code == 0
    assert topic("consume", name, *serdes).stdout == f"{key}\t{2**40}\n"
    configured = ("-c", "default.value.serde=int64")
    assert topic("consume", name, *configured).stdout == f"{key}\t{2**40}\n"
    assert topic("consume", name, "--value-serde", "bytes").stdout == f"{key}\t0x{2**40:016x}\n"
    unreadable = topic("consume", name)
    assert unreadable.exit_code == 1
    assert f"The value of {name}-0@0 cannot be read by Serdes.json()" in unreadable.stderr
    assert "choose another --value-serde; bytes reads all" in unreadable.stderr
    assert topic("produce", name, "--value-serde", "bytes", stdin=lines({"value": "0xff"})).exit_code == 0
    assert topic("consume", name, "--value-serde", "bytes").stdout.endswith("null\t0xff\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "it is not JSON"),
        ("[1]", "it is not a JSON object"),
        ('{"vaule": 1}', "unknown field vaule: a record has key, value, headers, timestamp"),
        ('{"key": 5}', "the key 5 does not fit Serdes.string()"),
        ('{"headers": ["a"]}', "headers are an object of strings"),
        ('{"headers": {"a": 1}}', "headers are an object of strings"),
        ('{"headers": {"a": "0xzz"}}', "a header has no hexadecimal digits after 0x"),
        ('{"timestamp": "yesterday"}', 'the timestamp "yesterday" is neither'),
        ('{"timestamp": -2}', "the timestamp -2 is neither"),
        ('{"timestamp": "1969-12-31T23:59:59.999Z"}', 'the timestamp "1969-12-31T23:59:59.999Z" is neither'),
        ('{"timestamp": true}', "the timestamp true is neither"),
        ('{"headers": {"a": "\\ud800"}}', r'the header text "\ud800" has half of a character'),
        ('{"headers": [["\\ud800", "a"]]}', r'the header text "\ud800" has half of a character'),
        ('{"value": "\\ud800"}', r'the value "\ud800" does not fit Serdes.json()'),
        ('{"key": "\\ud800"}', r'the key "\ud800" does not fit Serdes.string()'),
        ('{"value": 1E-99999999999999999999}', "the exponent of 1E-99999999999999999999 is beyond"),
        ('{"timestamp": 1e99999999999999999999}', "the exponent of 1e99999999999999999999 is beyond"),
        ('{"value_bytes": 1.5}', 'value_bytes are hexadecimal digits, not "1.5"'),
        ('{"value": ' + "[" * 300 + "]" * 300 + "}", "the value [["),
        ('{"value": ' + "[" * 600 + "]" * 600 + "}", "it has too many lists or objects inside of each other"),
        *(
            (f'{{"{field}": {"[" * 2_000 + "]" * 2_000}}}', "it has too many lists or objects inside of each other")
            for field in ("key", "value", "headers", "timestamp", "value_bytes", "offset")
        ),
    ],
)
def test_the_error_names_an_unreadable_line_and_earlier_lines_are_written(
    topic: Callable[..., Result], make_topic: MakeTopic, line: str, said: str
) -> None:
    name = make_topic("in")
    result = topic("produce", name, stdin=f"{lines({'key': 'first'})}\n{line}\n{lines({'key': 'third'})}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"1 record written to {name}.\nError: Standard input, line 3: {said}")
    assert topic("consume", name).stdout == "first\tnull\n"


def test_a_record_that_the_broker_refuses_is_an_error(topic: Callable[..., Result], make_topic: MakeTopic) -> None:
    name = make_topic("small", config={"max.message.bytes": "100"})
    result = topic("produce", name, stdin=lines({"value": "x" * 1000}, {"value": "y"}))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"refused a record for {name}: " in result.stderr


def test_since_and_limit_select_records(topic: Callable[..., Result], make_topic: MakeTopic) -> None:
    name = make_topic("in")
    assert (
        topic("produce", name, stdin=lines({"key": "old", "timestamp": 1}, {"key": "a"}, {"key": "b"})).exit_code == 0
    )
    assert topic("consume", name, "--limit", "1").stdout == "old\tnull\n"
    assert topic("consume", name, "--since", "1h").stdout == "a\tnull\nb\tnull\n"
    assert topic("consume", name, "--since", "1h", "--limit", "1").stdout == "a\tnull\n"


# -- pipes, signals, terminals


def test_follow_continues_until_ctrl_c(
    topic: Callable[..., Result], make_topic: MakeTopic, bootstrap_servers: str
) -> None:
    name = make_topic("in")
    topic("produce", name, stdin=lines({"key": "before"}))
    with process(bootstrap_servers, "consume", name, "--follow") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "before\tnull\n"
        topic("produce", name, stdin=lines({"key": "later"}))
        assert follower.stdout.readline() == "later\tnull\n"
        follower.send_signal(signal.SIGINT)
        rest, errors = follower.communicate(timeout=PATIENCE_SECONDS)
    assert (follower.returncode, rest, errors) == (0, "", "")


@pytest.mark.parametrize("options", [(), ("--follow",), ("--follow", "--json")])
def test_a_closed_pipe_ends_it_without_an_error(
    topic: Callable[..., Result], make_topic: MakeTopic, bootstrap_servers: str, options: tuple[str, ...]
) -> None:
    name = make_topic("in")
    many = 20_000  # more than the capacity of a pipe
    topic("produce", name, stdin=lines(*({"key": "k", "value": n} for n in range(many))))
    with process(bootstrap_servers, "consume", name, *options) as consumer:
        assert consumer.stdout is not None
        assert "0" in consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.stderr is not None
        assert (consumer.stderr.read(), consumer.wait(PATIENCE_SECONDS)) == ("", 0)


def test_following_a_quiet_topic_ends_when_the_pipe_is_closed(make_topic: MakeTopic, bootstrap_servers: str) -> None:
    with process(bootstrap_servers, "consume", make_topic("in"), "--follow") as follower:
        assert follower.stdout is not None
        follower.stdout.close()
        assert follower.wait(PATIENCE_SECONDS) == 0


def test_typed_records_are_sent_at_once_and_kept_after_ctrl_c(
    topic: Callable[..., Result], make_topic: MakeTopic, bootstrap_servers: str
) -> None:
    name = make_topic("in")
    with process(bootstrap_servers, "produce", name, stdin=subprocess.PIPE) as producer:
        assert producer.stdin is not None
        producer.stdin.write(lines({"key": "typed"}))
        producer.stdin.flush()
        eventually(lambda: topic("consume", name).stdout == "typed\tnull\n")
        producer.send_signal(signal.SIGINT)
        _, errors = producer.communicate(timeout=PATIENCE_SECONDS)
    assert producer.returncode == 1
    assert errors.startswith(f"1 record written to {name}.\n")
    assert "Traceback" not in errors


def test_a_terminal_gets_no_control_characters(
    topic: Callable[..., Result], make_topic: MakeTopic, bootstrap_servers: str
) -> None:
    name = make_topic("in")
    nasty = "\u001b[31m\u009b2J\u0007\r\n\u202e\u007f"
    topic("produce", name, stdin=lines({"key": nasty, "value": {"text": nasty}, "headers": {nasty: nasty}}))
    for options in ((), ("--json",)):
        ours, theirs = pty.openpty()
        with process(bootstrap_servers, "consume", name, *options, stdout=theirs) as consumer:
            assert consumer.wait(PATIENCE_SECONDS) == 0
        shown = os.read(ours, 100_000).decode()
        os.close(ours)
        os.close(theirs)
        assert shown.replace("\t", "").removesuffix("\r\n").isprintable()
        assert "\\u001b[31m" in shown
        if options:
            assert json.loads(shown)["key"] == nasty
    assert topic("consume", name, "--limit", "1").stdout.startswith(nasty[:1]), "a file gets what is in the record"
