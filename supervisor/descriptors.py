"""File descriptors: some are kept for the supervisor's loop, which connections from outside may not use up."""

from __future__ import annotations

import errno
import resource

#: So many of the highest are kept: for the pipes of a new process, for a look at one in /proc, for the control socket's
#: connections, and for those to other hosts.
RESERVED = 64
#: What the kernel answers where there are no more descriptors, or no memory for one; a moment later there may be.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: How long to wait then, in seconds.
RETRY_SECONDS = 1.0


def is_reserved(descriptor: int) -> bool:
    """Return True if a new descriptor is one of those that are kept: the kernel always gives the lowest that is free.

    Where few are allowed at all, a quarter of them is kept.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(RESERVED, limit // 4)
