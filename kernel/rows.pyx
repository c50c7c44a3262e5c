# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The rows of a store in memory: those written between two commits, and the latest ones by time and key."""

from itertools import islice
from types import GenericAlias

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove

from penstock.kernel.conversions cimport converted
from penstock.kernel.messages cimport decode_text
from penstock.kernel.messages import DECODE_TEXT
from penstock.kernel.sinks cimport Changelog

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    PyObject *PyList_GET_ITEM(object, Py_ssize_t) noexcept
    const char *data_at "PyBytes_AS_STRING"(PyObject *) noexcept nogil
    Py_ssize_t size_at "PyBytes_GET_SIZE"(PyObject *) noexcept nogil


@cython.final
cdef class RowBuffer:
    """The rows of a store in memory: uncommitted ones, and some of those that are also on disk; None for a deleted row.

    read(key): reads from disk. check(): called by each put from check_at rows on. recent: rows that are also on disk, see
    RecentRows; found: how often get has found a row there; read_room: how many rows that get reads from disk may still be
    kept there, or below zero how many must be read first. refill(): called when it becomes zero. index: the keys of rows
    in order, maintained once it exists.

    Rows that were added wait in a list until any row is looked up: most of those of windows are only written.
    """

    def __init__(self, read, check, Py_ssize_t check_at, refill):
        self.known = {}
        self.added = []
        self.recent = {}
        self.check_at = check_at
        self.read = read
        self.check = check
        self.refill = refill

    @property
    def rows(self):
        """The uncommitted rows."""
        return self.settled()

    def __len__(self):
        return self.size()

    cdef Py_ssize_t size(self) noexcept:
        """Return the number of uncommitted rows; one that was added again since the last look-up counts twice."""
        return len(self.known) + len(self.added) // 2

    cdef dict settled(self):
        """Return the uncommitted rows, all in the dict."""
        cdef Py_ssize_t i
        if self.added:
            for i in range(0, len(self.added), 2):
                self.keep(<bytes>self.added[i], self.added[i + 1])
            self.added.clear()
        return self.known

    cdef int keep(self, bytes key, value) except -1:
        if self.index is not None and key not in self.known:
            self.index.insert(key)
        self.known[key] = value
        return 0

    def get(self, bytes key not None):
        """Return a row, None if there is none."""
        return self.row(key)

    cdef object row(self, bytes key):
        cdef PyObject *value = PyDict_GetItemWithError(self.settled(), key)
        if value is NULL:
            value = PyDict_GetItemWithError(self.recent, key)
            if value is NULL:
                read = self.read(key)
                if self.read_room:
                    self.note(key, read)
                return read
            self.found += 1
        return <object>value

    cdef int note(self, bytes key, row) except -1:
        if self.read_room > 0:
            self.recent[key] = row
            self.read_room -= 1
        else:
            self.read_room += 1
        if not self.read_room:
            self.refill()
        return 0

    def put(self, bytes key not None, value):
        """Set a row; None deletes it."""
        self.set(key, value)

    def add(self, bytes key not None, value):
        """Set a row that is not looked up soon."""
        self.set_unread(key, value)

    cdef int set(self, bytes key, value) except -1:
        self.settled()
        self.keep(key, value)
        return self.grown()

    cdef int set_unread(self, bytes key, value) except -1:
        self.added.append(key)
        self.added.append(value)
        return self.grown()

    cdef int grown(self) except -1:
        if self.size() >= self.check_at:
            self.check()
        return 0

    def between(self, bytes start, bytes end, bint reverse=False):
        """Return the uncommitted rows with start <= key < end in order; None leaves a side open."""
        cdef dict rows = self.settled()
        if not rows:
            return []
        if self.index is None:
            self.index = SortedKeys(rows)
        found = [(key, rows[key]) for key in self.index.between(start, end)]
        if reverse:
            found.reverse()
        return found

    def newest(self, Py_ssize_t most):
        """Return some of the uncommitted rows, the last ones that were put, as a list of (key, row)."""
        cdef Py_ssize_t i, size = len(self.added)
        if size:
            return [(self.added[i], self.added[i + 1]) for i in range(max(0, size - 2 * most), size, 2)]
        return list(islice(reversed(self.known.items()), most))

    def in_order(self):
        """Return the uncommitted rows in the order of their keys, as a list of (key, row)."""
        return ordered_rows(self.known, self.added)

    def clear(self):
        """Drop the rows in memory; those on disk remain."""
        self.known.clear()
        self.added.clear()
        self.index = None

    cpdef object find(self, bytes key):
        """Return the value of a row that begins with its timestamp, None if there is none, and keep its timestamp."""
        cdef object row = self.row(key)
        return None if row is None else value_of(<bytes?>row, &self.row_time)

    def time(self):
        """Return the timestamp of the row that find returned last."""
        return self.row_time


@cython.final
cdef class DiskRows:
    """The rows of a RocksDB in order, as of its last commit.

    open(): returns an iterator of RocksDB, the cursor. It stays open until release(): opening one costs more than reading
    some rows. follow(cursor, rows, start, end, reverse): returns an iterator over the first rows of a scan and those from
    the cursor's on, which belongs to the scan from now on. failed(error): raises the store's error for one of RocksDB's.
    most_rows, most_bytes: what a scan reads at once.
    """

    def __init__(self, open, follow, failed, Py_ssize_t most_rows, Py_ssize_t most_bytes):
        self.open, self.follow, self.failed = open, follow, failed
        self.most_rows, self.most_bytes = most_rows, most_bytes

    def release(self):
        """Close the cursor: it does not see what is committed from now on."""
        self.cursor = None

    cdef int seek(self, bytes start, bytes end, bint reverse) except -1:
        """Move the cursor to the first row of a range; with reverse, to the last one."""
        cursor = self.cursor
        if cursor is None:
            cursor = self.cursor = self.open()
        if not reverse:
            if start is None:
                cursor.seek_to_first()
            else:
                cursor.seek(start)
        elif end is None:
            cursor.seek_to_last()
        else:
            cursor.seek_for_prev(end)
            if cursor.key() == end:  # the end does not belong to the range
                cursor.prev()
        return 0

    def read(self, bytes start, bytes end, bint reverse=False):
        """Return the rows with start <= key < end in a list; None leaves a side open."""
        self.seek(start, end, reverse)
        try:
            return read_rows(self.cursor, start if reverse else end, reverse, PY_SSIZE_T_MAX, PY_SSIZE_T_MAX)[0]
        except Exception as error:
            self.failed(error)

    def scan(self, bytes start, bytes end, bint reverse=False):
        """Return an iterator over the same rows, which reads most of them when they are asked for."""
        self.seek(start, end, reverse)
        cursor = self.cursor
        try:
            rows, more = read_rows(cursor, start if reverse else end, reverse, self.most_rows, self.most_bytes)
        except Exception as error:
            self.failed(error)
        if not more:
            return iter(rows)
        self.cursor = None  # it belongs to the scan now, and sees the rows as they were
        return self.follow(cursor, rows, start, end, reverse)


cpdef tuple read_rows(cursor, bytes bound, bint reverse, Py_ssize_t rows, Py_ssize_t size):
    """Return rows from the cursor's on, and whether there may be more, which begin at the cursor.

    bound: the first key that is not read; with reverse, the last one that is. rows, size: limits of rows and bytes.
    Raises the cursor's error.
    """
    cdef list found = []
    cdef bytes value
    key_of, value_of, advance = cursor.key, cursor.value, cursor.prev if reverse else cursor.next
    while True:
        key = key_of()
        if key is None:
            break
        if bound is not None and (compare(<bytes?>key, bound) < 0) == reverse:
            return found, False
        value = value_of()
        found.append((key, value))
        advance()
        size -= PyBytes_GET_SIZE(key) + PyBytes_GET_SIZE(value)
        if len(found) == rows or size <= 0:
            return found, True
    cursor.status()  # a damaged block may have ended the rows
    return found, False


def next_rows(rows, bytes end, Py_ssize_t count, Py_ssize_t size):
    """Return rows of an iterator over (key, value), and whether there may be more.

    end: the first key that does not belong to them; None for an open end. count, size: limits of rows and bytes.
    """
    cdef list found = []
    for row in rows:
        key = <bytes?>(<tuple?>row)[0]
        if end is not None and compare(<bytes>key, end) >= 0:
            return found, False
        found.append(row)
        size -= PyBytes_GET_SIZE(<bytes>key) + PyBytes_GET_SIZE(<bytes?>(<tuple>row)[1])
        if len(found) == count or size <= 0:
            return found, True
    return found, False


cdef inline int order_of(PyObject *left, PyObject *right) noexcept nogil:
    cdef Py_ssize_t left_size = size_at(left), right_size = size_at(right)
    cdef uint64_t left_head, right_head
    cdef int order
    if left_size >= TIME_BYTES and right_size >= TIME_BYTES:  # 8 bytes at once, as a number, nearly always suffice
        left_head, right_head = <uint64_t>read_time(data_at(left)), <uint64_t>read_time(data_at(right))
        if left_head != right_head:
            return -1 if left_head < right_head else 1
    order = memcmp(data_at(left), data_at(right), min(left_size, right_size))
    return order if order else (left_size > right_size) - (left_size < right_size)


def write_batch(rows, put, delete):
    """Call put(key, row) for each (key, row), and delete(key) where the row is None."""
    for key, row in rows:
        if row is None:
            delete(key)
        else:
            put(key, row)


def after(bytes prefix not None):
    """Return the first key after all keys with this prefix; None if there is none (Kafka: BytesUtils.increment)."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix)
    while size and <unsigned char>PyBytes_AS_STRING(prefix)[size - 1] == 0xFF:
        size -= 1
    if not size:
        return None
    following = PyBytes_FromStringAndSize(NULL, size)
    memcpy(PyBytes_AS_STRING(following), PyBytes_AS_STRING(prefix), size)
    PyBytes_AS_STRING(following)[size - 1] += 1
    return following


cdef int compare(bytes left, bytes right) noexcept:
    """Return a negative number, 0 or a positive one: the order of two byte strings."""
    return order_of(<PyObject *>left, <PyObject *>right)


cdef enum:
    MORE = -1


cdef struct headed_row:
    uint64_t head  # of the key: its first bytes behind those that all keys share, and the next ones
    uint64_t next
    PyObject *key
    PyObject *value
    int size  # of a key that ends within these bytes, otherwise MORE
    int number  # the last row of a key counts


cdef int order_of_keys(const headed_row *left, const headed_row *right) noexcept nogil:
    if left.head != right.head:
        return -1 if left.head < right.head else 1
    if left.next != right.next:
        return -1 if left.next < right.next else 1
    if left.size != MORE and right.size != MORE:  # the keys themselves are in slow memory
        return (left.size > right.size) - (left.size < right.size)
    return order_of(left.key, right.key)


cdef int by_key(const void *one, const void *other) noexcept nogil:
    cdef headed_row *left = <headed_row *>one
    cdef headed_row *right = <headed_row *>other
    cdef int order = order_of_keys(left, right)
    return order if order else (left.number > right.number) - (left.number < right.number)


cdef uint64_t part_of(const char *data, Py_ssize_t size, Py_ssize_t start) noexcept nogil:
    """Return 8 bytes from a place on as a number, those behind the end as zeros."""
    cdef uint64_t part = 0
    cdef Py_ssize_t at
    if size >= start + <Py_ssize_t>sizeof(part):
        return <uint64_t>read_time(data + start)
    for at in range(start, start + <Py_ssize_t>sizeof(part)):
        part <<= 8
        if at < size:
            part |= <unsigned char>data[at]
    return part


cdef Py_ssize_t shared_size(const headed_row *rows, Py_ssize_t count) noexcept nogil:
    """Return how many bytes all keys begin with."""
    cdef Py_ssize_t i, at, shared = size_at(rows[0].key)
    cdef const char *first = data_at(rows[0].key)
    for i in range(1, count):
        shared = min(shared, size_at(rows[i].key))
        at = 0
        while at < shared and data_at(rows[i].key)[at] == first[at]:
            at += 1
        shared = at
    return shared


def in_order(dict rows not None):
    """Return the rows of a dict in the order of their keys, as a list of (key, row). Raises TypeError for other keys."""
    return ordered_rows(rows, [])


cdef list ordered_rows(dict rows, list more):
    """Return the rows of a dict, and those that a list has in turn with their keys, in order; the last one of a key counts."""
    cdef Py_ssize_t count = len(rows) + len(more) // 2, position = 0, i = 0, at, shared, size
    cdef PyObject *key
    cdef PyObject *value
    cdef headed_row *found
    if not count:
        return []
    found = <headed_row *>malloc(count * sizeof(headed_row))
    if found is NULL:
        raise MemoryError()
    try:
        while PyDict_Next(rows, &position, &key, &value):
            if type(<object>key) is not bytes:
                raise TypeError(f"a key of bytes is needed, not {<object>key!r}")
            found[i].key, found[i].value = key, value
            i += 1
        for at in range(0, len(more), 2):
            found[i].key, found[i].value = PyList_GET_ITEM(more, at), PyList_GET_ITEM(more, at + 1)
            i += 1
        shared = shared_size(found, count)
        for i in range(count):
            size = size_at(found[i].key)
            found[i].number = i
            found[i].size = size if size <= shared + 2 * <Py_ssize_t>sizeof(uint64_t) else MORE
            found[i].head = part_of(data_at(found[i].key), size, shared)
            found[i].next = part_of(data_at(found[i].key), size, shared + <Py_ssize_t>sizeof(uint64_t))
        qsort(found, count, sizeof(headed_row), by_key)
        return [
            (<object>found[i].key, <object>found[i].value)
            for i in range(count)
            if i + 1 == count or order_of_keys(found + i, found + i + 1)
        ]
    finally:
        free(found)


cdef enum:
    # Keys per chunk after a split: small enough that an insertion moves a few KB, large enough that chunks are few.
    CHUNK = 512
    # Keys that are looked at one after the other for the end of a range.
    NEAR = 4


cdef Py_ssize_t place_of(list keys, bytes key) noexcept:
    """Return the place of the first key that is not less, as bisect_left does."""
    cdef Py_ssize_t low = 0, high = len(keys), middle
    while low < high:
        middle = (low + high) // 2
        if compare(<bytes>keys[middle], key) < 0:
            low = middle + 1
        else:
            high = middle
    return low


cdef Py_ssize_t end_of(list keys, Py_ssize_t start, bytes end) noexcept:
    """Return the place of the first key from start on that is not less than end; most are near."""
    cdef Py_ssize_t place
    for place in range(start, min(start + NEAR, <Py_ssize_t>len(keys))):
        if compare(<bytes>keys[place], end) >= 0:
            return place
    return max(start, place_of(keys, end))


@cython.final
cdef class SortedKeys:
    """Byte strings in order, in chunks of at most 2 * CHUNK, so that adding one does not re-sort all."""

    def __init__(self, keys=()):
        cdef list ordered = sorted([<bytes?>key for key in keys])
        cdef Py_ssize_t i
        self.chunks = [ordered[i : i + CHUNK] for i in range(0, len(ordered), CHUNK)]
        self.maxes = [chunk[len(chunk) - 1] for chunk in self.chunks]

    def add(self, bytes key not None):
        """Add a key, which must not be in the set."""
        self.insert(key)

    cdef int insert(self, bytes key) except -1:
        cdef Py_ssize_t at = place_of(self.maxes, key)
        cdef list chunk
        if not self.maxes:
            self.chunks.append([key])
            self.maxes.append(key)
            return 0
        if at == len(self.maxes):
            at -= 1
            self.maxes[at] = key
        chunk = <list>self.chunks[at]
        chunk.insert(place_of(chunk, key), key)
        if len(chunk) > 2 * CHUNK:
            self.chunks[at : at + 1] = [chunk[:CHUNK], chunk[CHUNK:]]
            self.maxes[at : at + 1] = [chunk[CHUNK - 1], chunk[len(chunk) - 1]]
        return 0

    def remove(self, bytes key not None):
        """Remove a key; raises KeyError if it is not in the set."""
        cdef Py_ssize_t at = place_of(self.maxes, key), place
        cdef list chunk = <list>self.chunks[at] if at < len(self.chunks) else []
        place = place_of(chunk, key)
        if place == len(chunk) or <bytes>chunk[place] != key:
            raise KeyError(key)
        del chunk[place]
        if chunk:
            self.maxes[at] = chunk[len(chunk) - 1]
        else:
            del self.chunks[at], self.maxes[at]

    def between(self, bytes start, bytes end):
        """Return the keys with start <= key < end in order; None leaves a side open."""
        cdef Py_ssize_t first = 0 if start is None else place_of(self.maxes, start)
        cdef Py_ssize_t i, low, high
        cdef list found = [], chunk
        for i in range(first, len(self.chunks)):
            chunk = <list>self.chunks[i]
            low = place_of(chunk, start) if i == first and start is not None else 0
            high = len(chunk)
            if end is not None and compare(<bytes>self.maxes[i], end) >= 0:
                high = end_of(chunk, low, end)
            found += chunk[low:high]
            if high < len(chunk):
                break
        return found


@cython.final
cdef class MergedRows:
    """Stored rows with changed rows merged into them (None: deleted); both must be in the same order."""

    def __init__(self, stored, changed, bint reverse=False):
        self.stored = iter(stored)
        self.changed = list(changed)
        self.reverse = reverse
        self.row = next(self.stored, None)

    def __iter__(self):
        return self

    def __next__(self):
        cdef tuple row, change
        cdef int order
        while self.at < len(self.changed):
            change = <tuple?>self.changed[self.at]
            row = self.row
            order = 1
            if row is not None:
                order = compare(<bytes?>row[0], <bytes?>change[0])
                if self.reverse:
                    order = -order
            if order < 0:
                self.row = next(self.stored, None)
                return row
            self.at += 1
            if order == 0 and row is not None:
                self.row = next(self.stored, None)
            if change[1] is not None:
                return change
        row = self.row
        if row is None:
            raise StopIteration
        self.row = next(self.stored, None)
        return row


cdef class StoreIterator:
    """The rows of a scan, as of its creation, read one by one. Exhaust or close it, because it holds a RocksDB iterator.

    decode_key, decode: applied to the key and the value of a row when it is asked for; None if they change nothing. show:
    applied to the whole row, see mapped(). After close() there are no more rows.
    """

    def __init__(self, rows, decode_key=None, decode=None, show=None):
        self.rows = iter(rows)
        self.decode_key, self.decode, self.show = decode_key, decode, show
        self.has_texts = decode_key is DECODE_TEXT

    __class_getitem__ = classmethod(GenericAlias)

    def __iter__(self):
        return self

    def __next__(self):
        cdef tuple row
        found = next(self.rows)
        if self.decode_key is not None or self.decode is not None:
            row = <tuple?>found
            key, value = row[0], row[1]
            if self.has_texts:
                key = decode_text(<bytes?>key)
            elif self.decode_key is not None:
                key = converted(self.decode_key, key)
            found = key, (value if self.decode is None else converted(self.decode, value))
        return found if self.show is None else self.show(found)

    def mapped(self, function):
        """Return the results of a function for the rows; closing it closes these."""
        return StoreIterator(self, None, None, function)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    cpdef close(self):
        """Release the rows; there are no more. Closing twice does nothing."""
        rows, self.rows = self.rows, NO_ROWS
        close = getattr(rows, "close", None)
        if close is not None:
            close()


cdef bytes value_of(bytes row, int64_t *time):
    """Return the value of a row that begins with its timestamp, and set that."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(row) - TIME_BYTES
    if size < 0:
        raise ValueError(f"a row of {size + TIME_BYTES} bytes has no timestamp")
    time[0] = read_time(PyBytes_AS_STRING(row))
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(row) + TIME_BYTES, size)


cdef bytes timed(int64_t time, bytes value):
    """Return the row of a value with a timestamp."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value)
    row = PyBytes_FromStringAndSize(NULL, TIME_BYTES + size)
    write_time(PyBytes_AS_STRING(row), time)
    memcpy(PyBytes_AS_STRING(row) + TIME_BYTES, PyBytes_AS_STRING(value), size)
    return row


cdef enum:
    # Memory of a key, and of a row that is an object, in addition to their bytes: bytes objects, dict slots, a TimedRows
    # and its array.
    KEY_BYTES = 200
    OBJECT_BYTES = 36
    # A trim keeps KEPT of PARTS of the room. It keeps no rows if there was less than one read per USEFUL rows since the
    # last trim.
    KEPT = 3
    PARTS = 4
    USEFUL = 8

#: The rows of a closed scan.
cdef object NO_ROWS = iter(())
#: What LatestRows.get returns for a row that may be on disk.
NOT_KNOWN = object()


cdef inline void release(timed_row *row) noexcept:
    if row.size < 0:
        Py_DECREF(<object>row.data.object)


cdef inline Py_ssize_t memory_of(const timed_row *row):
    if row.size >= 0:
        return sizeof(timed_row)
    return sizeof(timed_row) + OBJECT_BYTES + PyBytes_GET_SIZE(<bytes>row.data.object)


cdef enum:
    NEAR_END = 8  # rows at the end that are looked at one after the other


cdef inline bint is_before(const row_time *at, int64_t time, int64_t second) noexcept:
    return at.time < time or (at.time == time and at.second < second)


cdef Py_ssize_t time_place(const void *rows, size_t row_size, Py_ssize_t count, int64_t time, int64_t second) noexcept:
    """Return the index at which a row is or would be inserted into rows, which begin with their row_time, in its order."""
    cdef const char *first = <const char *>rows
    cdef Py_ssize_t low = 0, high = count, middle
    while high > 0 and high > count - NEAR_END:  # most reads are of the latest rows
        if is_before(<const row_time *>(first + (high - 1) * row_size), time, second):
            return high
        high -= 1
    while low < high:
        middle = (low + high) // 2
        if is_before(<const row_time *>(first + middle * row_size), time, second):
            low = middle + 1
        else:
            high = middle
    return low


cdef object cache_key_of(int times, key, int64_t time, int64_t second):
    """Return a cache key with so many times."""
    return key if times == 0 else (key, time) if times == 1 else (key, time, second)


cdef object record_key_of(int times, cache_key, int64_t *time, int64_t *second):
    """Return the record key of a cache key with so many times, and set these, to 0 those that it does not have."""
    time[0] = second[0] = 0
    if times == 0:
        return cache_key
    time[0] = (<tuple?>cache_key)[1]
    if times > 1:
        second[0] = (<tuple>cache_key)[2]
    return (<tuple>cache_key)[0]


@cython.final
cdef class KeyTable:
    """A dict by record key. It remembers the last look-up, because those of one key follow each other."""

    def __cinit__(self):
        self.entries = {}

    cdef object get(self, key):
        """Return what a key has, None if it has nothing."""
        cdef PyObject *found
        if key is not self.last_key:
            found = PyDict_GetItemWithError(self.entries, key)
            self.last_found = None if found is NULL else <object>found
            self.last_key = key
        return self.last_found

    cdef int set(self, key, found) except -1:
        self.entries[key] = found
        self.last_key, self.last_found = key, found
        return 0

    cdef int remove(self, key) except -1:
        del self.entries[key]
        self.last_key = self.last_found = None
        return 0

    cdef void clear(self) noexcept:
        self.entries.clear()
        self.last_key = self.last_found = None


@cython.final
cdef class TimedRows:
    """The rows of one record key, ordered by time."""

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            release(self.rows + i)
        free(self.rows)

    cdef Py_ssize_t place(self, int64_t time, int64_t second) noexcept:
        """Return the index at which a row is or would be inserted."""
        return time_place(self.rows, sizeof(timed_row), self.count, time, second)

    cdef bint has(self, Py_ssize_t at, int64_t time, int64_t second) noexcept:
        return at < self.count and self.rows[at].at.time == time and self.rows[at].at.second == second

    cdef int insert(self, Py_ssize_t at, int64_t time, int64_t second, bytes data) except -1:
        cdef timed_row *grown
        if self.count == self.capacity:
            grown = <timed_row *>realloc(self.rows, (2 * self.capacity + 1) * sizeof(timed_row))
            if grown is NULL:
                raise MemoryError()
            self.rows, self.capacity = grown, 2 * self.capacity + 1
        cdef timed_row *row = self.rows + at
        memmove(row + 1, row, (self.count - at) * sizeof(timed_row))
        row.at.time, row.at.second = time, second
        self.fill(at, data)
        self.count += 1
        return 0

    cdef void fill(self, Py_ssize_t at, bytes data) noexcept:
        """Set what a place without data has."""
        cdef timed_row *row = self.rows + at
        row.size = -1
        if PyBytes_GET_SIZE(data) <= SMALL:
            row.size = PyBytes_GET_SIZE(data)
            memcpy(row.data.small, PyBytes_AS_STRING(data), row.size)
        else:
            Py_INCREF(data)
            row.data.object = <PyObject *>data

    cdef void remove(self, Py_ssize_t begin, Py_ssize_t end) noexcept:
        cdef Py_ssize_t i
        for i in range(begin, end):
            release(self.rows + i)
        memmove(self.rows + begin, self.rows + end, (self.count - end) * sizeof(timed_row))
        self.count -= end - begin


@cython.final
cdef class LatestRows:
    """The latest rows of a window or session store, by record key, whether they are on disk or not.

    A changelog key is the record key, the time by which the row expires (8 bytes), and a second number of second_size
    bytes. In the buffer, to which puts are also written, this key follows its segment of interval_ms
    (statestore/stores/segments.py). complete_from: all rows from this time on are here, so reads of them need not
    read the disk, even if a row does not exist. room(): maximum memory for the rows, in bytes. Rows are kept only while
    they are read.
    """

    NOT_KNOWN = NOT_KNOWN

    def __init__(self, RowBuffer buffer not None, int second_size, int64_t interval_ms, room):
        self.buffer = buffer
        self.second_size = second_size
        self.interval_ms = interval_ms
        self.room = room
        self.by_key = KeyTable()
        self.rest()

    def rest(self):
        """Drop all rows, and keep no new ones."""
        self.by_key.clear()
        self.complete_from = self.newest = INT64_MAX
        self.count = self.size = self.read_count = 0

    def start(self, int64_t time):
        """Drop all rows, and keep new ones from this time on. The store must not have such rows yet."""
        self.rest()
        self.complete_from = self.newest = time
        self.trim_at = self.room()

    def fit(self):
        """Drop rows for which there is no more room; return how many bytes of memory the others take."""
        self.trim_at = self.room()
        if self.size > self.trim_at:
            self.trim()
        return self.size

    @property
    def resting(self):
        """Whether no new rows are kept."""
        return self.complete_from == INT64_MAX

    cdef Py_ssize_t split(self, bytes log_key, int64_t *time, int64_t *second) except -1:
        """Split a changelog key; return the size of the record key."""
        cdef const char *data = PyBytes_AS_STRING(log_key)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(log_key) - TIME_BYTES - self.second_size
        if size < 0:
            raise ValueError(f"a changelog key of {len(log_key)} bytes is too short for its times")
        time[0] = read_time(data + size)
        second[0] = self.second(data + size + TIME_BYTES)
        return size

    cdef int64_t second(self, const char *data) noexcept:
        cdef uint64_t number = 0
        cdef int i
        if self.second_size == TIME_BYTES:
            return read_time(data)
        for i in range(self.second_size):
            number = number << 8 | <unsigned char>data[i]
        return <int64_t>number

    cdef bytes row_key(self, bytes log_key, int64_t time):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(log_key)
        row_key = PyBytes_FromStringAndSize(NULL, TIME_BYTES + size)
        write_time(PyBytes_AS_STRING(row_key), time // self.interval_ms)
        memcpy(PyBytes_AS_STRING(row_key) + TIME_BYTES, PyBytes_AS_STRING(log_key), size)
        return row_key

    def put(self, bytes log_key not None, data):
        """Set the row of a changelog key here and in the buffer; None deletes it."""
        self.set(log_key, data)

    cdef int set(self, bytes log_key, data) except -1:
        cdef int64_t time, second
        cdef Py_ssize_t size = self.split(log_key, &time, &second)
        return self.set_row(PyBytes_FromStringAndSize(PyBytes_AS_STRING(log_key), size), time, second, log_key, data)

    cdef int set_row(self, bytes key, int64_t time, int64_t second, bytes log_key, given) except -1:
        """Set the row of a changelog key, which is also given taken apart."""
        cdef bytes data = given
        self.buffer.set_unread(self.row_key(log_key, time), data)
        if time < self.complete_from:
            return 0
        cdef TimedRows rows = <TimedRows>self.by_key.get(key)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(key)
        cdef Py_ssize_t at
        if rows is None:
            if data is None:
                return 0
            rows = TimedRows()
            self.by_key.set(key, rows)
            self.size += KEY_BYTES + size
        at = rows.place(time, second)
        if rows.has(at, time, second):
            self.size -= memory_of(rows.rows + at)
            if data is None:
                self.count -= 1
                rows.remove(at, at + 1)
            else:
                release(rows.rows + at)
                rows.fill(at, data)
        elif data is not None:
            rows.insert(at, time, second, data)
            self.count += 1
        if data is None:
            if rows.count == 0:
                self.by_key.remove(key)
                self.size -= KEY_BYTES + size
            return 0
        self.size += memory_of(rows.rows + at)
        if time > self.newest:
            self.newest = time
        if self.size > self.trim_at:
            self.trim()
        return 0

    def get(self, bytes log_key not None):
        """Return a row, None if there is none, NOT_KNOWN if it may be on disk."""
        cdef int64_t time, second
        cdef Py_ssize_t size = self.split(log_key, &time, &second)
        if not self.knows(time):
            return NOT_KNOWN
        return self.row(PyBytes_FromStringAndSize(PyBytes_AS_STRING(log_key), size), time, second)

    cdef object row(self, bytes key, int64_t time, int64_t second):
        """Return a row of a time that it knows, None if there is none."""
        cdef TimedRows rows = <TimedRows>self.by_key.get(key)
        if rows is None:
            return None
        cdef Py_ssize_t at = rows.place(time, second)
        return data_of(rows.rows + at) if rows.has(at, time, second) else None

    cpdef list fetch(self, bytes key, int64_t time_from, int64_t time_to):
        """Return (time, second number, row) of a record key's rows in order, None if some may be on disk."""
        if not self.knows(time_from):
            return None
        cdef TimedRows rows = <TimedRows>self.by_key.get(key)
        cdef list fetched = []
        cdef timed_row *row
        cdef Py_ssize_t i
        if rows is not None:
            for i in range(rows.place(time_from, -INT64_MAX), rows.count):
                row = rows.rows + i
                if row.at.time > time_to:
                    break
                fetched.append((row.at.time, row.at.second, data_of(row)))
        return fetched

    cpdef list values(self, bytes key, int64_t time_from, int64_t time_to, decode):
        """Return (time, decode(row)) of a record key's rows in order, None if some may be on disk.

        decode: None for the rows themselves.
        """
        if not self.knows(time_from):
            return None
        cdef TimedRows rows = <TimedRows>self.by_key.get(key)
        cdef list found = []
        cdef Py_ssize_t i
        if rows is not None:
            i = rows.place(time_from, -INT64_MAX)
            while i < rows.count and rows.rows[i].at.time <= time_to:
                data = data_of(rows.rows + i)
                found.append((rows.rows[i].at.time, data if decode is None else converted(decode, data)))
                i += 1
        return found

    cdef bint knows(self, int64_t time_from):
        """Return whether a read from this time on need not ask the disk, and if so, count it."""
        if time_from < self.complete_from:
            return False
        self.read_count += 1
        return True

    cdef int trim(self) except -1:
        """Drop the earliest rows, or all if they were rarely read."""
        cdef Py_ssize_t room = self.room()
        cdef Py_ssize_t target = room // PARTS * KEPT
        cdef int64_t oldest
        self.trim_at = room
        if self.size <= room:
            return 0
        if self.read_count * USEFUL < self.count:
            self.rest()
            return 0
        self.read_count = 0
        while self.size > target and self.count:
            oldest = self.oldest()
            self.drop_before(oldest + (self.newest - oldest) // PARTS + 1)
        return 0

    cdef int64_t oldest(self):
        cdef int64_t oldest = INT64_MAX
        cdef PyObject *found
        cdef Py_ssize_t position = 0
        while PyDict_Next(self.by_key.entries, &position, NULL, &found):
            oldest = min(oldest, (<TimedRows>found).rows[0].at.time)
        return oldest

    cdef int drop_before(self, int64_t time) except -1:
        cdef list empty = []
        cdef PyObject *key
        cdef PyObject *found
        cdef Py_ssize_t position = 0
        cdef TimedRows rows
        cdef Py_ssize_t i, end
        self.complete_from = time
        while PyDict_Next(self.by_key.entries, &position, &key, &found):
            rows = <TimedRows>found
            end = rows.place(time, -INT64_MAX)
            for i in range(end):
                self.size -= memory_of(rows.rows + i)
            self.count -= end
            rows.remove(0, end)
            if rows.count == 0:
                empty.append(<object>key)
        for gone in empty:
            self.by_key.remove(gone)
            self.size -= KEY_BYTES + PyBytes_GET_SIZE(<bytes>gone)
        return 0


cdef bytes log_key_of(bytes record_key, int64_t time, int64_t second, int second_size):
    """Return the changelog key of a window or session row; second_size: of the second number, in bytes."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(record_key)
    cdef bytes key = PyBytes_FromStringAndSize(NULL, size + TIME_BYTES + second_size)
    cdef char *to = PyBytes_AS_STRING(key)
    cdef int i
    memcpy(to, PyBytes_AS_STRING(record_key), size)
    write_time(to + size, time)
    for i in range(second_size):
        to[size + TIME_BYTES + i] = <char>(<uint64_t>second >> 8 * (second_size - 1 - i))
    return key


cdef class SegmentTimes:
    """The rows of a window or session store as they are written, and which times they have; Segments in Python is it.

    All times are in ms. retention_ms: rows whose time is at or below the highest time put minus this are hidden, or with
    visible_ms another limit. interval_ms: of a segment. exact: such rows are dropped, too; otherwise only once their segment
    has expired. indexed: each put is also noted by index(log_key, row). latest: None for rows in memory. sequence: the second number of
    the last row in a store that keeps duplicates.
    """

    def __init__(self, retention_ms, visible_ms, interval_ms, bint exact, bint indexed, LatestRows latest):
        self.retention_ms = min(retention_ms, INT64_MAX)
        self.visible_ms = min(visible_ms, INT64_MAX)
        self.interval_ms = min(interval_ms, INT64_MAX)
        self.exact, self.indexed, self.latest = exact, indexed, latest

    def begin(self, int64_t time):
        """Set the highest time seen: after opening, or after a rollback."""
        self.live_from = 0
        self.set_time(time)

    cdef int set_time(self, int64_t time) noexcept:
        """Set the highest time seen, and the limits that follow from it."""
        cdef int64_t visible = time - self.visible_ms + 1, kept = time - self.retention_ms, first
        self.observed_ms = time
        self.visible_from = visible if visible > 0 else 0
        if kept > 0:
            first = kept - kept % self.interval_ms
            if first > self.live_from:
                self.live_from = first
        self.drops_at = time if self.exact else sum_of(sum_of(self.live_from, self.interval_ms), self.retention_ms)
        self.taken_from = (kept + 1 if kept > -1 else 0) if self.exact else self.live_from
        return 0

    cpdef int advance(self, int64_t time) except -1:
        """Note that stream time has reached a time, and drop the segments that have expired by it."""
        cdef int64_t before = self.live_from
        self.set_time(time)
        if self.live_from > before:
            self.drop(before, self.live_from)
        return 0

    cpdef int keep_latest(self) except -1:
        """Keep rows later than those seen, because reads repeat."""
        if self.latest is not None and self.latest.complete_from == INT64_MAX:
            self.latest.start(sum_of(self.observed_ms, 1))
        return 0

    cdef object row(self, bytes key, int64_t time, int64_t second):
        """Return the row of a record key at a time, None if there is none or it is hidden; latest must not be None."""
        cdef LatestRows latest = self.latest
        if time < self.visible_from:
            return None
        if latest.knows(time):
            return latest.row(key, time, second)
        self.keep_latest()
        return latest.buffer.row(latest.row_key(log_key_of(key, time, second, latest.second_size), time))

    cdef int put_row(self, bytes key, int64_t time, int64_t second, bytes log_key, data) except -1:
        """Set the row of a changelog key, which is also given taken apart; latest must not be None."""
        if time > self.observed_ms:
            self.advance(time)
        if time < self.taken_from:
            self.expired()
            return 0
        self.latest.set_row(key, time, second, log_key, data)
        if self.indexed:
            self.index(log_key, data)
        return 0


@cython.final
@cython.no_gc  # rows never lead back to it
cdef class ChangedRows:
    """The changed entries of a cache that a flush has taken: (cache key, held value, timestamp, headers, message) each."""

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            Py_DECREF(<object>self.rows[i].key)
            Py_DECREF(<object>self.rows[i].cell)
            Py_XDECREF(self.rows[i].held)
            Py_DECREF(<object>self.rows[i].headers)
            Py_DECREF(<object>self.rows[i].message)
            Py_XDECREF(self.rows[i].data)
        free(self.rows)

    cdef int make_room(self, Py_ssize_t count) except -1:
        """Make room for so many rows; it has none yet."""
        self.rows = <changed_row *>malloc((count + 1) * sizeof(changed_row))
        if self.rows is NULL:
            raise MemoryError()
        return 0

    cdef void keep(self, const changed_row *row) noexcept:
        """Add a row."""
        Py_INCREF(<object>row.key)
        Py_INCREF(<object>row.cell)
        Py_XINCREF(row.held)
        Py_INCREF(<object>row.headers)
        Py_INCREF(<object>row.message)
        Py_XINCREF(row.data)
        self.rows[self.count] = row[0]
        self.count += 1

    cdef object cache_key(self, Py_ssize_t i):
        return cache_key_of(self.times, <object>self.rows[i].key, self.rows[i].time, self.rows[i].second)

    cdef object held(self, Py_ssize_t i):
        """Return the held value of a row."""
        cdef changed_row *row = self.rows + i
        if row.held is NULL:
            return row.number, row.newest
        return (<object>row.held, row.newest) if row.is_timed else <object>row.held

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        if not 0 <= i < self.count:
            raise IndexError(i)
        cdef changed_row *row = self.rows + i
        return self.cache_key(i), self.held(i), row.timestamp, <object>row.headers, <object>row.message

    def deleted(self):
        """Return the set of the cache keys whose rows are deleted."""
        cdef Py_ssize_t i
        cdef set found = set()
        for i in range(self.count):
            if self.rows[i].held is <PyObject *>None:
                found.add(self.cache_key(i))
        return found

    def __iter__(self):
        return iter([self[i] for i in range(self.count)])

    def effective(self, list olds not None):
        """Return the changes and the entries before them, without deletions of entries that did not exist."""
        cdef Py_ssize_t i
        cdef list places = [
            i for i in range(self.count) if olds[i] is not None or self.rows[i].held is not <PyObject *>None
        ]
        if len(places) == self.count:
            return self, olds
        return self.only(places), [olds[i] for i in places]

    def only(self, places):
        """Return the changes at these places."""
        cdef ChangedRows found = ChangedRows.__new__(ChangedRows)
        cdef Py_ssize_t i
        found.make_room(len(places))
        found.times = self.times
        for i in places:
            if not 0 <= i < self.count:
                raise IndexError(i)
            found.keep(self.rows + i)
        return found


@cython.final
cdef class StoredEntries:
    """Converts rows of a cached store to entries of its cache and back (CachingStore._read_entry, _write_entries).

    A cache key is the key's bytes; with segments, it is a tuple of them, the time by which the row expires, and for
    sessions a second number of second_size bytes. latest: LatestRows, None without segments. timestamped: rows begin
    with their timestamp. from_bytes, to_bytes: convert bytes to held values and back, None if they are the same.
    is_long: held values are 64-bit integers. write_plain(changes): writes tombstones, whose changelog records may have
    headers.
    """

    def __init__(self, RowBuffer buffer not None, LatestRows latest, SegmentTimes segments, int second_size, bint timestamped,
                 from_bytes, to_bytes, bint is_long, Changelog changelog not None, write_plain):
        self.buffer = buffer
        self.latest = latest
        self.segments = segments
        self.second_size = second_size
        self.times = 0 if segments is None else 2 if second_size == TIME_BYTES else 1
        self.timestamped = timestamped
        self.from_bytes = from_bytes
        self.to_bytes = to_bytes
        self.is_long = is_long
        self.changelog = changelog
        self.write_plain = write_plain

    def __call__(self, key):
        """Return the entry of a cache key, None if there is none."""
        cdef int64_t time, second
        record_key = record_key_of(self.times, key, &time, &second)
        row = self.row_at(record_key, time, second)
        return None if row is None else self.held(row)

    cdef object row_at(self, key, int64_t time, int64_t second):
        """Return the row of a cache key, which is given taken apart; None if there is none."""
        if self.segments is None:
            return self.buffer.row(<bytes?>key)
        return self.segments.row(<bytes?>key, time, second)

    cdef bint read_long(self, bytes row, int64_t *number, int64_t *time) noexcept:
        """Read a row of an integer and its timestamp; return False for any other row."""
        if not self.is_long or not self.timestamped or PyBytes_GET_SIZE(row) != 2 * TIME_BYTES:
            return False
        time[0] = read_time(PyBytes_AS_STRING(row))
        number[0] = read_time(PyBytes_AS_STRING(row) + TIME_BYTES)
        return True

    cdef object held(self, bytes row):
        """Return the entry that a cache holds for a row."""
        cdef int64_t time
        if not self.timestamped:
            return row if self.from_bytes is None else converted(self.from_bytes, row)
        value = self.held_value(row, &time)
        return value, time

    cdef object held_value(self, bytes row, int64_t *time):
        """Return the held value of a row with a timestamp, and set time to that."""
        cdef int64_t number
        if self.read_long(row, &number, time):
            return number
        time[0] = read_time(PyBytes_AS_STRING(row))
        value = PyBytes_FromStringAndSize(PyBytes_AS_STRING(row) + TIME_BYTES, PyBytes_GET_SIZE(row) - TIME_BYTES)
        return value if self.from_bytes is None else converted(self.from_bytes, value)

    cdef bytes written(self, held):
        """Return the bytes of a held value."""
        if self.is_long and type(held) is int:
            data = PyBytes_FromStringAndSize(NULL, TIME_BYTES)
            write_time(PyBytes_AS_STRING(data), held)
            return data
        return <bytes?>(held if self.to_bytes is None else converted(self.to_bytes, held))

    def olds(self, ChangedRows changes not None, bint only_deleted):
        """Return the stored entries that changes replace, None where there is none. only_deleted: None for others, too."""
        cdef list found = []
        cdef changed_row *change
        cdef Py_ssize_t i
        for i in range(changes.count):
            change = changes.rows + i
            row = None
            if not only_deleted or change.held is <PyObject *>None:
                row = self.row_at(<object>change.key, change.time, change.second)
            found.append(None if row is None else self.held(row))
        return found

    def write(self, ChangedRows changes not None):
        """Write changed entries to the changelog and to the rows."""
        if self.segments is not None:
            self.observed = self.segments.observed_ms
        try:
            self.write_rows(changes)
        finally:
            self.advance()

    cdef int advance(self) except -1:
        """Let the segments know the highest time that was written."""
        if self.segments is not None and self.observed > self.segments.observed_ms:
            self.segments.advance(self.observed)
        return 0

    cdef bytes data_of(self, changed_row *change):
        """Return the bytes of a changed entry's value, which is not deleted, and keep them in the change."""
        cdef bytes data
        if change.held is NULL:
            data = PyBytes_FromStringAndSize(NULL, TIME_BYTES)
            write_time(PyBytes_AS_STRING(data), change.number)
        elif self.timestamped and not change.is_timed:
            data, change.newest = self.written((<tuple?><object>change.held)[0]), (<tuple><object>change.held)[1]
        else:
            data = self.written(<object>change.held)
        Py_INCREF(data)
        Py_XDECREF(change.data)
        change.data = <PyObject *>data
        return data

    cdef int write_rows(self, ChangedRows changes) except -1:
        cdef int64_t time, timestamp, taken_from = 0, drops_at = 0
        cdef bytes key, log_key, data, row
        cdef changed_row *change
        cdef Py_ssize_t i
        if self.segments is not None:
            taken_from, drops_at = self.segments.taken_from, self.segments.drops_at
        for i in range(changes.count):
            change = changes.rows + i
            key, timestamp = <bytes?><object>change.key, change.timestamp
            if change.held is <PyObject *>None and self.timestamped:
                self.advance()
                self.write_plain((changes[i],))
                if self.segments is not None:
                    self.observed = self.segments.observed_ms
                    taken_from, drops_at = self.segments.taken_from, self.segments.drops_at
                continue
            if self.timestamped:
                data = self.data_of(change)
                timestamp = change.newest
                row = timed(timestamp, data)
            else:
                row = data = None if change.held is <PyObject *>None else self.data_of(change)
            if self.segments is None:
                self.changelog.write(key, data, timestamp)
                self.buffer.set(key, row)
                continue
            time = change.time
            log_key = log_key_of(key, time, change.second, self.second_size)
            self.changelog.write(log_key, data, timestamp)
            if time > self.observed:
                self.observed = time
                if time >= drops_at:
                    self.advance()
                    taken_from, drops_at = self.segments.taken_from, self.segments.drops_at
            if time < taken_from:
                self.segments.put(log_key, time, row)
            else:
                self.latest.set_row(key, time, change.second, log_key, row)
