# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Columns of a store's rows, as the buffers of Arrow arrays."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t
from libc.string cimport memcpy


def take_rows(rows, Py_ssize_t count, Py_ssize_t size):
    """Return the next rows of an iterator: at most count, and not more after these have so many bytes."""
    cdef list found = []
    for row in rows:
        found.append(row)
        size -= PyBytes_GET_SIZE(<bytes?>(<tuple?>row)[0]) + PyBytes_GET_SIZE(<bytes?>(<tuple>row)[1])
        if len(found) >= count or size <= 0:
            break
    return found


def number_column(list rows not None, Py_ssize_t item, Py_ssize_t at, Py_ssize_t size, bint whole=False):
    """Return the big-endian numbers of a part of each row in the machine's order: little-endian.

    item: 0 for the key, 1 for the value. at: where the number begins; below zero, counted from the end. size: of a
    number, in bytes. whole: the part must end with the number. Raises ValueError for a part of another length.
    """
    cdef Py_ssize_t count = len(rows), length, first, i
    cdef bytes found = PyBytes_FromStringAndSize(NULL, count * size), part
    cdef char *to = PyBytes_AS_STRING(found)
    cdef const char *data
    for row in rows:
        part = <bytes?>(<tuple?>row)[item]
        length = PyBytes_GET_SIZE(part)
        first = at if at >= 0 else length + at
        if first < 0 or first + size > length or (whole and first + size != length):
            raise ValueError(f"{length} bytes are no row of the store: there is no number of {size} bytes at {at}")
        data = PyBytes_AS_STRING(part) + first
        for i in range(size):
            to[i] = data[size - 1 - i]
        to += size
    return found


def bytes_column(list rows not None, Py_ssize_t item, Py_ssize_t front, Py_ssize_t back):
    """Return the offsets (32 bits) and the data of a part of each row, without its first and its last bytes.

    item: as of number_column. front, back: how many bytes are left out. Raises ValueError for a shorter part, and
    OverflowError for 2 GiB or more.
    """
    cdef Py_ssize_t count = len(rows), total = 0, length
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t)), part, data
    cdef int32_t *at = <int32_t *>PyBytes_AS_STRING(offsets)
    at[0] = 0
    for row in rows:
        part = <bytes?>(<tuple?>row)[item]
        length = PyBytes_GET_SIZE(part) - front - back
        if length < 0:
            raise ValueError(f"{length + front + back} bytes are no row of the store: it has at least {front + back}")
        total += length
        if total > INT32_MAX:
            raise OverflowError("a column has 2 GiB or more: read fewer rows at once")
        at += 1
        at[0] = <int32_t>total
    data = PyBytes_FromStringAndSize(NULL, total)
    cdef char *to = PyBytes_AS_STRING(data)
    for row in rows:
        part = <bytes>(<tuple>row)[item]
        length = PyBytes_GET_SIZE(part) - front - back
        memcpy(to, PyBytes_AS_STRING(part) + front, length)
        to += length
    return offsets, data
