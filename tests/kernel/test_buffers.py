"""The allocator that keeps blocks of some KB.

Each test runs in a separate process, because the allocator stays installed.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from penstock.kernel.buffers import USABLE
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.skipif(not USABLE, reason="this C library or Python has another allocator"),
    pytest.mark.medium,
]


def glibc_version() -> tuple[int, ...]:
    """Return the version of the C library, () if it is not glibc."""
    name, version = platform.libc_ver()
    return tuple(map(int, version.split("."))) if name == "glibc" else ()


KEEPS = "from penstock.kernel.buffers import keep_buffers\nassert keep_buffers()\n"
#: A freed block, and the piece that glibc would cut from it for the next, smaller request.
REUSE = """
block = bytearray(4_500)
address = id_of(block)
del block
smaller = bytearray(3_000)
again = bytearray(4_500)
print(id_of(again) == address)
"""
ADDRESS = """
import ctypes
def id_of(block):
    return ctypes.addressof(ctypes.c_char.from_buffer(block))
"""
MANY = """
import os, random, threading

def churn(seed):
    draw = random.Random(seed)
    blocks = {}
    for _ in range(30_000):
        number = draw.randrange(40)
        if number in blocks:
            fill, block = blocks.pop(number)
            assert block == bytes([fill]) * len(block), "somebody else has written here"
        else:
            fill = draw.randrange(256)
            block = bytearray([fill]) * draw.choice((1_020, 1_040, 3_000, 4_089, 4_096, 8_192, 65_500, 70_000))
            if draw.random() < 0.3:
                block.extend(bytes([fill]) * draw.randrange(9_000))
            blocks[number] = fill, block
            shared.append(bytearray(5_000))  # made by one thread and freed by another
            if len(shared) > 20:
                shared.clear()

shared = []
threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
churn(9)
for thread in threads:
    thread.join()
print("done")
"""


def run(program: str, *options: str, **environment: str) -> str:
    command = [sys.executable, *options, "-c", program]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_last_freed_block_is_reused_for_the_next_request_of_its_size() -> None:
    assert run(KEEPS + ADDRESS + REUSE) == "True"


@pytest.mark.skipif(glibc_version() >= (2, 42), reason="this glibc does not cut the block")
def test_glibc_cuts_the_last_freed_block_for_a_smaller_request() -> None:
    assert run(ADDRESS + REUSE) == "False", "nothing of ours is needed"


def test_blocks_of_all_sizes_are_exclusive_whichever_thread_frees_them() -> None:
    assert run(KEEPS + MANY) == "done"


def test_another_thread_keeps_no_blocks() -> None:
    program = (
        "import threading\nfound = []\n"
        "thread = threading.Thread(target=lambda: found.append(keep_buffers()))\n"
        "thread.start()\nthread.join()\nprint(found, keep_buffers())"
    )
    assert run(KEEPS + program) == "[False] True"


@pytest.mark.parametrize(("options", "environment"), [(("-X", "dev"), {}), ((), {"PYTHONMALLOC": "debug"})])
def test_pythons_debug_allocators_are_left_alone(options: tuple[str, ...], environment: dict[str, str]) -> None:
    program = "from penstock.kernel.buffers import keep_buffers\nprint(keep_buffers())"
    assert run(program, *options, "-W", "ignore", **environment) == "False"


def test_memory_can_be_traced() -> None:
    program = (
        "import tracemalloc\ntracemalloc.start()\nblocks = [bytearray(4_500) for _ in range(10)]\n"
        "grown = tracemalloc.get_traced_memory()[0]\ndel blocks\ntracemalloc.stop()\nprint(grown > 45_000)"
    )
    assert run(KEEPS + program) == "True"
