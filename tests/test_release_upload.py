"""A release up to its installation by a user: tag, archives, upload to an index, and pip install from it.

The index is a local server, because only a workflow has a token for the real one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_distribution import NAME
from tests.free_port import free_port
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent
VERSION = "7.1.0"
PROGRAM = """
from penstock import Serdes, StreamsBuilder
from penstock.testing import TopologyTestDriver

builder = StreamsBuilder()
text = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
builder.stream("in", **text).map_values(str.upper).to("out", **text)
with TopologyTestDriver(builder.build()) as driver:
    driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("k", "tea")
    print(driver.create_output_topic("out", Serdes.string(), Serdes.string()).read_value())
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def run(*command: str | Path, cwd: Path, fails: bool = False) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert bool(done.returncode) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archives that bin/release builds from a tag."""
    folder = tmp_path_factory.mktemp("release") / "repository"
    run("git", "clone", "--quiet", ROOT, folder, cwd=ROOT)
    run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", VERSION, cwd=folder)
    who = ("-c", "user.name=Test", "-c", "user.email=test@penstock.invalid")
    run("git", *who, "commit", "--all", "--quiet", "--message", f"Release {VERSION}", cwd=folder)
    assert "the tag is" in run(sys.executable, "-m", "publish.release", f"v{VERSION}", cwd=folder, fails=True)
    run("git", "tag", f"v{VERSION}", cwd=folder)
    said = run(sys.executable, "-m", "publish.release", f"v{VERSION}", cwd=folder)
    assert said.endswith(f"{NAME} {VERSION} is built, the same bytes twice; nothing was uploaded.\n")
    return folder / "dist"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with twine, which the workflow's upload uses, and a package index."""
    folder = tmp_path_factory.mktemp("tools")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    run(folder / "venv" / "bin" / "python", "-m", "pip", "install", "twine==7.0.0", "pypiserver==2.4.2", cwd=folder)
    return folder / "venv" / "bin"


@pytest.fixture(scope="module")
def index(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty package index."""
    packages = tmp_path_factory.mktemp("packages")
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    options = ("--disable-fallback", "--passwords", ".", "--authenticate", ".", "--port", str(port))
    server = subprocess.Popen([tools / "pypi-server", "run", "--interface", "127.0.0.1", *options, packages])

    def answers() -> bool:
        assert server.poll() is None
        try:
            with urllib.request.urlopen(url) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        eventually(answers, "the index answers")
        yield url
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(packages)


def test_an_index_accepts_the_archives(dist: Path, tools: Path) -> None:
    files = sorted(dist.iterdir())
    assert [path.name.split("-")[:2] for path in files] == [
        ["penstock_streams", VERSION],
        ["penstock_streams", f"{VERSION}.tar.gz"],
    ]
    checked = run(tools / "twine", "check", "--strict", *files, cwd=dist)
    assert checked.count("PASSED") == 2


def test_it_is_uploaded_once_and_installed_by_its_name(dist: Path, tools: Path, index: str, tmp_path: Path) -> None:
    upload = (tools / "twine", "upload", "--non-interactive", "--repository-url", index, "-u", "x", "-p", "x")
    run(*upload, *sorted(dist.iterdir()), cwd=dist)
    run(*upload, *sorted(dist.iterdir()), cwd=dist, fails=True)  # existing files stay

    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    source = ("--extra-index-url", f"{index}simple/")  # dependencies come from the usual indexes
    run(python, "-m", "pip", "install", *source, f"{NAME}=={VERSION}", cwd=tmp_path)
    assert run(python.with_name("penstock"), "--version", cwd=tmp_path) == f"penstock {VERSION}\n"
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run(python, "program.py", cwd=tmp_path).splitlines() == ["TEA"]
