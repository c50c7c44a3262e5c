"""The run's own network: one network namespace for the cluster and one for each host, joined by a switch.

Namespaces belong to processes and vanish with them; the machine's own network is not touched.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from tests.chaos.switch import Rule, encode

ROOT = Path(__file__).resolve().parents[2]
#: From linux/sched.h and linux/if_tun.h.
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
TUN, THREADS_NAMESPACE = "/dev/net/tun", "/proc/thread-self/ns/net"
#: Addresses used only in these namespaces.
ADDRESS = "10.111.0.{}"
FIRST_HOST = 101
DEVICE = "wire"
#: Larger than Ethernet's: fewer packets for the switch.
MTU = 9_000


class Network:
    """As a context manager: the calling thread is in the cluster's namespace for the length of the block.

    Processes and threads that it starts are there too. brokers, hosts: their numbers. Raises OSError without permission
    for namespaces; see ``why_not``.
    """

    def __init__(self, brokers: Iterable[int], hosts: Iterable[int]) -> None:
        self.brokers = {number: ADDRESS.format(number) for number in brokers}
        self.hosts = {number: ADDRESS.format(FIRST_HOST + number) for number in hosts}
        self._namespaces: dict[int, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Network:
        with ExitStack() as stack:
            stack.enter_context(_back_afterwards())
            tuns = []
            for number, address in self.hosts.items():
                namespace, tun = _new_namespace([address])
                self._namespaces[number] = namespace
                tuns.append(tun)
                stack.callback(os.close, namespace)
            own, tun = _new_namespace(self.brokers.values())  # the thread stays in it
            tuns.insert(0, tun)
            stack.callback(os.close, own)
            self._switch = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.switch", *map(str, tuns)],
                cwd=ROOT,
                pass_fds=tuns,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(self._end_switch)
            for tun in tuns:
                os.close(tun)  # the switch has them now
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextmanager
    def on(self, host: int) -> Iterator[None]:
        """Have processes that are started in the block run on a host."""
        with _back_afterwards():
            _enter(self._namespaces[host])
            yield

    def rule(self, rules: list[Rule]) -> dict[str, int]:
        """Replace all rules; return the number of packets forwarded, lost and delayed since the last call."""
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.write(encode(rules) + "\n")
        self._switch.stdin.flush()
        counts: dict[str, int] = json.loads(self._switch.stdout.readline())
        return counts

    def _end_switch(self) -> None:
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        self._switch.wait()
        assert self._switch.stdout is not None
        self._switch.stdout.close()


def why_not() -> str | None:
    """Return why networks cannot be created here, None if they can."""
    if shutil.which("ip") is None:
        return "there is no command ip (iproute2)"
    try:
        with Network([1], [1]):
            return None
    except OSError as error:
        return f"{error}: run it as root, or with `unshare --map-root-user --net`"
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


@contextmanager
def _back_afterwards() -> Iterator[None]:
    """Return the calling thread to its current namespace afterwards."""
    before = os.open(THREADS_NAMESPACE, os.O_RDONLY)
    try:
        yield
    finally:
        _enter(before)
        os.close(before)


def _new_namespace(addresses: Iterable[str]) -> tuple[int, int]:
    """Bring the calling thread into a new namespace with these addresses; return it and its TUN device."""
    _call("unshare", CLONE_NEWNET)
    tun = os.open(TUN, os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    _ip("link", "set", "lo", "up")
    _ip("link", "set", DEVICE, "up", "mtu", str(MTU))
    for address in addresses:
        _ip("address", "add", f"{address}/24", "dev", DEVICE)
    return os.open(THREADS_NAMESPACE, os.O_RDONLY), tun


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _enter(namespace: int) -> None:
    _call("setns", namespace, CLONE_NEWNET)


def _call(name: str, *arguments: int) -> None:
    """Call a function of libc that Python has only since 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
