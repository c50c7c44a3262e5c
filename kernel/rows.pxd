from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from penstock.kernel.sinks cimport Changelog

cdef enum:
    TIME_BYTES = 8  # a row begins with its timestamp, big endian


cdef inline int64_t read_time(const char *data) noexcept nogil:
    cdef uint64_t time = 0
    cdef int i
    for i in range(TIME_BYTES):
        time = time << 8 | <unsigned char>data[i]
    return <int64_t>time


cdef inline void write_time(char *to, int64_t time) noexcept:
    cdef int i
    for i in range(TIME_BYTES):
        to[i] = <char>(<uint64_t>time >> 8 * (TIME_BYTES - 1 - i))


cdef inline int64_t sum_of(int64_t a, int64_t b) noexcept:
    """Return a sum, at most the highest number; b is not negative."""
    return a + b if a <= INT64_MAX - b else INT64_MAX


cdef bytes timed(int64_t time, bytes value)
cdef bytes value_of(bytes row, int64_t *time)
cdef bytes log_key_of(bytes record_key, int64_t time, int64_t second, int second_size)


cdef enum:
    SMALL = 16  # bytes of a row that is no object, such as a timestamp and a number


cdef union row_data:
    char small[SMALL]
    PyObject *object


cdef struct row_time:
    int64_t time  # by which the row expires
    int64_t second


cdef struct timed_row:
    row_time at
    int size  # of a small row; -1: it is an object
    row_data data


cdef Py_ssize_t time_place(const void *rows, size_t row_size, Py_ssize_t count, int64_t time, int64_t second) noexcept
cdef object cache_key_of(int times, key, int64_t time, int64_t second)
cdef object record_key_of(int times, cache_key, int64_t *time, int64_t *second)


cdef class KeyTable:
    cdef dict entries
    cdef object last_key, last_found

    cdef object get(self, key)
    cdef int set(self, key, found) except -1
    cdef int remove(self, key) except -1
    cdef void clear(self) noexcept


cdef inline object data_of(const timed_row *row):
    if row.size >= 0:
        return PyBytes_FromStringAndSize(row.data.small, row.size)
    return <object>row.data.object


cdef class TimedRows:
    cdef timed_row *rows
    cdef Py_ssize_t count, capacity

    cdef Py_ssize_t place(self, int64_t time, int64_t second) noexcept
    cdef bint has(self, Py_ssize_t at, int64_t time, int64_t second) noexcept
    cdef int insert(self, Py_ssize_t at, int64_t time, int64_t second, bytes data) except -1
    cdef void fill(self, Py_ssize_t at, bytes data) noexcept
    cdef void remove(self, Py_ssize_t begin, Py_ssize_t end) noexcept


cdef class SortedKeys:
    cdef readonly list chunks
    cdef list maxes

    cdef int insert(self, bytes key) except -1


cdef class RowBuffer:
    cdef dict known
    cdef list added  # keys and their rows in turn
    cdef public dict recent
    cdef public Py_ssize_t found, read_room
    cdef public SortedKeys index
    cdef public Py_ssize_t check_at
    cdef object read
    cdef object check
    cdef object refill
    cdef int64_t row_time  # of the row that find returned

    cdef object row(self, bytes key)
    cdef int note(self, bytes key, row) except -1
    cdef Py_ssize_t size(self) noexcept
    cdef dict settled(self)
    cdef int keep(self, bytes key, value) except -1
    cdef int set(self, bytes key, value) except -1
    cdef int set_unread(self, bytes key, value) except -1
    cdef int grown(self) except -1
    cpdef object find(self, bytes key)


cdef class MergedRows:
    cdef object stored
    cdef list changed
    cdef tuple row
    cdef Py_ssize_t at
    cdef bint reverse


cdef class StoreIterator:
    cdef object rows, decode_key, decode, show
    cdef bint has_texts

    cpdef close(self)


cdef class DiskRows:
    cdef object open, follow, failed, cursor
    cdef Py_ssize_t most_rows, most_bytes

    cdef int seek(self, bytes start, bytes end, bint reverse) except -1


cpdef tuple read_rows(cursor, bytes bound, bint reverse, Py_ssize_t rows, Py_ssize_t size)


cdef class LatestRows:
    cdef RowBuffer buffer
    cdef KeyTable by_key
    cdef int second_size
    cdef int64_t interval_ms
    cdef object room
    cdef readonly int64_t complete_from
    cdef int64_t newest
    cdef Py_ssize_t count, size, trim_at, read_count

    cpdef list fetch(self, bytes key, int64_t time_from, int64_t time_to)
    cpdef list values(self, bytes key, int64_t time_from, int64_t time_to, decode)
    cdef bint knows(self, int64_t time_from)
    cdef Py_ssize_t split(self, bytes log_key, int64_t *time, int64_t *second) except -1
    cdef int64_t second(self, const char *data) noexcept
    cdef bytes row_key(self, bytes log_key, int64_t time)
    cdef int set(self, bytes log_key, data) except -1
    cdef int set_row(self, bytes key, int64_t time, int64_t second, bytes log_key, data) except -1
    cdef object row(self, bytes key, int64_t time, int64_t second)
    cdef int trim(self) except -1
    cdef int64_t oldest(self)
    cdef int drop_before(self, int64_t time) except -1


cdef class SegmentTimes:
    cdef readonly LatestRows latest
    cdef readonly int64_t retention_ms, interval_ms, observed_ms, visible_from, live_from, drops_at, taken_from
    cdef readonly bint exact, indexed
    cdef public int64_t sequence
    cdef int64_t visible_ms

    cdef int set_time(self, int64_t time) noexcept
    cpdef int advance(self, int64_t time) except -1
    cpdef int keep_latest(self) except -1
    cdef object row(self, bytes key, int64_t time, int64_t second)
    cdef int put_row(self, bytes key, int64_t time, int64_t second, bytes log_key, data) except -1


cdef struct changed_row:
    PyObject *key
    int64_t time  # and second: those of the cache key
    int64_t second
    PyObject *cell
    PyObject *held  # NULL: it is the number, with its newest timestamp
    bint is_timed  # held is the value alone, newest its timestamp
    int64_t number
    int64_t newest
    int64_t timestamp
    PyObject *headers
    PyObject *message
    PyObject *data  # the bytes of held, once StoredEntries.write has written them; NULL otherwise


cdef class ChangedRows:
    cdef changed_row *rows
    cdef readonly Py_ssize_t count
    cdef int times  # that a cache key has

    cdef object cache_key(self, Py_ssize_t i)
    cdef int make_room(self, Py_ssize_t count) except -1
    cdef void keep(self, const changed_row *row) noexcept
    cdef object held(self, Py_ssize_t i)


cdef class StoredEntries:
    cdef RowBuffer buffer
    cdef LatestRows latest
    cdef SegmentTimes segments
    cdef object from_bytes, to_bytes, write_plain
    cdef Changelog changelog
    cdef int second_size, times
    cdef bint timestamped, is_long
    cdef int64_t observed  # within write(): the highest time so far, which the segments may not know yet

    cdef object row_at(self, key, int64_t time, int64_t second)
    cdef bint read_long(self, bytes row, int64_t *number, int64_t *time) noexcept
    cdef object held(self, bytes row)
    cdef object held_value(self, bytes row, int64_t *time)
    cdef bytes written(self, held)
    cdef bytes data_of(self, changed_row *change)
    cdef int advance(self) except -1
    cdef int write_rows(self, ChangedRows changes) except -1
