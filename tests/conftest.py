"""What all tests share: the broker of the run, their own names and topics, and the check that no process is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.dev.dev_broker import DevBroker
from tests import short_lived_jvms
from tests.waiting import wait_for_partitions
from tests.without_kernel import leave_out_kernel

BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
ADMIN_TIMEOUT_SECONDS = 30.0
#: How long a process may take to end, after a test has stopped it, before it counts as left behind.
END_GRACE_SECONDS = 5.0
#: Set in many containers. Then each of some thousand processes compiles all of Penstock, and pytest all tests.
NO_BYTECODE_VARIABLE = "PYTHONDONTWRITEBYTECODE"
#: Helpers of multiprocessing that live as long as the process that first used it.
LONG_LIVED = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)

MakeTopic = Callable[..., str]


def pytest_configure() -> None:
    """Become the parent of orphans, so that the leak check sees processes whose own parent a test has killed.

    Also restore the handling of signals: a shell in the background, or nohup, starts the tests with some signals
    ignored, which all their children would inherit.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    sys.dont_write_bytecode = False
    os.environ.pop(NO_BYTECODE_VARIABLE, None)
    short_lived_jvms.use_options()


@pytest.hookimpl(trylast=True)  # after -m has deselected tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: one that begins last would run alone."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    with_broker = {item.path for item in items if item.get_closest_marker("broker")}
    items.sort(key=lambda item: (-slow[item.path], item.path not in with_broker))


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the Python code that the kernel replaces and must be equivalent to."""
    leave_out_kernel(monkeypatch)


@pytest.fixture(params=["kernel", "python"])
def with_and_without_kernel(request: pytest.FixtureRequest) -> None:
    """Run a test with the kernel, then again without_kernel."""
    if request.param == "python":
        request.getfixturevalue("without_kernel")


@pytest.fixture(scope="session")
def bootstrap_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The broker of the whole run: $KAFKA_BOOTSTRAP_SERVERS, or one that is started now and stopped at the end."""
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        yield given
    else:
        with DevBroker("tests", tmp_path_factory.mktemp("broker")) as broker:
            yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def admin(bootstrap_servers: str) -> AdminClient:
    """An admin client for the broker of the run."""
    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return names that no other test or earlier run has: for topics, applications, groups, transactional ids."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:60].strip("-")
    return lambda purpose: f"{test}-{purpose}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def application_id(unique_name: Callable[[str], str], admin: AdminClient) -> Iterator[str]:
    """An application.id of the test's own; the topics that the application makes are deleted with it."""
    name = unique_name("app")
    yield name
    _delete_topics(admin, [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(f"{name}-")])


@pytest.fixture
def make_topic(unique_name: Callable[[str], str], admin: AdminClient) -> Iterator[MakeTopic]:
    """Create topics: ``make_topic("in", partitions=4, config={"cleanup.policy": "compact"})`` returns the full name."""
    made: list[str] = []

    def make(purpose: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        topic = unique_name(purpose)
        future = admin.create_topics([NewTopic(topic, partitions, 1, config=config or {})])[topic]
        future.result(ADMIN_TIMEOUT_SECONDS)
        made.append(topic)
        wait_for_partitions(admin, topic, partitions)
        return topic

    yield make
    _delete_topics(admin, made)


def _delete_topics(admin: AdminClient, topics: list[str]) -> None:
    for future in admin.delete_topics(topics).values() if topics else ():
        future.result(ADMIN_TIMEOUT_SECONDS)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem for localhost, its key.pem, and locked.pem, the same key under the password ``secret``."""
    folder = tmp_path_factory.mktemp("tls")
    make = "openssl req -x509 -newkey rsa:2048 -keyout key.pem -out cert.pem -days 2 -nodes -subj /CN=localhost -addext"
    lock = "openssl rsa -in key.pem -aes256 -passout pass:secret -out locked.pem"
    for command in ([*make.split(), "subjectAltName=DNS:localhost"], lock.split()):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail a test whose processes, or theirs, still live after it; end them, so that the next test starts clean."""
    before = _children()
    yield
    new = [process for pid in _children() - before if (process := _process(pid))]
    _, left = psutil.wait_procs(new, timeout=END_GRACE_SECONDS)
    descriptions = [f"{process.pid}: {' '.join(process.cmdline())}" for process in left]
    for process in left:
        process.kill()
    psutil.wait_procs(left)
    assert not left, f"processes left behind: {descriptions}"


def _children() -> set[int]:
    """Return our direct children's pids. /proc, not psutil, which reads every process of the machine for it."""
    tasks = Path("/proc/self/task")
    found: set[int] = set()
    for task in os.listdir(tasks):
        # A thread may end while we look; its children then belong to another of our threads.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(int(pid) for pid in (tasks / task / "children").read_text().split())
    return found


def _process(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return None if any(name in " ".join(process.cmdline()) for name in LONG_LIVED) else process
    except psutil.NoSuchProcess:
        return None
