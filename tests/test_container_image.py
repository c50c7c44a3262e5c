"""The image of examples/container, built without a daemon and run against the dev broker.

buildah builds it in a plain chroot on a base of Debian's packages, in place of python:3.13-slim, so that no registry is
needed: the Dockerfile itself runs. The image then runs in mount and process namespaces as compose.yaml and the Helm
chart specify: a read-only root file system, no capabilities, no new privileges, a volume for the state.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import versioningit
from confluent_kafka import Consumer, Producer

from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parent.parent
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
UID = 10001
missing = [tool for tool in ("buildah", "mmdebstrap", "unshare", "nsenter") if shutil.which(tool) is None]
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
        # Zig compiles with the same optimization as for users. The certificates are those of this machine.
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


def test_the_metadata_of_the_image(images: Images) -> None:
    config = json.loads(images("inspect", "localhost/word-counts"))["Docker"]["config"]
    assert config["User"] == str(UID)
    assert config["Entrypoint"] == ["penstock"]
    assert config["Cmd"] == ["run", "word_counts:topology"]
    assert config["Healthcheck"]["Test"] == ["CMD", "penstock", "status", "--json"]
    assert list(config["Volumes"]) == ["/state"]


def test_the_contents_of_the_image(images: Images, container: str) -> None:
    run = ["run", "--isolation", "chroot", container, "--"]
    assert images(*run, "penstock", "--version") == f"penstock {images.version}"
    installed = images(*run, "/opt/penstock/bin/pip", "list", "--format", "freeze").lower()
    assert not [name for name in ("cython==", "ziglang==", "versioningit==") if name in installed]


#: Does what a runtime does for `--read-only --cap-drop ALL --security-opt no-new-privileges --tmpfs /tmp --volume
#: …:/state`, in mount and process namespaces: $1 is the root file system, $2 the volume; the rest is the command of
#: process 1.
CONTAINER = """
root=$1 volume=$2
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"
mount --bind "$volume" "$root/state"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""
NO_RIGHTS = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
NO_RIGHTS += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]


class Container:
    """A container of the image that runs a command as process 1, with the image's user, folder and environment."""

    def __init__(self, root: Path, image: dict[str, Any], volume: Path, log: Path, *command: str) -> None:
        assert image["User"] == str(UID)
        self._inside = [*NO_RIGHTS, "env", "-i", "-C", image["WorkingDir"], *image["Env"]]
        self._log = log.open("w")
        namespaces = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
        setup = ["sh", "-euc", CONTAINER, "sh", str(root), str(volume)]
        self.process = subprocess.Popen(
            [*namespaces, *setup, *self._inside, *command], stdout=self._log, stderr=self._log
        )
        eventually(lambda: [each.uids().real for each in self._children()] == [UID], log.read_text)
        (self.first,) = self._children()

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def run(self, *command: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run another command in it, as a runtime's exec does."""
        enter = ["nsenter", "--target", str(self.first.pid), "--mount", "--pid", "--root"]
        whole = [*enter, *self._inside, *command]
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=timeout)

    def close(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.first.kill()  # and with it all processes of its namespace
        self.process.wait()
        self._log.close()


@pytest.fixture
def start(images: Images, container: str, tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Start containers that share a volume; without a command they run that of the image."""
    config = json.loads(images("inspect", "localhost/word-counts"))["Docker"]["config"]
    root = Path(images("mount", container))
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o750)
    os.chown(volume, UID, UID)  # a new volume gets the owner of the image's folder
    made: list[Container] = []

    def start(*arguments: str, entrypoint: Sequence[str] | None = None) -> Container:
        command = [*(entrypoint or config["Entrypoint"]), *(arguments or config["Cmd"])]
        made.append(Container(root, config, volume, tmp_path / f"log-{len(made)}", *command))
        return made[-1]

    yield start
    for each in made:
        each.close()


def rights(process: psutil.Process) -> dict[str, str]:
    """Return the user and the privileges of a process, from the kernel."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {
        name: found[name] for name in ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs")
    }


NONE = dict.fromkeys(("CapEff", "CapPrm", "CapBnd", "CapAmb"), "0" * 16)
NOBODY = {"Uid": "\t".join([str(UID)] * 4), "Gid": "\t".join([str(UID)] * 4), "Groups": " ", "NoNewPrivs": "1", **NONE}


def test_it_counts_words_without_privileges_and_continues_with_its_volume(
    images: Images,
    container: str,
    start: Callable[..., Container],
    bootstrap_servers: str,
    make_topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
) -> None:
    lines, counts = make_topic("lines", 2), make_topic("counts", 2)
    program = Path(images("mount", container)) / "app" / "word_counts.py"  # the topics of this test
    text = program.read_text().replace('"lines"', f'"{lines}"').replace('to("counts"', f'to("{counts}"')
    program.write_text(text)
    settings = ["-c", f"bootstrap.servers={bootstrap_servers}", "-c", f"application.id={application_id}"]
    check = json.loads(images("inspect", "localhost/word-counts"))["Docker"]["config"]["Healthcheck"]
    health, seconds = [*check["Test"][1:], *settings], check["Timeout"] / 1e9
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": counts, "auto.offset.reset": "earliest"})
    consumer.subscribe([counts])
    found: dict[bytes, int] = {}

    def count(line: bytes, expected: dict[bytes, int], running: Container, log: Path) -> None:
        producer.produce(lines, line)
        producer.flush()

        def is_counted() -> bool:
            assert running.process.poll() is None, log.read_text()
            for message in consumer.consume(100, 0.2):
                found[message.key() or b""] = int.from_bytes(message.value() or b"", "big")
            return found == expected

        eventually(is_counted, lambda: (found, log.read_text()))

    def stop(running: Container, log: Path) -> None:
        running.first.terminate()
        assert running.process.wait(PATIENCE_SECONDS) == 0, log.read_text()

    try:
        idle = start("60", entrypoint=["sleep"])
        unhealthy = idle.run(*health)
        assert (unhealthy.returncode, "`penstock run` starts one" in unhealthy.stderr) == (3, True), unhealthy
        for folder in ("/", "/app", "/etc", "/opt/penstock", "/usr", "/var/tmp"):
            assert "Read-only file system" in idle.run("touch", f"{folder}/x").stderr
        assert idle.run("touch", "/state/x", "/tmp/x", "/dev/shm/x").returncode == 0
        assert "Operation not permitted" in idle.run("chown", "0", "/state/x").stderr
        assert idle.run("rm", "/state/x").returncode == 0
        idle.close()

        command = ["run", "word_counts:topology", *settings]
        running, log = start(*command), tmp_path / "log-1"
        count(b"to be or not to be", {b"to": 2, b"be": 2, b"or": 1, b"not": 1}, running, log)
        family = [running.first, *running.first.children(recursive=True)]
        assert len(family) >= 3, "a supervisor and two stream threads"
        assert [rights(each) for each in family] == [NOBODY] * len(family)
        assert "supervisor" in running.first.name() or running.first.name().startswith("penstock")
        status = running.run(*health, timeout=seconds)
        assert status.returncode == 0, status.stdout + status.stderr
        assert json.loads(status.stdout)["state"] == "RUNNING"
        stop(running, log)

        running, log = start(*command), tmp_path / "log-2"
        count(b"be", found | {b"be": 3}, running, log)
        restored = re.findall(r"Finished restoring changelog .* with a total number of (\d+) records", log.read_text())
        assert restored == ["0", "0"], "the volume has the state"
        stop(running, log)
    finally:
        consumer.close()
