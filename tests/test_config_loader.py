"""The configuration from its file, from the environment and from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.supervisor.source.config_loader import load_config
from penstock.topology.errors import ConfigError


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    return file


def test_a_file_may_have_dotted_names_quoted_names_and_tables(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        """
        "application.id" = "app"
        bootstrap.servers = ["a:1", "b:2"]
        commit.interval.ms = 250
        [consumer]
        "fetch.min.bytes" = 7
        [penstock.worker.restart]
        max = 3
        """,
    )
    config = load_config(file)
    assert config["application.id"] == "app"
    assert config["bootstrap.servers"] == "a:1,b:2"
    assert config["commit.interval.ms"] == 250
    assert config["penstock.worker.restart.max"] == 3
    assert config.with_prefix("consumer.") == {"fetch.min.bytes": 7}
    assert config.origin("commit.interval.ms") == str(file)


def test_sources_closer_to_the_user_take_precedence_and_are_shown(tmp_path: Path) -> None:
    file = toml(tmp_path, "poll.ms = 1\ncommit.interval.ms = 1\nnum.stream.threads = 1\nlinger.ms = 1")
    environment = {"PENSTOCK_POLL_MS": "2", "PENSTOCK_COMMIT_INTERVAL_MS": "2", "PENSTOCK_NUM_STREAM_THREADS": "2"}
    assignments = ["poll.ms=3", "num.stream.threads=3"]
    config = load_config(file, environment, assignments, {"num.stream.threads": ("--threads", 4)})
    found = {key: (config[key], config.origin(key)) for key in ("linger.ms", "commit.interval.ms", "poll.ms")}
    assert found == {
        "linger.ms": (1, str(file)),
        "commit.interval.ms": (2, "PENSTOCK_COMMIT_INTERVAL_MS"),
        "poll.ms": (3, "-c"),
    }
    assert (config["num.stream.threads"], config.origin("num.stream.threads")) == (4, "--threads")


def test_variables_set_own_keys_prefixed_keys_and_keys_with_an_underscore() -> None:
    config = load_config(
        environment={
            "PENSTOCK_WORKER_RESTART_MAX": "3",
            "PENSTOCK_CONSUMER_FETCH_MIN_BYTES": "7",
            "PENSTOCK_MAIN_CONSUMER_DEBUG": "cgrp",
            "PENSTOCK_SASL_PASSWORD": "secret",
            "PENSTOCK_RACK_AWARE_ASSIGNMENT_TRAFFIC_COST": "5",
            "PENSTOCK_CONFIG": "is the command's own",
            "HOME": "/",
        }
    )
    assert config["penstock.worker.restart.max"] == 3
    assert config.with_prefix("consumer.") == {"fetch.min.bytes": "7"}
    assert config.with_prefix("main.consumer.") == {"debug": "cgrp"}
    assert config["sasl.password"] == "secret"
    assert config["rack.aware.assignment.traffic_cost"] == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("commit.interval.ms = ", "is not valid TOML"),
        ('"commit.interval.ms" = 1\n[commit.interval]\nms = 2', "sets commit.interval.ms twice"),
        ("comit.interval.ms = 1", r"Unknown configuration key 'comit.interval.ms' \(.*penstock.toml\)"),
        (
            "commit.interval.ms = 1.5",
            r"commit.interval.ms=1.5 \(.*penstock.toml\) is not valid: expected a whole number",
        ),
        ("commit.interval.ms = 2020-01-01", "is not valid"),
    ],
)
def test_the_error_for_a_wrong_file_names_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(toml(tmp_path, text))


def test_a_file_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('"client.id" = "größe"', encoding="utf-8")
    code = "import sys; from penstock.supervisor.source.config_loader import load_config; from pathlib import Path; "
    code += "print(ascii(load_config(Path(sys.argv[1]), {}, ())['client.id']))"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", code, str(tmp_path / "penstock.toml")]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed == "'gr\\xf6\\xdfe'\n"


def test_the_error_for_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"penstock\.toml cannot be read: No such file or directory"):
        load_config(tmp_path / "penstock.toml")


#: Variables that Kubernetes sets in each container of a namespace with services penstock, penstock-http and
#: penstock-consumer.
SERVICE_LINKS = {
    "PENSTOCK_SERVICE_HOST": "10.0.0.11",
    "PENSTOCK_SERVICE_PORT": "80",
    "PENSTOCK_SERVICE_PORT_WEB_UI": "80",
    "PENSTOCK_PORT": "tcp://10.0.0.11:80",
    "PENSTOCK_PORT_80_TCP": "tcp://10.0.0.11:80",
    "PENSTOCK_PORT_80_TCP_PROTO": "tcp",
    "PENSTOCK_PORT_80_TCP_PORT": "80",
    "PENSTOCK_PORT_80_TCP_ADDR": "10.0.0.11",
    "PENSTOCK_PORT_53_UDP": "udp://10.0.0.11:53",
    "PENSTOCK_HTTP_PORT": "tcp://10.0.0.12:80",
    "PENSTOCK_HTTP_SERVICE_HOST": "10.0.0.12",
    "PENSTOCK_CONSUMER_PORT": "tcp://10.0.0.13:80",
    "PENSTOCK_CONSUMER_SERVICE_HOST": "10.0.0.13",
    "PENSTOCK_CONSUMER_PORT_80_TCP_ADDR": "10.0.0.13",
}


def given(environment: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the settings that the command reads from the environment, by origin, and its other output."""
    ended = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "config", "--json"],
        env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return {key: found["origin"] for key, found in json.loads(ended.stdout).items()}, ended.stderr.splitlines()


def test_the_service_links_of_kubernetes_are_ignored() -> None:
    assert given(SERVICE_LINKS | {"PENSTOCK_POLL_MS": "1"}) == ({"poll.ms": "PENSTOCK_POLL_MS"}, [])


def test_a_port_that_is_not_a_link_is_a_setting() -> None:
    assert given({"PENSTOCK_HTTP_PORT": "8080"}) == ({"penstock.http.port": "PENSTOCK_HTTP_PORT"}, [])


def test_a_variable_that_sets_nothing_gives_a_warning_with_the_nearest_key() -> None:
    assert given({"PENSTOCK_COMIT_INTERVAL_MS": "1", "PENSTOCK_SIDECAR_ZONE": "b"}) == (
        {},
        [
            "The environment variable PENSTOCK_COMIT_INTERVAL_MS sets no known configuration key. "
            "Did you mean PENSTOCK_COMMIT_INTERVAL_MS?",
            "The environment variable PENSTOCK_SIDECAR_ZONE sets no known configuration key. "
            "`penstock config --all` lists all keys.",
        ],
    )


@pytest.mark.parametrize("assignment", ["commit.interval.ms", ""])
def test_a_malformed_assignment_is_refused(assignment: str) -> None:
    with pytest.raises(ConfigError, match="write -c key=value"):
        load_config(assignments=[assignment])


def test_a_value_may_contain_an_equals_sign() -> None:
    assert load_config(assignments=["sasl.jaas=a=b"])["sasl.jaas"] == "a=b"
