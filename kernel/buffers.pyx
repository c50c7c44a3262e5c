"""Keeps blocks of some KB for the next request for memory, compiled: buffers.h says why.

It is Python's allocator that is changed (PyMem_SetAllocator), for the whole process; the blocks are kept for one thread.
"""

import os
import sys

cdef extern from "buffers.h":
    bint BUFFERS_USABLE
    bint buffers_keep()

#: Whether blocks can be kept in this process: with glibc, and not with Python's debug allocators (``PYTHONMALLOC``,
#: ``-X dev``), which put something of their own in front of each block.
USABLE = BUFFERS_USABLE and not (
    sys.flags.dev_mode or os.environ.get("PYTHONMALLOC") or hasattr(sys, "gettotalrefcount")
)


def keep_buffers():
    """Keep blocks for the calling thread until the process ends; return whether they are kept for it.

    It is called before the process has other threads; a second thread has none kept.
    """
    return USABLE and buffers_keep()
