"""Keeps freed blocks of a few KB for the next request for memory; buffers.h says why.

It replaces Python's allocator (PyMem_SetAllocator) in the whole process, but keeps blocks for one thread only.
"""

import os
import sys

cdef extern from "buffers.h":
    bint BUFFERS_USABLE
    bint buffers_keep()

#: Whether this process can keep blocks: it needs glibc, and Python without debug allocators (``PYTHONMALLOC``, ``-X
#: dev``), which put a header before each block.
USABLE = BUFFERS_USABLE and not (
    sys.flags.dev_mode or os.environ.get("PYTHONMALLOC") or hasattr(sys, "gettotalrefcount")
)


def keep_buffers():
    """Keep blocks for the calling thread until the process ends; return whether that is the case.

    Call it before the process has other threads. Blocks are kept for the first thread that calls it.
    """
    return USABLE and buffers_keep()
