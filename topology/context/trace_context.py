"""W3C Trace Context in record headers: determines which records are traced."""

from __future__ import annotations

from ..records import Headers

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"


def is_sampled(headers: Headers) -> bool:
    """Return whether a traceparent, ``version-trace-span-flags``, has the flag of sampled traces."""
    for name, value in headers or ():
        if name == TRACEPARENT and value is not None:
            try:
                return bool(int(value.rpartition(b"-")[2], 16) & 1)
            except ValueError:
                return False
    return False


def trace_context(headers: Headers) -> Headers:
    """Return the headers with the context of a sampled trace; None if there are none."""
    if not headers or not is_sampled(headers):
        return None
    return [header for header in headers if header[0] in (TRACEPARENT, TRACESTATE)]
