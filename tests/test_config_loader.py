"""The configuration from its file, the environment and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.supervisor.config_loader import load_config
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


def test_what_is_nearer_to_the_user_wins_and_is_told(tmp_path: Path) -> None:
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


def test_variables_reach_own_keys_prefixed_keys_and_keys_with_an_underscore() -> None:
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
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(toml(tmp_path, text))


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"penstock\.toml cannot be read: No such file or directory"):
        load_config(tmp_path / "penstock.toml")


def test_a_variable_that_sets_nothing_is_an_error_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"PENSTOCK_COMIT_INTERVAL_MS sets no.*Did you mean PENSTOCK_COMMIT_INTERVAL_MS"
    ):
        load_config(environment={"PENSTOCK_COMIT_INTERVAL_MS": "1"})


@pytest.mark.parametrize("assignment", ["commit.interval.ms", ""])
def test_an_assignment_has_a_form(assignment: str) -> None:
    with pytest.raises(ConfigError, match="write -c key=value"):
        load_config(assignments=[assignment])


def test_a_value_may_hold_an_equals_sign() -> None:
    assert load_config(assignments=["sasl.jaas=a=b"])["sasl.jaas"] == "a=b"
