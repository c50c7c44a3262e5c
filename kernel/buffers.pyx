"""Keeps blocks of some KB for the next request for memory, compiled: buffers.h says why.

It is Python's allocator that is changed (PyMem_SetAllocator), for the whole process; the blocks are kept for one thread.
"""

import os
import sys

cdef extern from "buffers.h":
    bint buffers_keep()


def keep_buffers():
    """Keep blocks for the calling thread until the process ends; return whether that is possible here.

    It is called before the process has other threads. It is not possible without glibc, for a second thread, and with
    Python's debug allocators (``PYTHONMALLOC``, ``-X dev``), which put something of their own in front of each block.
    """
    debugged = sys.flags.dev_mode or os.environ.get("PYTHONMALLOC") or hasattr(sys, "gettotalrefcount")
    return not debugged and buffers_keep()
