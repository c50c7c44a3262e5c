"""File descriptors: some are reserved for the supervisor's loop, so that outside connections cannot use them up."""

from __future__ import annotations

import errno
import resource

#: The number of reserved descriptors: for the pipes of a new process, for reading its /proc entry, for the control
#: socket's connections, and for connections to other hosts.
RESERVED = 64
#: The kernel's errors if there are no more descriptors, or no memory for one; they may be temporary.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: Seconds to wait then.
RETRY_SECONDS = 1.0


def is_reserved(descriptor: int) -> bool:
    """Return True if a new descriptor is a reserved one: the kernel always returns the lowest free one.

    If the limit is low, a quarter of the descriptors is reserved.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(RESERVED, limit // 4)
