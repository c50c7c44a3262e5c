# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The nodes of windows: aggregations, joins of streams, suppress. docs/nodes.md explains it."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t
from libc.string cimport memcpy

from penstock.kernel.aggregates cimport aggregated
from penstock.kernel.conversions cimport converted
from penstock.kernel.nodes cimport (
    NEEDS_BYTES,
    READS,
    ChangeNode,
    Key,
    KeyReader,
    Node,
    RecordContext,
    deliver,
    deliver_change,
    has_windowed_bytes,
    key_bytes_of,
    key_of,
    known_bytes_of,
    windowed_key,
    windowed_key_from,
)
from penstock.kernel.rows cimport TIME_BYTES, RowBuffer, SegmentTimes, log_key_of, sum_of, value_of, write_time
from penstock.kernel.sinks cimport Changelog
from penstock.kernel.table_nodes cimport CachedRows, PythonRows, RowNode, Rows, StoredRows, key_for, use_by

cdef enum:
    SEQUENCE_BYTES = 4  # after a window's start
    SEQUENCE_MAX = 0x7FFFFFFF
    NEVER = -1  # no timestamp (Kafka: ConsumerRecord.NO_TIMESTAMP)


# -- aggregations by windows

@cython.final
cdef class CloseEmitter:
    """Passes on the windows of one store as they close (Kafka Streams: AbstractKStreamTimeWindowAggregateProcessor).

    closing(last close time, close time): the first and the last time of the windows that have closed in between, None if
    there cannot be any. fetch(first, last): their rows, (windowed key, row). timestamped: whether a row is (value,
    timestamp); otherwise it is the value of a session, whose end is the timestamp. wall_clock_ms(), interval_ms: there is no
    search before next_time_to_emit.

    The last close time is kept in the task's processor metadata, which is committed with the offsets, so that no result
    is emitted again after a restart.
    """

    cdef RecordContext task
    cdef object name, store, closing, fetch, wall_clock_ms
    cdef Node child
    cdef dict metadata
    cdef bint timestamped
    cdef int64_t interval_ms, last_close_time
    cdef public int64_t next_time_to_emit

    def __init__(self, RecordContext task not None, name, Node child not None, str store, closing, fetch, bint timestamped,
                 dict metadata not None, wall_clock_ms, int64_t interval_ms):
        self.task, self.name, self.child, self.store = task, name, child, store
        self.closing, self.fetch, self.timestamped = closing, fetch, timestamped
        self.metadata, self.wall_clock_ms, self.interval_ms = metadata, wall_clock_ms, interval_ms
        self.last_close_time = metadata.get(store, NEVER)

    cdef int emit(self, int64_t close_time, headers) except -1:
        """Pass on the windows that have closed. headers: of the record that advanced stream time."""
        cdef int64_t now = self.wall_clock_ms(), at
        if now < self.next_time_to_emit:
            return 0
        self.next_time_to_emit = now + self.interval_ms
        if self.last_close_time != NEVER and self.last_close_time >= close_time:
            return 0
        times = self.closing(self.last_close_time, close_time)
        if times is None or times[1] < 0:
            return 0
        for windowed, row in self.fetch(times[0], times[1]):
            value, at = row if self.timestamped else (row, windowed[2])
            self.task.written_value = None
            deliver_change(self.child, windowed, value, None, True, at, headers)
            self.task.at = self.name
        self.last_close_time = self.metadata[self.store] = close_time
        return 0


@cython.final
cdef class StoredWindowRows(StoredRows):
    """The rows of a window store without a cache. Their keys are changelog keys: a key, its window's start, and zeros.

    decode_key: for bytes (not None). decode_row: for a row, with its timestamp.
    """

    cdef SegmentTimes segments
    cdef KeyReader reader
    cdef object decode_row
    cdef bytes record_key  # and start: of the window that is updated
    cdef int64_t start

    def __init__(self, RecordContext task not None, RowBuffer buffer not None, Changelog changelog not None, key_serde,
                 encode_key, value_serde, encode, decode, exact, exact_type, log_headers, SegmentTimes segments not None,
                 decode_key, decode_row):
        StoredRows.__init__(
            self, task, buffer, changelog, key_serde, encode_key, value_serde, encode, decode, exact, exact_type, log_headers,
            False,
        )
        self.segments = segments
        self.reader = KeyReader(key_serde, decode_key)
        self.decode_row = decode_row

    cdef object find(self, bytes row_key):
        row = self.segments.row(self.record_key, self.start, 0)
        return None if row is None else value_of(<bytes?>row, &self.row_time)

    cdef list between(self, bytes record_key, int64_t time_from, int64_t time_to):
        """Return (start, row) of a key's windows that start in this time, None if some may be on disk or hidden."""
        if not self.segments.visible_from <= time_from <= time_to:
            return None
        return self.segments.latest.values(record_key, time_from, time_to, self.decode_row)

    cdef int set_row(self, bytes row_key, row) except -1:
        return self.segments.put_row(self.record_key, self.start, 0, row_key, row)

    cdef bytes begin(self, bytes record_key, int64_t start):
        """Begin to update a window; return its row's key."""
        self.record_key, self.start = record_key, start
        return log_key_of(record_key, start, 0, SEQUENCE_BYTES)

    cdef int put_window(
        self, Node node, bytes row_key, int64_t end, new, int64_t timestamp, int64_t newest, headers, bint as_it_is
    ) except -1:
        """Write the row of the window, and pass the change on; see put()."""
        key = windowed_key_from(self.record_key, self.reader, self.start, end)
        return self.put(node, key, row_key, new, None, timestamp, newest, headers, as_it_is)

    cdef int use_of_key(self, Node node, serde) except -1:
        return Rows.use_of_key(self, node, serde)  # the nodes after this one get the windowed key

    cdef int update(
        self, WindowedAggregate node, bytes record_key, given, value, int64_t start, int64_t end, int64_t timestamp, headers
    ) except -1:
        """Aggregate a value into one window, and pass the change on."""
        cdef bytes row_key = self.begin(record_key, start)
        cdef int64_t newest = timestamp
        row = self.find(row_key)
        if row is not None:
            newest = max(timestamp, self.row_time)
        if node.counts:
            value = 1 if row is None else self.decoded(row) + 1
        elif node.initializer is not None:
            value = aggregated(node.aggregator, given, value, node.initializer() if row is None else self.decoded(row))
        elif row is not None:
            value = node.aggregator(self.decoded(row), value)
        return self.put_window(node, row_key, end, value, timestamp, newest, headers, node.counts and self.exact_type is int)


cdef class WindowedAggregate(RowNode):
    """Base of nodes that aggregate the values of each key and window. initializer None: aggregator is a reducer.

    rows: CachedRows, whose cache passes changes on; StoredWindowRows; PythonRows, whose keys are windowed. counts: whether
    it is a count, which the rows can do. emitter: passes windows on as they close; None if changes go on at once.
    """

    cdef object initializer, aggregator
    cdef bint counts
    cdef CloseEmitter emitter

    def __init__(self, task, name, child, Rows rows not None, dropped, initializer, aggregator, bint counts,
                 CloseEmitter emitter):
        RowNode.__init__(self, task, name, child, rows, dropped)
        self.initializer, self.aggregator, self.counts, self.emitter = initializer, aggregator, counts, emitter

    cdef bytes record_key(self, key):
        """Return the bytes of a record's key, None if the rows need the key itself."""
        return None if type(self.rows) is PythonRows else self.rows.key_bytes(key)

    cpdef int use_of_key(self, serde) except -1:
        return RowNode.use_of_key(self, serde) | (0 if self.counts or self.initializer is None else use_by(self.aggregator))


# -- time windows

cdef class TimeWindows:
    """The windows of a timestamp, of fixed size; arguments in ms. A window closes grace_ms after its end.

    stream_time: the highest timestamp seen, -1 before the first. Other kinds of windows override starts() and end().
    """

    cdef public int64_t stream_time
    cdef readonly int64_t grace_ms
    cdef int64_t size_ms, advance_ms, first_ms, last_ms
    cdef tuple known  # the starts of the windows from first_ms to last_ms

    def __init__(self, int64_t size_ms, int64_t advance_ms, int64_t grace_ms):
        self.size_ms, self.advance_ms, self.grace_ms = size_ms, advance_ms, grace_ms
        self.stream_time = -1
        self.last_ms = -advance_ms

    cpdef object starts(self, int64_t timestamp):
        """Return the starts of the windows that contain a timestamp, None for one that has closed; advance stream_time."""
        if timestamp > self.stream_time:
            self.stream_time = timestamp
        # The size may not be a multiple of the advance: then the first window can change while the last one does not.
        cdef int64_t last = timestamp - timestamp % self.advance_ms
        cdef int64_t first = max(0, timestamp - self.size_ms + self.advance_ms)
        first -= first % self.advance_ms
        if last != self.last_ms or first != self.first_ms:
            self.last_ms, self.first_ms = last, first
            self.known = tuple(range(first, last + 1, self.advance_ms))
        cdef int64_t closed = self.stream_time - sum_of(self.size_ms, self.grace_ms)
        if first > closed:
            return self.known
        return [start if start > closed else None for start in self.known]

    cpdef int64_t end(self, int64_t start) except? -1:
        """Return the end of a window that starts() has returned last."""
        return sum_of(start, self.size_ms)


@cython.final
cdef class CalendarWindows(TimeWindows):
    """The windows of CalendarWindows, one at a time: window_of(timestamp) -> (start, end)."""

    cdef object window_of
    cdef int64_t end_ms

    def __init__(self, window_of, int64_t grace_ms):
        TimeWindows.__init__(self, 0, 1, grace_ms)
        self.window_of = window_of

    cpdef object starts(self, int64_t timestamp):
        """As for TimeWindows."""
        if not self.known or not self.first_ms <= timestamp < self.end_ms:
            start, end = self.window_of(timestamp)  # it may raise: then the record has no effect on later ones
            self.first_ms, self.end_ms, self.known = start, end, (start,)
        if timestamp > self.stream_time:
            self.stream_time = timestamp
        return self.known if self.end_ms > self.stream_time - self.grace_ms else (None,)

    cpdef int64_t end(self, int64_t start) except? -1:
        """As for TimeWindows."""
        return self.end_ms


@cython.final
cdef class WindowAggregate(WindowedAggregate):
    """Aggregates the values of each key and window that the timestamp alone determines."""

    cdef TimeWindows windows

    def __init__(self, task, name, child, rows, dropped, initializer, aggregator, counts, emitter,
                 TimeWindows windows not None):
        WindowedAggregate.__init__(self, task, name, child, rows, dropped, initializer, aggregator, counts, emitter)
        self.windows = windows

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef bytes record_key
        self.task.at = self.name
        if key is None:
            self.dropped("null key")
            return 0
        record_key = self.record_key(key)
        self.task.written_value = None
        for start in self.windows.starts(timestamp):
            if start is None:
                self.dropped("expired window")
            else:
                self.update(key, record_key, value, start, timestamp, headers)
        if self.emitter is not None:
            self.emitter.emit(self.windows.stream_time - self.windows.grace_ms, headers)
        return 0

    def advance_time(self, int64_t time_ms):
        """Do what a record of a later time does to windows; see NodeContext.on_time."""
        if time_ms > self.windows.stream_time:
            self.windows.stream_time = time_ms
            if self.emitter is not None:
                self.emitter.emit(time_ms - self.windows.grace_ms, None)

    cdef int update(self, key, bytes record_key, value, start, int64_t timestamp, headers) except -1:
        given = None if self.counts or self.initializer is None else key_for(self.aggregator, key)
        if type(self.rows) is CachedRows:
            return self.update_cached(<CachedRows>self.rows, record_key, start, given, value, timestamp, headers)
        cdef int64_t end = self.windows.end(start)
        if type(self.rows) is StoredWindowRows:
            return (<StoredWindowRows>self.rows).update(self, record_key, given, value, start, end, timestamp, headers)
        cdef PythonRows rows = <PythonRows?>self.rows
        window = windowed_key(key_of(key), start, end)
        if self.initializer is None:
            return rows.reduce(self, self.aggregator, window, value, timestamp, headers)
        return rows.aggregate_in(window, self.initializer, self.aggregator, given, value, timestamp, headers)

    cdef int update_cached(
        self, CachedRows rows, bytes record_key, int64_t start, given, value, int64_t timestamp, headers
    ) except -1:
        cdef bint grew
        if self.counts:
            grew = rows.updates.count(record_key, start, 0, timestamp, headers, rows.source())
        elif self.initializer is None:
            grew = rows.updates.reduce(
                self.aggregator, record_key, start, 0, value, timestamp, headers, rows.source()
            )
        else:
            grew = rows.updates.aggregate(
                self.initializer, self.aggregator, record_key, start, 0, given, value, timestamp, headers, rows.source()
            )
        if grew:
            rows.grow(timestamp, headers)
            self.task.at = self.name
        return 0


# -- sliding windows

@cython.final
@cython.freelist(8)
cdef class SlidingRecord:
    """A record that is aggregated into sliding windows, and what the windows around it say.

    row_key: see WindowedAggregate.record_key. close_time: windows that end before it have closed. windows: (start, row) of
    the windows around the record, earliest first. left: the aggregate of the records before it, for its left window.
    right, right_time: the row of the records after it, for its right window. previous: the timestamp of the record before
    it, in whose right window it may be the first. Times are NEVER if there is none.
    """

    cdef object key, value, headers, left, right
    cdef bytes row_key
    cdef int64_t timestamp, close_time, right_time, previous
    cdef list windows
    cdef bint left_exists, right_exists

    cdef bint has(self, int64_t start) except -1:
        """Return whether one of the windows starts then."""
        for window in self.windows:
            if <int64_t>(<tuple?>window)[0] == start:
                return True
        return False


@cython.final
cdef class SlidingWindowAggregate(WindowedAggregate):
    """Aggregates the values of each key and sliding window (Kafka Streams: KStreamSlidingWindowAggregate).

    A record at t belongs to all windows [start, start + difference] that contain t. Windows exist only where their set of
    records differs. Each record has a left window, which ends at it. A record that others follow within the difference also
    has a right window, which begins 1 ms after it. A record updates and creates windows in the order of Kafka Streams,
    because each step is an update downstream.

    fetch_range(key, from, to): the rows of the store; it is called for those that the kernel cannot find itself.
    copy(aggregate): of a value that the store has read; None if values are immutable. refuse(): raises, for a difference
    of 0. stream_time: the highest timestamp seen.
    """

    cdef object fetch_range, copy, refuse
    cdef int64_t difference_ms, grace_ms
    cdef public int64_t stream_time

    def __init__(self, task, name, child, rows, dropped, initializer, aggregator, counts, emitter, fetch_range, copy, refuse,
                 int64_t difference_ms, int64_t grace_ms):
        WindowedAggregate.__init__(self, task, name, child, rows, dropped, initializer, aggregator, counts, emitter)
        self.fetch_range, self.copy, self.refuse = fetch_range, copy, refuse
        self.difference_ms, self.grace_ms = difference_ms, grace_ms
        self.stream_time = -1

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef SlidingRecord record
        self.task.at = self.name
        self.task.written_value = None
        if key is None or value is None:
            self.dropped("null key or value")
            return 0
        if timestamp > self.stream_time:
            self.stream_time = timestamp
        record = SlidingRecord.__new__(SlidingRecord)
        record.close_time = self.stream_time - self.grace_ms
        if self.end(timestamp) < record.close_time:
            self.dropped("expired window")
            return 0
        if self.difference_ms == 0:
            self.refuse()
        record.key, record.value, record.timestamp, record.headers = key, value, timestamp, headers
        record.row_key = self.record_key(key)
        record.right_time = record.previous = NEVER
        if timestamp < self.difference_ms:
            return self.process_early(record)
        self.process_reverse(record)
        if self.emitter is not None:
            self.emitter.emit(record.close_time, headers)
        return 0

    def advance_time(self, int64_t time_ms):
        """Do what a record of a later time does to windows; see NodeContext.on_time."""
        if time_ms > self.stream_time:
            self.stream_time = time_ms
            if self.emitter is not None:
                self.emitter.emit(time_ms - self.grace_ms, None)

    cdef int64_t end(self, int64_t start) noexcept:
        return sum_of(start, self.difference_ms)

    cdef int find_windows(self, SlidingRecord record, int64_t earliest) except -1:
        """Find the windows of the record's key from a start up to the record's right window."""
        cdef int64_t latest = sum_of(record.timestamp, 1)
        if type(self.rows) is CachedRows:
            record.windows = (<CachedRows>self.rows).updates.table.key_values(record.row_key, earliest, latest)
        elif type(self.rows) is StoredWindowRows:
            record.windows = (<StoredWindowRows>self.rows).between(record.row_key, earliest, latest)
        if record.windows is None:
            record.windows = list(self.fetch_range(key_of(record.key), earliest, latest))
        return 0

    cdef int process_reverse(self, SlidingRecord record) except -1:
        """Update the windows that contain the record, latest first, and create those that are missing."""
        cdef int64_t timestamp = record.timestamp, start, end, newest
        self.find_windows(record, max(0, timestamp - self.difference_ms - self.difference_ms))
        for start, row in reversed(record.windows):
            newest = row[1]
            end = self.end(start)
            if start > timestamp:
                record.right_exists = True
            elif end > timestamp:
                if record.right_time == NEVER:
                    self.set_right(record, row)
                self.update(record, start, row)
            elif end == timestamp:
                record.left_exists = True
                self.update(record, start, row)
                if newest >= timestamp:
                    return 0  # a record with this timestamp came before: its other windows exist
                record.previous = newest
            else:
                record.left, record.previous = row[0], newest
                break
        return self.create_windows(record)

    cdef int create_windows(self, SlidingRecord record) except -1:
        """Create the right window of the previous record, then the left and the right window of this one."""
        cdef int64_t after_previous = record.previous + 1, start = record.timestamp - self.difference_ms
        if record.previous != NEVER and self.end(after_previous) >= record.timestamp and not record.has(after_previous):
            self.update(record, after_previous, None)
        if not record.left_exists:
            self.update(record, start, (record.left, record.timestamp) if record.previous >= start else None)
        return self.create_right_window(record)

    cdef int process_early(self, SlidingRecord record) except -1:
        """Aggregate a record whose left window would begin before 0; the window [0, difference] is used instead."""
        cdef int64_t timestamp = record.timestamp, start
        combined = None
        self.find_windows(record, 0)
        for start, row in record.windows:
            if start == 0:
                combined = row
                if row[1] < timestamp:
                    record.previous = row[1]
            elif start <= timestamp:
                self.set_right(record, row)
                self.update(record, start, row)
            else:
                record.right_exists = True
        if record.right_time == NEVER and combined is not None and combined[1] > timestamp:
            # No window begins between 0 and the record, so the combined window holds only later records.
            self.set_right(record, combined)
        self.create_right_window(record)
        if record.previous != NEVER and not record.has(record.previous + 1):
            self.update(record, record.previous + 1, None)
        return self.update(record, 0, combined)

    cdef int set_right(self, SlidingRecord record, row) except -1:
        """Keep a row for the record's right window, before an aggregator may change the value in place."""
        record.right = row[0] if self.copy is None else self.copy(row[0])
        record.right_time = row[1]
        return 0

    cdef int create_right_window(self, SlidingRecord record) except -1:
        """Create the record's right window if it is missing and has records; the record itself is not one of them."""
        if record.right_exists or record.right_time <= record.timestamp:
            return 0
        return self.put(record, record.timestamp + 1, record.right, None, record.right_time)

    cdef int update(self, SlidingRecord record, int64_t start, row) except -1:
        """Aggregate the record into one window, unless that has closed. row: the window's row, None if it is new."""
        cdef int64_t newest = record.timestamp
        cdef bint wants_old = type(self.rows) is PythonRows and (<PythonRows>self.rows).wants_old
        if self.end(start) < record.close_time:
            self.dropped("expired window")
            return 0
        old = sent = None
        if row is not None:
            old = row[0]
            newest = max(newest, <int64_t>row[1])
            if wants_old:
                sent = old if self.copy is None else self.copy(old)
        elif self.initializer is not None and not self.counts:
            old = self.initializer()
            if wants_old:
                sent = self.initializer()
        if self.counts:
            new = 1 if row is None else old + 1
        elif self.initializer is not None:
            new = aggregated(self.aggregator, key_for(self.aggregator, record.key), record.value, old)
        else:
            new = record.value if row is None else self.aggregator(old, record.value)
        return self.put(record, start, new, sent, newest)

    cdef int put(self, SlidingRecord record, int64_t start, new, sent, int64_t newest) except -1:
        """Write the row of a window; the change is passed on. sent: the old value that goes with it."""
        cdef CachedRows cached
        cdef StoredWindowRows stored
        cdef int64_t end = self.end(start)
        if type(self.rows) is CachedRows:
            cached = <CachedRows>self.rows
            row = None if new is None else (cached.updates.held(new), newest)
            cached.put(record.row_key, start, 0, row, record.timestamp, record.headers)
        elif type(self.rows) is StoredWindowRows:
            stored = <StoredWindowRows>self.rows
            row_key = stored.begin(record.row_key, start)
            return stored.put_window(self, row_key, end, new, record.timestamp, newest, record.headers, False)
        else:
            window = windowed_key(key_of(record.key), start, end)
            (<PythonRows?>self.rows).update(window, new, sent, newest, record.timestamp, record.headers)
        self.task.at = self.name
        return 0


# -- suppress

@cython.final
cdef class Suppress(ChangeNode):
    """Makes the rows of a buffer: put(row key, buffer time, new, old, timestamp, headers).

    until_close: whether the buffer time is the end of the window. inner: the serde of a windowed key's inner key, after
    which its bytes have times_size bytes. encode_key: for any key.
    """

    cdef object put, key_serde, inner, encode_key
    cdef int times_size
    cdef bint until_close

    def __init__(self, task, name, put, bint until_close, key_serde, inner, int times_size, encode_key):
        Node.__init__(self, task, name)
        self.put, self.until_close = put, until_close
        self.key_serde, self.inner, self.times_size, self.encode_key = key_serde, inner, times_size, encode_key

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        if has_windowed_bytes(key, self.inner):
            time = (<Key>key).end if self.until_close else timestamp
            self.put((<Key>key).windowed_data(self.times_size), time, new, old, timestamp, headers)
            return 0
        data = None if self.until_close else known_bytes_of(key, self.key_serde, self.encode_key)
        if data is not None:
            self.put(data, timestamp, new, old, timestamp, headers)
            return 0
        key = key_of(key)
        self.put(self.encode_key(key), key[2] if self.until_close else timestamp, new, old, timestamp, headers)
        return 0


# -- sessions

@cython.final
cdef class StoredSessions(StoredRows):
    """The sessions of a store without a cache. A row has no timestamp; its change has that of the session's end.

    decode_key: for bytes (not None).
    """

    cdef SegmentTimes segments
    cdef KeyReader reader

    def __init__(self, RecordContext task not None, RowBuffer buffer not None, Changelog changelog not None, key_serde,
                 encode_key, value_serde, encode, decode, exact, exact_type, log_headers, bint sends_old,
                 SegmentTimes segments not None, decode_key):
        StoredRows.__init__(
            self, task, buffer, changelog, key_serde, encode_key, value_serde, encode, decode, exact, exact_type, log_headers,
            sends_old,
        )
        self.segments = segments
        self.reader = KeyReader(key_serde, decode_key)

    cdef list between(self, bytes record_key, int64_t earliest_end, int64_t latest_start):
        """Return (end, start, row) of a key's sessions that end and start so, by end and start."""
        cdef int64_t first = max(earliest_end, self.segments.visible_from)
        found = self.segments.latest.fetch(record_key, first, INT64_MAX)
        if found is None:
            found = self.segments.fetch(record_key, first, INT64_MAX)
        return [session for session in found if <int64_t>(<tuple>session)[1] <= latest_start]

    cdef int put_session(
        self, Node node, bytes record_key, int64_t end, int64_t start, new, old, int64_t timestamp, headers, bint as_it_is
    ) except -1:
        """Write the row of a session, None to delete it, and pass the change on. old: its row; as_it_is: see put()."""
        cdef RecordContext task = self.task
        cdef bytes log_key = log_key_of(record_key, end, start, TIME_BYTES)
        data = None
        if new is not None:
            new = self.exactly(new, as_it_is)
            data = self.encoded(new)
            new = self.read_back(node, new, data, as_it_is)
        task.timestamp, task.headers = timestamp, headers
        self.log(log_key, data, timestamp, headers)
        self.segments.put_row(record_key, end, start, log_key, data)
        key = windowed_key_from(record_key, self.reader, start, end)
        return self.pass_on(node, key, new, None if old is None or not self.sends_old else self.decoded(old), data, end, None)

    cdef int use_of_key(self, Node node, serde) except -1:
        return Rows.use_of_key(self, node, serde)  # the nodes after this one get the windowed key


@cython.final
cdef class PythonSessions(Rows):
    """The sessions of any other store, by its own functions.

    put(session, new aggregate, timestamp, headers), remove(session, old aggregate, timestamp, headers): change the store and
    pass the change on. copy(aggregate): for a merger, which may change its arguments; None if remove does not need the old
    aggregate.
    """

    cdef object put, remove, copy

    def __init__(self, RecordContext task not None, put, remove, copy):
        self.task = task
        self.put, self.remove, self.copy = put, remove, copy

    cdef int use_of_key(self, Node node, serde) except -1:
        return READS


@cython.final
cdef class SessionAggregate(Node):
    """Aggregates the values of each key and session; a record merges the sessions that it connects.

    rows: CachedRows, whose cache passes changes on; StoredSessions; PythonSessions. find_sessions(key, earliest end, latest
    start): (session, aggregate), for those that the kernel cannot find. counts: whether it is a count. gap_ms, grace_ms: of the
    windows. emitter: passes sessions on as they close, None if changes go on at once. stream_time: the highest timestamp
    seen. dropped: see RowNode.
    """

    cdef object initializer, aggregator, merger, find_sessions, dropped
    cdef Rows rows
    cdef CloseEmitter emitter
    cdef bint counts
    cdef int64_t gap_ms, grace_ms
    cdef public int64_t stream_time

    def __init__(self, task, name, child, initializer, aggregator, merger, bint counts, Rows rows not None, find_sessions,
                 CloseEmitter emitter, int64_t gap_ms, int64_t grace_ms, dropped):
        Node.__init__(self, task, name, child)
        self.initializer, self.aggregator, self.merger, self.counts = initializer, aggregator, merger, counts
        self.rows, self.find_sessions = rows, find_sessions
        self.emitter, self.gap_ms, self.grace_ms, self.dropped = emitter, gap_ms, grace_ms, dropped
        self.stream_time = -1

    def advance_time(self, int64_t time_ms):
        """Do what a record of a later time does to sessions; see NodeContext.on_time."""
        if time_ms > self.stream_time:
            self.stream_time = time_ms
            if self.emitter is not None:
                self.emitter.emit(time_ms - self.grace_ms - self.gap_ms, None)

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef bytes record_key = None
        cdef int64_t close_time, start = timestamp, end = timestamp
        self.task.at = self.name
        self.task.written_value = None
        if key is None:
            self.dropped("null key")
            return 0
        if timestamp > self.stream_time:
            self.stream_time = timestamp
        close_time = self.stream_time - self.grace_ms - self.gap_ms
        if type(self.rows) is not PythonSessions:
            record_key = self.rows.key_bytes(key)
        cdef list merged = self.sessions(key, record_key, timestamp)
        aggregate = 0 if self.counts else self.initializer()
        for session in merged:
            start, end = min(start, <int64_t>(<tuple>session)[1]), max(end, <int64_t>(<tuple>session)[0])
            old = self.aggregate_of((<tuple>session)[2])
            aggregate = aggregate + old if self.counts else self.merger(key_of(key), aggregate, old)
        if end < close_time:
            self.dropped("expired window")
        else:
            if start != timestamp or end != timestamp:
                for session in merged:
                    self.remove(key, record_key, <tuple>session, timestamp, headers)
            aggregate = aggregate + 1 if self.counts else self.aggregator(key_of(key), value, aggregate)
            self.put(key, record_key, end, start, aggregate, timestamp, headers)
        if self.emitter is not None:
            self.emitter.emit(close_time, headers)
        return 0

    cdef list sessions(self, key, bytes record_key, int64_t timestamp):
        """Return (end, start, what the rows have of it) of the sessions that a record belongs to."""
        cdef int64_t earliest_end = timestamp - self.gap_ms, latest_start = timestamp + self.gap_ms
        cdef list found
        if type(self.rows) is StoredSessions:
            return (<StoredSessions>self.rows).between(record_key, earliest_end, latest_start)
        if type(self.rows) is CachedRows:
            found = (<CachedRows>self.rows).updates.table.key_values(record_key, earliest_end, INT64_MAX)
            if found is not None:
                return [session for session in found if <int64_t>(<tuple>session)[1] <= latest_start]
        found_sessions = self.find_sessions(key_of(key), earliest_end, latest_start)
        return [(session[2], session[1], old) for session, old in found_sessions]

    cdef object aggregate_of(self, old):
        """Return the aggregate of a session that was found, which a merger may change."""
        if type(self.rows) is StoredSessions:
            return (<StoredSessions>self.rows).decoded(old)
        if type(self.rows) is PythonSessions and (<PythonSessions>self.rows).copy is not None:
            return (<PythonSessions>self.rows).copy(old)
        return old

    cdef int remove(self, key, bytes record_key, tuple session, int64_t timestamp, headers) except -1:
        """Delete a session that was merged into another one."""
        if type(self.rows) is CachedRows:
            return (<CachedRows>self.rows).put(record_key, session[0], session[1], None, timestamp, headers)
        if type(self.rows) is StoredSessions:
            return (<StoredSessions>self.rows).put_session(
                self, record_key, session[0], session[1], None, session[2], timestamp, headers, False
            )
        windowed = windowed_key(key_of(key), session[1], session[0])
        (<PythonSessions?>self.rows).remove(windowed, session[2], timestamp, headers)
        return 0

    cdef int put(
        self, key, bytes record_key, int64_t end, int64_t start, aggregate, int64_t timestamp, headers
    ) except -1:
        """Put the aggregate of a session; the change is passed on."""
        cdef CachedRows cached
        cdef StoredSessions stored
        if type(self.rows) is CachedRows:
            cached = <CachedRows>self.rows
            return cached.put(record_key, end, start, cached.updates.held(aggregate), timestamp, headers)
        if type(self.rows) is StoredSessions:
            stored = <StoredSessions>self.rows
            as_it_is = self.counts and stored.exact_type is int
            return stored.put_session(self, record_key, end, start, aggregate, None, timestamp, headers, as_it_is)
        (<PythonSessions?>self.rows).put(windowed_key(key_of(key), start, end), aggregate, timestamp, headers)
        return 0

    cpdef int use_of_key(self, serde) except -1:
        return self.rows.use_of_key(self, serde) if self.counts else READS


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
        cdef bytes data = <bytes?>(value if self.encode is None else converted(self.encode, value))
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


cdef bytes side_key(int64_t timestamp, bint left, bytes key):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(key)
    made = PyBytes_FromStringAndSize(NULL, TIME_BYTES + 1 + size)
    cdef char *at = PyBytes_AS_STRING(made)
    write_time(at, timestamp)
    at[TIME_BYTES] = left
    memcpy(at + TIME_BYTES + 1, PyBytes_AS_STRING(key), size)
    return made


cdef bytes side_value(bint left, bytes value):
    return None if value is None else (b"\1" if left else b"\0") + value


def join_side_key(int64_t timestamp, bint left, bytes key not None):
    """Return the bytes of a TimestampedKeyAndJoinSide whose key has these bytes."""
    return side_key(timestamp, left, key)


def join_side_value(bint left, bytes value):
    """Return the bytes of a LeftOrRightValue whose value has these bytes; None for None."""
    return side_value(left, value)


@cython.final
cdef class NonJoinedRecords:
    """The records of both sides that have no partner yet, as used by one side of the join.

    key_serde, encode_key, encode_value: of this side's records, see Rows. put(row key, value or None), put_if_present: of
    the store that has them. emit(headers): joins those whose window has closed with None.
    """

    cdef RecordContext task
    cdef TimeTracker tracker
    cdef bint left
    cdef object key_serde, encode_key, encode_value, put, put_if_present, emit

    def __init__(self, RecordContext task not None, TimeTracker tracker not None, bint left, key_serde, encode_key,
                 encode_value, put, put_if_present, emit):
        self.task, self.tracker, self.left = task, tracker, left
        self.key_serde, self.encode_key, self.encode_value = key_serde, encode_key, encode_value
        self.put, self.put_if_present, self.emit = put, put_if_present, emit

    cdef int add(self, key, value, int64_t timestamp, headers) except -1:
        """Keep a record of this side until it has a partner or its window closes."""
        cdef bytes row_key = side_key(timestamp, self.left, key_bytes_of(key, self.key_serde, self.encode_key))
        self.tracker.min_time = min(timestamp, self.tracker.min_time)
        self.task.timestamp, self.task.headers = timestamp, headers
        self.put(row_key, side_value(self.left, value if self.encode_value is None else converted(self.encode_value, value)))
        return 0

    cdef int remove_other(self, key, int64_t other_time, int64_t timestamp, headers) except -1:
        """Remove a record of the other side, which now has a partner."""
        self.task.timestamp, self.task.headers = timestamp, headers
        self.put_if_present(side_key(other_time, not self.left, key_bytes_of(key, self.key_serde, self.encode_key)), None)
        return 0


cdef class WindowJoin(Node):
    """Base of joins of streams: joiner(left, right), or (key, left, right) with with_key.

    before_ms, after_ms: how much earlier and later than the record here the one there may be. fetch(key, from, to): the rows
    (timestamp, value) of the store of the records there; rows: where they are looked up before, None if the kernel cannot.
    """

    cdef object joiner, fetch, dropped
    cdef bint with_key
    cdef int64_t before_ms, after_ms
    cdef JoinRows rows

    def __init__(self, task, name, child, joiner, bint with_key, int64_t before_ms, int64_t after_ms, fetch, JoinRows rows,
                 dropped):
        Node.__init__(self, task, name, child)
        self.joiner, self.with_key, self.before_ms, self.after_ms = joiner, with_key, before_ms, after_ms
        self.fetch, self.rows, self.dropped = fetch, rows, dropped

    cdef object joined(self, key, left, right):
        return self.joiner(key_of(key), left, right) if self.with_key else self.joiner(left, right)

    cdef int pass_on(self, key, joined, int64_t timestamp, headers) except -1:
        self.task.written_value = None
        deliver(self.child, key, joined, timestamp, headers)
        self.task.at = self.name
        return 0

    cdef object found(self, key, int64_t time_from, int64_t time_to):
        known = None if self.rows is None else self.rows.find(key, time_from, time_to)
        return self.fetch(key_of(key), time_from, time_to) if known is None else known

    cpdef int use_of_key(self, serde) except -1:
        cdef bint by_bytes = self.rows is not None and serde is self.rows.key_serde
        return self.child.use_of_key(serde) | (READS if self.with_key or not by_bytes else NEEDS_BYTES)


@cython.final
cdef class StreamJoin(WindowJoin):
    """Joins the records of one side of a stream-stream join.

    is_right: whether it is the right side. outer: whether a record without a partner is joined with None. waiting: keeps these
    until their windows close; or None. search_ms: how much later than tracker.min_time it has to look for them.
    """

    cdef NonJoinedRecords waiting
    cdef bint is_right, outer
    cdef int64_t search_ms
    cdef TimeTracker tracker

    def __init__(self, task, name, child, joiner, with_key, bint is_right, bint outer, before_ms, after_ms,
                 TimeTracker tracker not None, fetch, rows, NonJoinedRecords waiting, int64_t search_ms, dropped):
        WindowJoin.__init__(self, task, name, child, joiner, with_key, before_ms, after_ms, fetch, rows, dropped)
        self.is_right, self.outer, self.tracker = is_right, outer, tracker
        self.waiting, self.search_ms = waiting, search_ms

    cdef int join(self, key, value, other, int64_t timestamp, headers) except -1:
        joined = self.joined(key, other, value) if self.is_right else self.joined(key, value, other)
        return self.pass_on(key, joined, timestamp, headers)

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
                self.waiting.remove_other(key, other_time, timestamp, headers)
            self.join(key, value, other, max(timestamp, other_time), headers)
        if is_joined or not self.outer:
            return 0
        # A record whose window has passed need not wait: rows of the other side that it might have joined are gone.
        if self.waiting is None or last < tracker.stream_time:
            return self.join(key, value, None, timestamp, headers)
        self.waiting.add(key, value, timestamp, headers)
        return 0

    def advance_time(self, int64_t time_ms):
        """Do what a record of a later time does to records that wait; see NodeContext.on_time."""
        if time_ms >= self.tracker.stream_time:
            self.tracker.stream_time = time_ms
            if self.waiting is not None and self.may_have_closed():
                self.waiting.emit(None)

    cdef bint may_have_closed(self):
        """Return whether the oldest waiting record's window may have closed.

        If no record waits, Kafka Streams' sum overflows to a negative number. It then finds nothing to emit, but the
        interval until the next search begins.
        """
        if self.tracker.min_time == NO_RECORD:
            return self.search_ms > 0
        return self.tracker.min_time + self.search_ms < self.tracker.stream_time

    cpdef int use_of_key(self, serde) except -1:
        cdef bint by_bytes = self.waiting is None or serde is self.waiting.key_serde
        return WindowJoin.use_of_key(self, serde) | (0 if by_bytes else READS)


@cython.final
cdef class StreamSelfJoin(WindowJoin):
    """Joins the records of a stream with each other: both sides of an inner join, with one store.

    A record is joined with itself at its place by timestamp, unless it is older than retention_ms. stream_time: the
    highest timestamp seen.
    """

    cdef int64_t retention_ms
    cdef public int64_t stream_time

    def __init__(self, task, name, child, joiner, with_key, before_ms, after_ms, fetch, rows, int64_t retention_ms, dropped):
        WindowJoin.__init__(self, task, name, child, joiner, with_key, before_ms, after_ms, fetch, rows, dropped)
        self.retention_ms = retention_ms
        self.stream_time = -1

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef int64_t other_time
        cdef bint joins_itself
        self.task.at = self.name
        if key is None or value is None:
            self.dropped("null key or value")
            return 0
        if timestamp > self.stream_time:
            self.stream_time = timestamp
        with_itself = self.joined(key, value, value)
        joins_itself = timestamp > self.stream_time - self.retention_ms + 1
        for other_time, other in self.found(key, max(0, timestamp - self.before_ms), max(0, timestamp + self.after_ms)):
            self.pass_on(key, self.joined(key, value, other), max(timestamp, other_time), headers)
        # The other side.
        for other_time, other in self.found(key, max(0, timestamp - self.after_ms), max(0, timestamp + self.before_ms)):
            if joins_itself and other_time > timestamp:
                joins_itself = False
                self.pass_on(key, with_itself, timestamp, headers)
            self.pass_on(key, self.joined(key, other, value), max(timestamp, other_time), headers)
        return self.pass_on(key, with_itself, timestamp, headers) if joins_itself else 0
