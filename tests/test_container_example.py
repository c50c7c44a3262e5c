"""examples/container: the files of its image exist, and its application counts."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

from penstock.supervisor.source.config_loader import load_config
from penstock.supervisor.source.topology_source import TopologySource
from penstock.testing import TopologyTestDriver
from penstock.topology.serdes.serdes import Serdes

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "container"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def copied() -> list[str]:
    """Return the paths that the Dockerfile copies from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def test_all_copied_paths_exist_and_all_packages_are_copied() -> None:
    assert not [name for name in copied() if not (ROOT / name).exists()]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    folders = [line.split("=")[1].strip() for line in setup["options"]["package_dir"].strip().splitlines()]
    modules = [f"{name}.py" for name in setup["options"]["py_modules"].split()]
    assert {*folders, *modules} <= set(copied())


def test_the_configuration_of_the_image_is_valid() -> None:
    settings = dict(re.findall(r"(PENSTOCK_\w+)=(\S+)", DOCKERFILE))
    config = load_config(FOLDER / "penstock.toml", settings)
    assert config["penstock.log.format"] == "json"
    assert f"VOLUME {config['state.dir']}\n" in DOCKERFILE


def test_the_container_has_a_longer_grace_period_than_the_application() -> None:
    config = load_config(FOLDER / "penstock.toml")
    needed_ms = config["penstock.shutdown.timeout.ms"] + config["penstock.worker.abort.grace.ms"]
    (grace,) = re.findall(r"stop_grace_period: (\d+)s", (FOLDER / "compose.yaml").read_text())
    assert int(grace) * 1000 > needed_ms


def test_the_command_of_the_image_exists() -> None:
    (reference,) = re.findall(r'^CMD \["run", "(.*)"\]$', DOCKERFILE, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "describe", reference, "--config", "penstock.toml"],
        cwd=FOLDER,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "by-word-repartition" in done.stdout


def test_the_application_counts_words() -> None:
    topology = TopologySource.of("examples.container.word_counts:topology").load(load_config(FOLDER / "penstock.toml"))
    with TopologyTestDriver(topology, {"application.id": "word-counts"}) as driver:
        lines = driver.create_input_topic("lines", Serdes.string(), Serdes.string())
        lines.pipe_input("one", "to be or")
        lines.pipe_input("two", "not To be")
        counts = driver.create_output_topic("counts", Serdes.string(), Serdes.int64())
        assert dict(counts.read_key_values_to_list()) == {"to": 2, "be": 2, "or": 1, "not": 1}
