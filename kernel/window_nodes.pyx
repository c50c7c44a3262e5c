# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The nodes of windows: aggregations, joins of streams, suppress. docs/nodes.md explains it."""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t

from penstock.kernel.aggregates cimport aggregated
from penstock.kernel.cells cimport CellUpdates, TimeWindows
from penstock.kernel.nodes cimport (
    NEEDS_BYTES,
    READS,
    ChangeNode,
    Key,
    KeyReader,
    Node,
    RecordContext,
    deliver,
    key_bytes_of,
    key_of,
    windowed_key,
    windowed_key_from,
)
from penstock.kernel.rows cimport RowBuffer, SegmentTimes, log_key_of, value_of
from penstock.kernel.sinks cimport Changelog
from penstock.kernel.table_nodes cimport CachedRows, RowNode, Rows, StoredRows, end_of, key_for, use_by

cdef enum:
    SEQUENCE_BYTES = 4  # after a window's start
    SEQUENCE_MAX = 0x7FFFFFFF


# -- time windows

@cython.final
cdef class StoredWindowRows(StoredRows):
    """The rows of a window store without a cache. Their keys are changelog keys: a key, its window's start, and zeros.

    decode_key: for bytes (not None). size_ms, window_end: of windows, see Cells.
    """

    cdef SegmentTimes segments
    cdef KeyReader reader
    cdef int64_t size_ms
    cdef object window_end
    cdef bytes record_key  # and start: of the window that is updated
    cdef int64_t start

    def __init__(self, RecordContext task not None, RowBuffer buffer not None, Changelog changelog not None, key_serde,
                 encode_key, value_serde, encode, decode, exact, exact_type, log_headers, SegmentTimes segments not None,
                 decode_key, int64_t size_ms, window_end):
        StoredRows.__init__(
            self, task, buffer, changelog, key_serde, encode_key, value_serde, encode, decode, exact, exact_type, log_headers,
            False,
        )
        self.segments = segments
        self.reader = KeyReader(key_serde, decode_key)
        self.size_ms, self.window_end = size_ms, window_end

    cdef object find(self, bytes row_key):
        row = self.segments.row(self.record_key, self.start, 0)
        return None if row is None else value_of(<bytes?>row, &self.row_time)

    cdef int set_row(self, bytes row_key, row) except -1:
        return self.segments.put_row(self.record_key, self.start, 0, row_key, row)

    cdef int update(self, WindowAggregate node, bytes record_key, given, value, int64_t start, int64_t timestamp, headers) except -1:
        """Aggregate a value into one window, and pass the change on."""
        cdef bytes row_key = log_key_of(record_key, start, 0, SEQUENCE_BYTES)
        cdef int64_t newest = timestamp
        self.record_key, self.start = record_key, start
        row = self.find(row_key)
        if row is not None:
            newest = max(timestamp, self.row_time)
        if node.counts:
            value = 1 if row is None else self.decoded(row) + 1
        elif node.initializer is not None:
            value = aggregated(node.aggregator, given, value, node.initializer() if row is None else self.decoded(row))
        elif row is not None:
            value = node.aggregator(self.decoded(row), value)
        key = windowed_key_from(record_key, self.reader, start, end_of(start, self.size_ms, self.window_end))
        return self.put(node, key, row_key, value, None, timestamp, newest, headers, node.counts and self.exact_type is int)


@cython.final
cdef class WindowAggregate(RowNode):
    """Aggregates the values of each key and window. initializer None: aggregator is a reducer.

    rows: CachedRows, whose cache passes changes on, or StoredWindowRows.
    """

    cdef TimeWindows windows
    cdef object initializer, aggregator
    cdef bint counts

    def __init__(self, task, name, child, Rows rows not None, dropped, TimeWindows windows not None, initializer, aggregator,
                 bint counts):
        RowNode.__init__(self, task, name, child, rows, dropped)
        self.windows = windows
        self.initializer, self.aggregator, self.counts = initializer, aggregator, counts

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef bytes record_key
        self.task.at = self.name
        if key is None:
            self.dropped("null key")
            return 0
        record_key = self.rows.key_bytes(key)
        given = None if self.counts or self.initializer is None else key_for(self.aggregator, key)
        self.task.written_value = None
        for cache_key in self.windows.cache_keys(record_key, timestamp):
            if cache_key is None:
                self.dropped("expired window")
            elif type(self.rows) is StoredWindowRows:
                start = (<tuple?>cache_key)[1]
                (<StoredWindowRows>self.rows).update(self, record_key, given, value, start, timestamp, headers)
            else:
                self.update(<CachedRows?>self.rows, cache_key, given, value, timestamp, headers)
        return 0

    cdef int update(self, CachedRows rows, cache_key, given, value, int64_t timestamp, headers) except -1:
        cdef bint grew
        if self.counts:
            grew = rows.updates.count(cache_key, timestamp, headers, rows.source())
        elif self.initializer is None:
            grew = rows.updates.reduce(self.aggregator, cache_key, value, timestamp, headers, rows.source())
        else:
            grew = rows.updates.aggregate(
                self.initializer, self.aggregator, cache_key, given, value, timestamp, headers, rows.source()
            )
        if grew:
            rows.grow(timestamp, headers)
            self.task.at = self.name
        return 0

    cpdef dict known_keys(self, serde):
        return None

    cpdef int use_of_key(self, serde) except -1:
        return RowNode.use_of_key(self, serde) | (0 if self.counts or self.initializer is None else use_by(self.aggregator))


@cython.final
cdef class Suppress(ChangeNode):
    """Makes the rows of a buffer: put(row key, buffer time, new, old, timestamp, headers).

    until_close: whether the buffer time is the end of the window. inner: the serde of a windowed key's inner key;
    from_held: see WindowedKeySink. encode_key: for any key.
    """

    cdef object put, key_serde, inner, from_held, encode_key
    cdef bint until_close

    def __init__(self, task, name, put, bint until_close, key_serde, inner, from_held, encode_key):
        Node.__init__(self, task, name)
        self.put, self.until_close = put, until_close
        self.key_serde, self.inner, self.from_held, self.encode_key = key_serde, inner, from_held, encode_key

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef Key unread
        self.task.at = self.name
        if type(key) is Key:
            unread = <Key>key
            if unread.is_windowed and unread.reader.serde is self.inner:
                time = unread.end if self.until_close else timestamp
                self.put(self.from_held(unread.held()), time, new, old, timestamp, headers)
                return 0
            if not unread.is_windowed and unread.reader.serde is self.key_serde and not self.until_close:
                self.put(unread.data, timestamp, new, old, timestamp, headers)
                return 0
        key = key_of(key)
        self.put(self.encode_key(key), key[2] if self.until_close else timestamp, new, old, timestamp, headers)
        return 0


# -- sessions

@cython.final
cdef class CachedSessions:
    """The sessions of a cached store, by (record key, end, start). taken_in: see CachedRows of statestore/cache."""

    cdef CellUpdates updates
    cdef object key_serde, encode_key, grown, taken_in
    cdef bint counts

    def __init__(self, CellUpdates updates not None, key_serde, encode_key, grown, taken_in, bint counts):
        self.updates, self.key_serde, self.encode_key = updates, key_serde, encode_key
        self.grown, self.taken_in, self.counts = grown, taken_in, counts

    cdef list find(self, bytes row_key, int64_t earliest_end):
        """Return (end, start, aggregate) of a key's sessions; None if some may be on disk."""
        return self.updates.table.key_values(row_key, earliest_end, INT64_MAX)

    cdef int put(self, RecordContext task, bytes row_key, end, start, aggregate) except -1:
        """Put an aggregate, None to delete the session."""
        key = (row_key, end, start)
        if self.taken_in:
            self.taken_in.discard(key)
        if self.updates.table.put(key, self.updates.held(aggregate), task.timestamp, task.headers, task.message):
            self.grown()
        return 0


@cython.final
cdef class SessionAggregate(Node):
    """Aggregates the values of each key and session; a record merges the sessions that it connects.

    sessions: in the record cache, which passes changes on; None without a cache: then find_sessions(key, earliest end, latest
    start) finds them, and replace(session, value, aggregate before it, merged sessions, timestamp, headers) aggregates it into
    one and deletes the others. copy(aggregate): of merged sessions for replace, because a merger may change its arguments.
    gap_ms, grace_ms: of the windows. emit(close time, headers): passes on what has closed, None if changes go on at once.
    stream_time: the highest timestamp seen. dropped: see RowNode.
    """

    cdef object initializer, aggregator, merger, find_sessions, replace, copy, emit, dropped
    cdef CachedSessions sessions
    cdef int64_t gap_ms, grace_ms
    cdef public int64_t stream_time

    def __init__(self, task, name, child, initializer, aggregator, merger, CachedSessions sessions, find_sessions, replace,
                 copy, emit, int64_t gap_ms, int64_t grace_ms, dropped):
        Node.__init__(self, task, name, child)
        self.initializer, self.aggregator, self.merger = initializer, aggregator, merger
        self.sessions, self.find_sessions, self.replace, self.copy, self.emit = sessions, find_sessions, replace, copy, emit
        self.gap_ms, self.grace_ms, self.dropped = gap_ms, grace_ms, dropped
        self.stream_time = -1

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        cdef bytes row_key = None
        cdef int64_t close_time, start = timestamp, end = timestamp, other_start, other_end
        cdef list found = None
        task.at = self.name
        task.written_value = None
        if key is None:
            self.dropped("null key")
            return 0
        if timestamp > self.stream_time:
            self.stream_time = timestamp
        close_time = self.stream_time - self.grace_ms - self.gap_ms
        if self.sessions is not None:
            row_key = key_bytes_of(key, self.sessions.key_serde, self.sessions.encode_key)
            found = self.sessions.find(row_key, timestamp - self.gap_ms)
        if found is None:
            found = [
                (session[2], session[1], old)
                for session, old in self.find_sessions(key_of(key), timestamp - self.gap_ms, timestamp + self.gap_ms)
            ]
        cdef bint counts = self.sessions is not None and self.sessions.counts
        cdef list merged = []
        aggregate = 0 if counts else self.initializer()
        for session in found:
            other_end, other_start = (<tuple>session)[0], (<tuple>session)[1]
            if other_start > timestamp + self.gap_ms:
                continue
            old = (<tuple>session)[2]
            merged.append(session if self.copy is None else (other_end, other_start, self.copy(old)))
            aggregate = aggregate + old if counts else self.merger(key_of(key), aggregate, old)
            start, end = min(start, other_start), max(end, other_end)
        if end < close_time:
            self.dropped("expired window")
        elif self.sessions is None:
            merged = [(windowed_key(key_of(key), each[1], each[0]), each[2]) for each in merged]
            session = windowed_key(key_of(key), start, end)
            self.replace(session, value, aggregate, merged, timestamp, headers)
        else:
            if start != timestamp or end != timestamp:
                for session in merged:
                    task.timestamp, task.headers = timestamp, headers
                    self.sessions.put(task, row_key, (<tuple>session)[0], (<tuple>session)[1], None)
            aggregate = aggregate + 1 if counts else self.aggregator(key_of(key), value, aggregate)
            task.timestamp, task.headers = timestamp, headers
            self.sessions.put(task, row_key, end, start, aggregate)
        if self.emit is not None:
            self.emit(close_time, headers)
        return 0

    cpdef int use_of_key(self, serde) except -1:
        if self.sessions is None or not self.sessions.counts:
            return READS
        return NEEDS_BYTES if serde is self.sessions.key_serde else READS


# -- joins of streams

cdef int64_t NO_RECORD = INT64_MAX


@cython.final
cdef class TimeTracker:
    """Times that both sides of a join share in one task (Kafka Streams: KStreamImplJoin.TimeTracker), in ms.

    stream_time: highest timestamp on either side; min_time: no record without a partner is older, INT64_MAX while there is
    none; next_time_to_emit: wall-clock time before which there is no search for closed windows.
    """

    cdef public int64_t stream_time, min_time, next_time_to_emit

    def __cinit__(self):
        self.stream_time, self.min_time = -1, NO_RECORD

    def times(self):
        """Return all three times; see NodeContext.remembers."""
        return self.stream_time, self.min_time, self.next_time_to_emit

    def recall(self, times):
        """Restore the times that times() returned."""
        self.stream_time, self.min_time, self.next_time_to_emit = times


@cython.final
cdef class JoinRows:
    """The rows of a window store with duplicates, for a join; see WindowRows of store_interfaces.py."""

    cdef readonly object key_serde
    cdef object encode_key, encode, decode
    cdef SegmentTimes segments
    cdef Changelog changelog
    cdef bint log_headers

    def __init__(self, key_serde, encode_key, encode, decode, bint log_headers, SegmentTimes segments not None,
                 Changelog changelog not None):
        self.key_serde, self.encode_key, self.encode, self.decode = key_serde, encode_key, encode, decode
        self.log_headers, self.segments, self.changelog = log_headers, segments, changelog

    cdef int add(self, key, value, int64_t timestamp, headers) except -1:
        """Add a value, which is not None."""
        cdef bytes row_key = key_bytes_of(key, self.key_serde, self.encode_key)
        cdef bytes data = <bytes?>(value if self.encode is None else self.encode(value))
        cdef int64_t sequence = (self.segments.sequence + 1) & SEQUENCE_MAX
        cdef bytes log_key = log_key_of(row_key, timestamp, sequence, SEQUENCE_BYTES)
        self.segments.sequence = sequence
        self.changelog.write(log_key, data, timestamp, headers if self.log_headers else None)
        return self.segments.put_row(row_key, timestamp, sequence, log_key, data)

    cdef list find(self, key, int64_t time_from, int64_t time_to):
        """Return (timestamp, value) of a key's rows from a time to another one, None if some may be on disk or hidden."""
        if not self.segments.visible_from <= time_from <= time_to:
            return None
        row_key = key_bytes_of(key, self.key_serde, self.encode_key)
        return self.segments.latest.values(row_key, time_from, time_to, self.decode)


@cython.final
cdef class JoinWindow(Node):
    """Passes a record on to be joined, and then stores it for the other side if it has a key; see KStreamJoinWindow.

    put(key, value, time): of the store. rows: in its place for values that are not None, None if the kernel cannot.
    """

    cdef object put
    cdef JoinRows rows

    def __init__(self, task, name, child, put, JoinRows rows):
        Node.__init__(self, task, name, child)
        self.put, self.rows = put, rows

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        deliver(self.child, key, value, timestamp, headers)
        if key is None:
            return 0
        task.at = self.name
        task.written_value = None
        task.timestamp, task.headers = timestamp, headers
        if self.rows is None or value is None:
            self.put(key_of(key), value, timestamp)
            return 0
        return self.rows.add(key, value, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        cdef bint by_bytes = self.rows is not None and serde is self.rows.key_serde
        return self.child.use_of_key(serde) | (NEEDS_BYTES if by_bytes else READS)


@cython.final
cdef class StreamJoin(Node):
    """Joins the records of one side of a stream-stream join: joiner(left, right), or (key, left, right) with with_key.

    is_right: whether it is the right side. before_ms, after_ms: how much earlier and later than the record here the one there
    may be. fetch(key, from, to): the rows (timestamp, value) of the other side; rows: where they are looked up before, None if
    the kernel cannot. outer: whether a record without a partner is joined with None. waiting: these until their windows
    close, a NonJoinedRecords, or None. search_ms: how much later than tracker.min_time it has to look for them.
    """

    cdef object joiner, fetch, waiting, dropped
    cdef bint with_key, is_right, outer
    cdef int64_t before_ms, after_ms, search_ms
    cdef JoinRows rows
    cdef TimeTracker tracker

    def __init__(self, task, name, child, joiner, bint with_key, bint is_right, bint outer, int64_t before_ms,
                 int64_t after_ms, TimeTracker tracker not None, fetch, JoinRows rows, waiting, int64_t search_ms, dropped):
        Node.__init__(self, task, name, child)
        self.joiner, self.with_key, self.is_right, self.outer = joiner, with_key, is_right, outer
        self.before_ms, self.after_ms, self.tracker = before_ms, after_ms, tracker
        self.fetch, self.rows = fetch, rows
        self.waiting, self.search_ms, self.dropped = waiting, search_ms, dropped

    cdef int join(self, key, value, other, int64_t timestamp, headers) except -1:
        self.task.written_value = None
        left, right = (other, value) if self.is_right else (value, other)
        joined = self.joiner(key_of(key), left, right) if self.with_key else self.joiner(left, right)
        deliver(self.child, key, joined, timestamp, headers)
        self.task.at = self.name
        return 0

    cdef object found(self, key, int64_t time_from, int64_t time_to):
        known = None if self.rows is None else self.rows.find(key, time_from, time_to)
        return self.fetch(key_of(key), time_from, time_to) if known is None else known

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef TimeTracker tracker = self.tracker
        cdef int64_t last = max(0, timestamp + self.after_ms), other_time
        cdef bint is_joined = False
        self.task.at = self.name
        if timestamp > tracker.stream_time:
            tracker.stream_time = timestamp
        if key is None or value is None:
            if not self.outer or value is None:
                self.dropped("null key or value")
                return 0
            return self.join(key, value, None, timestamp, headers)
        if self.waiting is not None and timestamp == tracker.stream_time and self.may_have_closed():
            self.waiting.emit(headers)
            self.task.at = self.name
        for other_time, other in self.found(key, max(0, timestamp - self.before_ms), last):
            is_joined = True
            if self.waiting is not None:
                self.waiting.remove_other(key_of(key), other_time, timestamp, headers)
            self.join(key, value, other, max(timestamp, other_time), headers)
        if is_joined or not self.outer:
            return 0
        # A record whose window has passed need not wait: rows of the other side that it might have joined are gone.
        if self.waiting is None or last < tracker.stream_time:
            return self.join(key, value, None, timestamp, headers)
        self.waiting.add(key_of(key), value, timestamp, headers)
        return 0

    cdef bint may_have_closed(self):
        """Return whether the oldest waiting record's window may have closed.

        If no record waits, Kafka Streams' sum overflows to a negative number. It then finds nothing to emit, but the
        interval until the next search begins.
        """
        if self.tracker.min_time == NO_RECORD:
            return self.search_ms > 0
        return self.tracker.min_time + self.search_ms < self.tracker.stream_time

    cpdef int use_of_key(self, serde) except -1:
        cdef bint by_bytes = self.rows is not None and serde is self.rows.key_serde and self.waiting is None
        return self.child.use_of_key(serde) | (READS if self.with_key or not by_bytes else NEEDS_BYTES)
