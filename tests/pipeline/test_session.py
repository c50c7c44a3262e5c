"""The settings of a session that Penstock creates: the user's settings are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import penstock
from penstock import StreamsConfig
from penstock.pipeline.session.spark_session import (
    DEFAULTS,
    SparkUnavailableError,
    defaults_of,
    settings_of_session,
    spark_session,
    spark_settings,
)

PACKAGES = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of Spark's configuration files."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_without_user_settings_penstocks_apply() -> None:
    expected = {**DEFAULTS, "spark.app.name": "app", "spark.jars.packages": PACKAGES}
    assert settings_of_session("app", None, PACKAGES, {}) == expected


@pytest.mark.parametrize("name", [*DEFAULTS, "spark.app.name", "spark.ui.enabled"])
def test_sparks_own_file_overrides_penstocks_settings(conf: Path, name: str) -> None:
    (conf / "spark-defaults.conf").write_text(f"# ours\n{name}\t the user's value\n")
    assert settings_of_session("app", None, PACKAGES, {})[name] == "the user's value"


@pytest.mark.parametrize("name", [*DEFAULTS, "spark.executor.memory"])
def test_the_configuration_overrides_sparks_own_file(conf: Path, name: str) -> None:
    (conf / "spark-defaults.conf").write_text(f"{name}=of the file\n")
    assert settings_of_session("app", None, PACKAGES, {name: "of the configuration"})[name] == "of the configuration"


def test_a_master_on_the_command_line_overrides_all(conf: Path) -> None:
    (conf / "spark-defaults.conf").write_text("spark.master yarn\n")
    assert settings_of_session("app", "local[3]", PACKAGES, {"spark.master": "k8s://x"})["spark.master"] == "local[3]"


def test_a_log_configuration_of_the_user_sets_the_levels(conf: Path) -> None:
    (conf / "log4j2.properties").write_text("rootLogger.level = info\n")
    assert "spark.log.level" not in settings_of_session("app", None, PACKAGES, {})


@pytest.mark.parametrize("given", [{"spark.jars": "/mine.jar"}, {}])
def test_the_users_jars_are_added_to_the_connectors(conf: Path, given: dict[str, str]) -> None:
    if not given:
        (conf / "spark-defaults.conf").write_text("spark.jars  /mine.jar\n")
    jars = settings_of_session("app", None, None, given)["spark.jars"].split(",")
    assert jars[0] == "/mine.jar"
    assert any("spark-sql-kafka" in jar for jar in jars[1:])


def test_parsing_of_sparks_file() -> None:
    text = "\n# spark.a 1\nspark.a   1\nspark.b=2 = 3\n spark.c = -Dx=y -Dz\nspark.d\nother 5\n"
    assert defaults_of(text) == {"spark.a": "1", "spark.b": "2 = 3", "spark.c": "-Dx=y -Dz"}


def test_settings_have_sparks_spelling() -> None:
    config = StreamsConfig({"spark.ui.enabled": False, "spark.ui.port": 4050, "spark.executor.memory": "2g"})
    expected = {"spark.ui.enabled": "false", "spark.ui.port": "4050", "spark.executor.memory": "2g"}
    assert spark_settings(config) == expected


def test_a_spark_connect_server_is_refused() -> None:
    with pytest.raises(SparkUnavailableError, match="sc://host is a server of Spark Connect"):
        spark_session("app", "sc://host", PACKAGES)


def test_a_zip_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """With --py-files, for example: a zip cannot contain compiled code."""
    path, root = tmp_path / "penstock.zip", Path(penstock.__file__).parent
    with zipfile.ZipFile(path, "w") as archive:
        for folder, _, names in os.walk(root, followlinks=True):
            for file in (Path(folder, name) for name in names if name.endswith(".py")):
                archive.write(file, Path("penstock", file.relative_to(root)))
        archive.write(root.parent / "penstock_distribution.py", "penstock_distribution.py")
    code = f"import sys; sys.path.insert(0, {str(path)!r}); import penstock"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    last = found.stderr.splitlines()[-1]
    assert f"MissingKernelError: Penstock was loaded from {path}, and a zip" in last
    assert "--archives" in last
