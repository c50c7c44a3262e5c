"""The image of examples/container, built without a daemon and run against the dev broker.

buildah builds it in a plain chroot on a base of Debian's packages, in place of python:3.13-slim: what runs is the
Dockerfile, and neither a registry nor the right to make namespaces is needed. So its limits (read-only root, no
capabilities) are those of Kubernetes and compose.yaml, and not tried here; that it writes to /state alone is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import versioningit
from confluent_kafka import Consumer, Producer

from tests.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
UID = 10001
missing = [tool for tool in ("buildah", "mmdebstrap") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: apt install buildah mmdebstrap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="buildah's chroots need root"),
]


class Images:
    """Buildah with a separate store."""

    def __init__(self, folder: Path) -> None:
        self.version = versioningit.get_version(ROOT)
        self.command = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self.command += ["--storage-driver", "vfs"]

    def __call__(self, *arguments: str | Path) -> str:
        done = subprocess.run([*self.command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """The image word-counts."""
    folder = tmp_path_factory.mktemp("images")
    found = Images(folder)
    try:
        packages = "--include=python3-venv,python-is-python3,libpython3-dev,ca-certificates"
        subprocess.run(["mmdebstrap", "--variant=minbase", packages, "trixie", folder / "base.tar"], check=True)
        base = found("from", "scratch")
        found("add", base, folder / "base.tar", "/")
        found("commit", "--quiet", "--rm", base, "base")
        options = ["--isolation", "chroot", "--format", "docker", "--build-arg", "BASE=localhost/base"]
        options += ["--build-arg", f"VERSION={found.version}"]
        # Zig compiles; what it compiles is optimized as users get it. The certificates are those of this machine.
        options += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        files = [
            "--file",
            "examples/container/Dockerfile",
            "--ignorefile",
            "examples/container/Dockerfile.dockerignore",
        ]
        found("build", *options, *files, "--tag", "word-counts", ".")
        yield found
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def container(images: Images) -> Iterator[str]:
    name = images("from", "localhost/word-counts")
    yield name
    images("rm", name)


def test_what_the_image_says_of_itself(images: Images) -> None:
    config = json.loads(images("inspect", "localhost/word-counts"))["Docker"]["config"]
    assert config["User"] == str(UID)
    assert config["Entrypoint"] == ["penstock"]
    assert config["Cmd"] == ["run", "word_counts:topology"]
    assert config["Healthcheck"]["Test"] == ["CMD", "penstock", "status", "--json"]
    assert list(config["Volumes"]) == ["/state"]


def test_what_is_in_the_image(images: Images, container: str) -> None:
    run = ["run", "--isolation", "chroot", container, "--"]
    assert images(*run, "penstock", "--version") == f"penstock {images.version}"
    kernel = "import penstock.kernel as k; print([name for name in k.MODULES if getattr(k, name) is None])"
    assert images(*run, "/opt/penstock/bin/python", "-c", kernel) == "[]"
    installed = images(*run, "/opt/penstock/bin/pip", "list", "--format", "freeze").lower()
    assert not [name for name in ("cython==", "ziglang==", "versioningit==") if name in installed]


def test_it_counts_words_and_ends_in_order(
    images: Images,
    container: str,
    bootstrap_servers: str,
    make_topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
) -> None:
    lines, counts = make_topic("lines", 2), make_topic("counts", 2)
    root = Path(images("mount", container))
    program = (root / "app" / "word_counts.py").read_text()  # the topics are the test's own
    (root / "app" / "word_counts.py").write_text(
        program.replace('"lines"', f'"{lines}"').replace('to("counts"', f'to("{counts}"')
    )
    before = {path: path.lstat().st_mtime_ns for path in files_of(root)}
    run = [*images.command, "run", "--isolation", "chroot", container, "--", "penstock"]
    settings = ["-c", f"bootstrap.servers={bootstrap_servers}", "-c", f"application.id={application_id}"]
    log = (tmp_path / "log").open("w+")
    running = subprocess.Popen([*run, "run", "word_counts:topology", *settings], cwd=ROOT, stdout=log, stderr=log)
    try:
        producer = Producer({"bootstrap.servers": bootstrap_servers})
        producer.produce(lines, b"to be or not to be")
        producer.flush()
        consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": counts, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([counts])
        found: dict[bytes, int] = {}

        def is_counted() -> bool:
            assert running.poll() is None, (tmp_path / "log").read_text()
            for message in consumer.consume(100, 0.2):
                found[message.key() or b""] = int.from_bytes(message.value() or b"", "big")
            return found == {b"to": 2, b"be": 2, b"or": 1, b"not": 1}

        eventually(is_counted, lambda: (found, (tmp_path / "log").read_text()), 240)
        consumer.close()
        health = subprocess.run(
            [*run, "status", "--json", *settings], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert health.returncode == 0, health.stdout + health.stderr
        assert json.loads(health.stdout)["state"] == "RUNNING"
        (supervisor,) = [
            each
            for each in psutil.Process(running.pid).children(recursive=True)
            if each.name().startswith("penstock")
            and each.parent() is not None
            and not each.parent().name().startswith("penstock")  # type: ignore[union-attr]
        ]
        assert set(supervisor.uids()) == {UID}
        supervisor.terminate()
        assert running.wait(120) == 0, (tmp_path / "log").read_text()
    finally:
        running.kill()
        running.wait()
        log.close()
    written = {path for path in files_of(root) if before.get(path) != path.lstat().st_mtime_ns}
    assert not [path for path in written if path.relative_to(root).parts[0] not in ("tmp", "state", "etc", "run")]


def files_of(root: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
