"""Shared by all tests: the brokers of the run, unique names and topics, and the check for leaked processes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import HealthCheck, settings

from penstock.dev.dev_broker import DevBroker
from tests import brokers, short_lived_jvms
from tests.brokers import SecuredBroker, ThreeBrokers
from tests.examples import examples
from tests.topics import create_topics, delete_topics, delete_topics_of
from tests.waiting import PATIENCE_FACTOR

BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
#: Seconds a process may take to end after its test, before it counts as leaked.
END_GRACE_SECONDS = 5.0 * PATIENCE_FACTOR
#: How many more files a test may leave open. A client that is collected later has some ten.
DESCRIPTORS_MAX = 40
#: Set in many containers. Then each of some thousand processes would compile all of Penstock, and pytest all tests.
NO_BYTECODE_VARIABLE = "PYTHONDONTWRITEBYTECODE"
#: Helper processes of multiprocessing, which live as long as the process that first used them.
LONG_LIVED = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)

MakeTopic = Callable[..., str]


def pytest_configure(config: pytest.Config) -> None:
    """Become the parent of orphans, so that the leak check sees processes whose parent a test has killed.

    Also restore signal handlers: a background shell, or nohup, starts the tests with some signals ignored, which all
    child processes would inherit.
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
    # How long examples take depends on the machine's load, which is no failure.
    settings.register_profile(
        "penstock",
        max_examples=examples(settings().max_examples),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("penstock")
    if (
        brokers.FOLDER_VARIABLE not in os.environ
    ):  # otherwise bin/test, or the process that started this worker, stops them
        folder = Path(tempfile.mkdtemp(prefix="penstock-tests-"))
        os.environ[brokers.FOLDER_VARIABLE] = str(folder)
        config.add_cleanup(lambda: shutil.rmtree(folder))
        config.add_cleanup(lambda: brokers.stop_all(folder))


@pytest.hookimpl(trylast=True)  # after -m has deselected tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that take longest: one that starts last would run alone."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    with_broker = {item.path for item in items if item.get_closest_marker("broker")}
    items.sort(key=lambda item: (-slow[item.path], item.path not in with_broker))


def pytest_collection_finish() -> None:
    """Exclude the collected tests and all imported modules from garbage collection; they are needed until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Put the default of state.dir into a folder of the run, for this process and its children; return its parent."""
    home = tmp_path_factory.mktemp("state-home")
    os.environ["XDG_STATE_HOME"] = str(home)
    os.environ.pop("STATE_DIRECTORY", None)  # set if a service runs the tests
    return home


@pytest.fixture(scope="session")
def bootstrap_servers() -> str:
    """The broker of the whole run: $KAFKA_BOOTSTRAP_SERVERS, or one that is started now and stopped at the end."""
    return os.environ.get(BOOTSTRAP_VARIABLE) or brokers.plain().bootstrap_servers


@pytest.fixture(scope="session")
def secured_broker() -> SecuredBroker:
    """The broker with access control and a listener for each kind of authentication: see brokers.secured."""
    return brokers.secured()


@pytest.fixture(scope="session")
def unusual_broker() -> str:
    """The address of a broker with a rack, without streams groups, which cannot create its transaction log."""
    return brokers.unusual().bootstrap_servers


@pytest.fixture
def stoppable_broker() -> Iterator[DevBroker]:
    """A running broker that this test may stop, start and suspend: no other test uses it meanwhile."""
    with brokers.stoppable() as broker:
        yield broker


@pytest.fixture
def three_brokers() -> Iterator[ThreeBrokers]:
    """Three brokers, running and in sync. This test may kill the second and the third one."""
    with brokers.three() as made:
        yield made


@pytest.fixture(scope="session")
def admin(bootstrap_servers: str) -> AdminClient:
    """An admin client for the broker of the run."""
    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return names that no other test or earlier run uses: for topics, applications, groups, transactional ids."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:60].strip("-")
    return lambda purpose: f"{test}-{purpose}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def application_id(unique_name: Callable[[str], str], admin: AdminClient) -> Iterator[str]:
    """A unique application.id; the topics that the application creates are deleted afterwards."""
    name = unique_name("app")
    yield name
    delete_topics_of(admin, f"{name}-")


@pytest.fixture
def make_topic(unique_name: Callable[[str], str], admin: AdminClient) -> Iterator[MakeTopic]:
    """Create topics: ``make_topic("in", partitions=4, config={"cleanup.policy": "compact"})`` returns the full name."""
    made: list[str] = []

    def make(purpose: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        topic = unique_name(purpose)
        create_topics(admin, NewTopic(topic, partitions, 1, config=config or {}))
        made.append(topic)
        return topic

    yield make
    delete_topics(admin, *made)


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address on which no process listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@pytest.fixture(scope="session")
def certificate() -> Path:
    """A folder with cert.pem for localhost, its key.pem, and locked.pem, the same key under the password ``secret``."""
    return brokers.certificate()


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process behind, and kill the process, so that the next test starts clean."""
    before = _children()
    yield
    new = [process for pid in _children() - before if (process := _process(pid))]
    _, left = psutil.wait_procs(new, timeout=END_GRACE_SECONDS)
    descriptions = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended just now
            descriptions.append(f"{process.pid}: {' '.join(process.cmdline())}")
            process.kill()
    psutil.wait_procs(left)
    assert not descriptions, f"processes left behind: {descriptions}"


@pytest.fixture(autouse=True)
def no_descriptors_left_behind() -> Iterator[None]:
    """Fail a test that leaves many open files; the caches of libraries may keep some."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    left = len(os.listdir("/proc/self/fd")) - before
    assert left <= DESCRIPTORS_MAX, f"{left} open files are left behind"


def _children() -> set[int]:
    """Return the pids of our direct children, from /proc: psutil would read every process of the machine for it."""
    tasks = Path("/proc/self/task")
    found: set[int] = set()
    for task in os.listdir(tasks):
        # A thread may end during this loop; its children then belong to another of our threads.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(int(pid) for pid in (tasks / task / "children").read_text().split())
    return found


def _process(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        # A test may have started a broker that the whole run shares.
        stays = (*LONG_LIVED, os.environ[brokers.FOLDER_VARIABLE])
        return None if any(name in " ".join(process.cmdline()) for name in stays) else process
    except psutil.NoSuchProcess:
        return None
