from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    str PyUnicode_New(Py_ssize_t, int)
    void *PyUnicode_1BYTE_DATA(object)

cdef enum:
    ASCII = 127


cpdef str decode_text(bytes data)


cdef class Origin:
    cdef str topic
    cdef int32_t partition
    cdef bint has_texts


cdef class Message:
    cdef Origin _origin
    cdef object _key, _value, _headers
    cdef int64_t _offset, _timestamp
    cdef int _timestamp_type


cdef inline object key_from(const char *data, Py_ssize_t size, Origin origin):
    """Return a key as a Message stores it: as text if its consumer reads text and it is ASCII, otherwise as bytes."""
    cdef Py_ssize_t index
    cdef unsigned char seen = 0
    if not origin.has_texts:
        return PyBytes_FromStringAndSize(data, size)
    for index in range(size):
        seen |= <unsigned char>data[index]
    if seen > ASCII:
        return PyBytes_FromStringAndSize(data, size)
    text = PyUnicode_New(size, ASCII)
    memcpy(PyUnicode_1BYTE_DATA(text), data, size)
    return text
