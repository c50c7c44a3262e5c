# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""A sorted run of rows in one blob: a page of the rows that Spark's state keeps."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

cdef enum:
    LENGTH = 4


@cython.final
cdef class Page:
    """The rows of a blob in the order of their keys, and the changes since the last fold.

    data: of each row key length, key, value length, value; a length has 4 bytes, big-endian. The blob is not unpacked: a
    read searches it, and fold() copies what has not changed. Raises ValueError if the blob ends within a row.
    """

    cdef bytes data
    cdef uint32_t *starts  # of each row in the blob; behind the last one its size
    cdef Py_ssize_t count
    cdef dict changes

    def __init__(self, bytes data not None=b""):
        self.changes = {}
        self.load(data)

    def __dealloc__(self):
        free(self.starts)

    cdef int load(self, bytes data) except -1:
        cdef const unsigned char *blob = <const unsigned char *>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, room = 0, count = 0
        cdef uint32_t *starts
        while True:
            if count >= room:
                room = 2 * room + 64
                starts = <uint32_t *>realloc(self.starts, room * sizeof(uint32_t))
                if starts is NULL:
                    raise MemoryError
                self.starts = starts
            self.starts[count] = <uint32_t>at
            if at == size:
                break
            at = after_bytes(blob, after_bytes(blob, at, size), size)
            if at < 0:
                raise ValueError("a page of rows ends within a row")
            count += 1
        self.data = data
        self.count = count
        return 0

    @property
    def is_changed(self):
        """Whether there are changes since the last fold."""
        return bool(self.changes)

    def __len__(self):
        """Return the number of rows, with the changes."""
        cdef Py_ssize_t total = self.count
        for key, value in self.changes.items():
            total += (value is not None) - self.has(self.place(key), key)
        return total

    def get(self, bytes key not None):
        """Return a row's value, None if there is none."""
        cdef PyObject *changed = PyDict_GetItemWithError(self.changes, key)
        if changed is not NULL:
            return <object>changed
        cdef Py_ssize_t place = self.place(key)
        return self.value(place) if self.has(place, key) else None

    def put(self, bytes key not None, bytes value):
        """Set a row; None deletes it."""
        self.changes[key] = value

    def between(self, bytes start, bytes end):
        """Return the rows with start <= key < end in order; None leaves a side open."""
        cdef Py_ssize_t place = 0 if start is None else self.place(start)
        cdef Py_ssize_t last = self.count if end is None else self.place(end), before
        cdef list found = []
        for key, value in sorted(self.changes.items()):
            if start is not None and key < start:
                continue
            if end is not None and key >= end:
                break
            before = self.place(key)
            while place < before:
                found.append((self.key(place), self.value(place)))
                place += 1
            place += self.has(before, key)
            if value is not None:
                found.append((key, value))
        while place < last:
            found.append((self.key(place), self.value(place)))
            place += 1
        return found

    def fold(self):
        """Make the changes part of the blob, and return it."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.data), place, from_place = 0
        cdef bytes key, value, folded
        if not self.changes:
            return self.data
        changes = sorted(self.changes.items())
        for key, value in changes:
            place = self.place(key)
            if self.has(place, key):
                size -= self.starts[place + 1] - self.starts[place]
            if value is not None:
                size += 2 * LENGTH + PyBytes_GET_SIZE(key) + PyBytes_GET_SIZE(value)
        folded = PyBytes_FromStringAndSize(NULL, size)
        cdef char *to = PyBytes_AS_STRING(folded)
        for key, value in changes:
            place = self.place(key)
            to = self.copied(to, from_place, place)
            from_place = place + self.has(place, key)
            if value is not None:
                to = written(written(to, key), value)
        self.copied(to, from_place, self.count)
        self.load(folded)
        self.changes.clear()
        return folded

    def forget(self):
        """Drop the changes since the last fold."""
        self.changes.clear()

    def split(self, Py_ssize_t limit):
        """Return pages of at most this many bytes with the rows of this one, which has no changes.

        A row that is larger has a page alone. Of each page: the key of its first row, and the page.
        """
        cdef Py_ssize_t first = 0, place
        cdef list parts = []
        for place in range(1, self.count + 1):
            if place < self.count and self.starts[place + 1] - self.starts[first] <= limit:
                continue
            parts.append((self.key(first), Page(self.data[self.starts[first]:self.starts[place]])))
            first = place
        return parts

    cdef char *copied(self, char *to, Py_ssize_t first, Py_ssize_t end):
        cdef Py_ssize_t size = self.starts[end] - self.starts[first]
        memcpy(to, PyBytes_AS_STRING(self.data) + self.starts[first], size)
        return to + size

    cdef bytes key(self, Py_ssize_t place):
        cdef const char *row = PyBytes_AS_STRING(self.data) + self.starts[place]
        return PyBytes_FromStringAndSize(row + LENGTH, length_at(<const unsigned char *>row))

    cdef bytes value(self, Py_ssize_t place):
        cdef const char *row = PyBytes_AS_STRING(self.data) + self.starts[place]
        row += LENGTH + length_at(<const unsigned char *>row)
        return PyBytes_FromStringAndSize(row + LENGTH, length_at(<const unsigned char *>row))

    cdef Py_ssize_t place(self, bytes key) noexcept:
        """Return the place of the first row whose key is not below this one."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.compared(middle, key) < 0:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bint has(self, Py_ssize_t place, bytes key) noexcept:
        return place < self.count and self.compared(place, key) == 0

    cdef int compared(self, Py_ssize_t place, bytes key) noexcept:
        """Compare the key of a row with this one: below zero, zero, above zero."""
        cdef const char *row = PyBytes_AS_STRING(self.data) + self.starts[place]
        cdef Py_ssize_t size = length_at(<const unsigned char *>row), other = PyBytes_GET_SIZE(key)
        cdef int order = memcmp(row + LENGTH, PyBytes_AS_STRING(key), min(size, other))
        return order if order else (size > other) - (size < other)


cdef inline Py_ssize_t length_at(const unsigned char *at) noexcept nogil:
    return (<Py_ssize_t>at[0] << 24) | (at[1] << 16) | (at[2] << 8) | at[3]


cdef inline Py_ssize_t after_bytes(const unsigned char *blob, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Return where the bytes end whose length is here, below zero if they are not complete."""
    if at < 0 or size - at < LENGTH:
        return -1
    cdef Py_ssize_t length = length_at(blob + at)
    return at + LENGTH + length if length <= size - at - LENGTH else -1


cdef inline char *written(char *to, bytes data) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    to[0] = <char>(size >> 24)
    to[1] = <char>(size >> 16)
    to[2] = <char>(size >> 8)
    to[3] = <char>size
    memcpy(to + LENGTH, PyBytes_AS_STRING(data), size)
    return to + LENGTH + size
