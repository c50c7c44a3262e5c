"""Secrets come from files or the environment, and appear in no log, no command's output, and no file of Penstock."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.supervisor.source.config_loader import load_config
from penstock.topology.config.config_def import ConfigKey, ConfigType, is_secret
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parent.parent
SECRET = "hunter2-and-more"
#: More secrets of a running application, each with a distinct value.
SECRETS = {
    "consumer.sasl.password": "hunter3-of-the-consumers",
    "producer.sasl.password": "hunter4-of-the-producer",
    "ssl.key.password": "hunter5-of-the-key",
    "admin.sasl.password": "hunter6-of-the-admin",
    "penstock.http.token": "hunter7-of-the-page",
}
HTTP_PATHS = ("/", "/status", "/tasks", "/lag", "/metrics", "/topology", "/stores", "/stores/counts", "/dashboard.json")
APP = """\
from penstock import Serdes, StreamsBuilder
topology = StreamsBuilder()
topology.stream({source!r}, key_serde=Serdes.string(), value_serde=Serdes.string()).group_by_key().count(store="counts")
"""


@pytest.mark.parametrize(
    "key",
    [
        "sasl.password",
        "consumer.sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.jaas.config",
        "basic.auth.user.info",
        "penstock.http.token",
    ],
)
def test_keys_whose_values_are_never_shown(key: str) -> None:
    assert is_secret(key)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(SECRET + "\n")
    return path


def test_a_secret_from_a_file(tmp_path: Path, secret_file: Path) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text(f'[consumer.sasl]\npassword = {{ file = "{secret_file}" }}\n')
    config = load_config(
        settings, {"PENSTOCK_SASL_PASSWORD_FILE": str(secret_file)}, [f"ssl.key.pem.file={secret_file}"]
    )
    assert config["consumer.sasl.password"] == config["sasl.password"] == config["ssl.key.pem"] == SECRET
    assert config.origin("sasl.password") == f"PENSTOCK_SASL_PASSWORD_FILE: {secret_file}"


def test_one_of_penstocks_own_keys_from_a_file(secret_file: Path) -> None:
    config = load_config(None, {"PENSTOCK_HTTP_TOKEN_FILE": str(secret_file)})
    assert config["penstock.http.token"] == SECRET


@pytest.mark.parametrize(("text", "message"), [(None, "cannot be read: No such file"), ("\n", "is empty")])
def test_a_missing_secret_is_reported(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "password").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(None, {"PENSTOCK_SASL_PASSWORD_FILE": str(tmp_path / "password")})


def test_a_file_key_is_special_only_for_secrets() -> None:
    config = load_config(None, {}, ["sasl.oauthbearer.assertion.file=/etc/jwt"])
    assert config["sasl.oauthbearer.assertion.file"] == "/etc/jwt"


def test_a_wrong_secret_is_not_in_the_message() -> None:
    with pytest.raises(ConfigError) as raised:
        ConfigKey("penstock.http.token", ConfigType.INT, None, "").parse(SECRET)
    assert SECRET not in str(raised.value)


def test_a_configuration_does_not_show_its_values() -> None:
    assert SECRET not in repr(StreamsConfig({"sasl.password": SECRET}))


@pytest.mark.broker
@pytest.mark.slow
def test_a_running_application_leaks_no_secret(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path, secret_file: Path
) -> None:
    """At the most verbose log level, librdkafka's included; a password is set, though the broker requires none."""
    (tmp_path / "app.py").write_text(APP.format(source=make_topic("in", 1)))
    (tmp_path / "penstock.toml").write_text(
        f'"application.id" = "{application_id}"\n"bootstrap.servers" = "{bootstrap_servers}"\n'
        f'"state.dir" = "{tmp_path}/state"\n"penstock.log.level" = "DEBUG"\n"consumer.debug" = "conf,security,broker"\n'
        f'"sasl.username" = "me"\n"penstock.http.port" = 0\n[sasl.password]\nfile = "{secret_file}"\n'
    )
    names = {key: key.removeprefix("penstock.").replace(".", "_").upper() for key in SECRETS}
    variables = {f"PENSTOCK_{names[key]}": value for key, value in SECRETS.items()}
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "run", "app:topology", "--config", "penstock.toml"],
            cwd=tmp_path,
            env=os.environ | variables | {"PYTHONPATH": str(ROOT)},
            stderr=file,
        )

    def runs() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        return all(text in log.read_text() for text in ("Serving HTTP", "from REBALANCING to RUNNING"))

    try:
        eventually(runs, "the application runs")
        options = ["--config", str(tmp_path / "penstock.toml")]
        commands = (
            ["status", "--json"],
            ["config"],
            ["config", "--all"],
            ["snapshot", "create", str(tmp_path / "backup")],
        )
        answers = asked(int(re.findall(r"at http://127\.0\.0\.1:(\d+)", log.read_text())[0]))
        shown = [
            CliRunner(env=variables).invoke(cli, [*command, *options], prog_name="penstock") for command in commands
        ]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
    assert [result.exit_code for result in shown] == [0] * len(shown), [result.output for result in shown]
    assert "sasl.password" in shown[1].output
    assert "sasl.password" in log.read_text()  # librdkafka shows its configuration, and masks it
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != secret_file]
    texts = [
        *answers,
        *(result.output for result in shown),
        *(path.read_bytes().decode(errors="replace") for path in written),
    ]
    assert not [text for text in texts for secret in (SECRET, *SECRETS.values()) if secret in text]


def asked(port: int) -> list[str]:
    """Return the HTTP responses to clients with the token, and to clients with a wrong one."""
    texts = []
    for token in (SECRETS["penstock.http.token"], "wrong"):
        for path in HTTP_PATHS:
            connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            texts.append(f"{answer.getheaders()} {answer.read().decode()}")
            assert answer.status == (401 if token == "wrong" and path != "/" else 200), f"{path}: {texts[-1]}"
            connection.close()
    return texts
