"""Serializers that look at what they are given, before or after they write it; topology/codecs.py has them in Python."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.ref cimport PyObject
from libc.math cimport isfinite

from penstock.kernel.flat_dict cimport is_flat

cdef enum:
    BLOCK = 256  # bytes that are looked through at once, by vector instructions
    LARGE = 16384  # bytes of which a block of the next 4 KB wastes little


def checked_json(dumps, look_again):
    """See topology/codecs.py."""
    def serialize(value):
        try:
            data = <bytes?>dumps(value)
        except TypeError as error:
            return look_again(value, None, error)
        if has_null(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) and not is_finite(value):
            return look_again(value, data, None)
        return fitted(data)

    return serialize


def private_dicts(encode, decode):
    """See topology/codecs.py."""
    def hold(value):
        if value is None:
            return None
        return (<dict>value).copy() if is_flat(value) else encode(value)

    def read(held):
        if held is None:
            return None
        return (<dict>held).copy() if type(held) is dict else decode(held)

    def bytes_of(held):
        return encode(held) if type(held) is dict else held

    return hold, read, bytes_of


def typed(kind, serialize, convert):
    """See topology/codecs.py."""
    def serialize_typed(value):
        return serialize(value if type(value) is kind else convert(value))

    return serialize_typed


cdef bytes fitted(bytes data):
    """Return bytes in no more memory than they take: orjson leaves them in a block of 4 KB."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    return data if size > LARGE else PyBytes_FromStringAndSize(PyBytes_AS_STRING(data), size)


cdef bint has_null(const char *data, Py_ssize_t size) noexcept nogil:
    """Return whether "null" is in JSON, be it in a text."""
    cdef Py_ssize_t start = 0, end, i, last = size - 3
    cdef char found = 0
    while start < last and not found:
        end = min(start + BLOCK, last)
        for i in range(start, end):
            found |= (data[i] == b"n") & (data[i + 1] == b"u") & (data[i + 2] == b"l") & (data[i + 3] == b"l")
        start = end
    return found


cdef bint is_finite(value) except -1:
    """Return whether a value holds neither NaN nor an infinity; False also if it holds what is not known here."""
    cdef PyObject *part
    cdef Py_ssize_t position = 0
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return True
    if kind is float:
        return isfinite(<double>value)
    if kind is dict:
        while PyDict_Next(value, &position, NULL, &part):
            if not is_finite(<object>part):
                return False
        return True
    if kind is list or kind is tuple:
        return all_finite(value)
    fields = getattr(kind, "__struct_fields__", None)  # a msgspec.Struct
    if fields is None:
        return False
    for field in fields:
        if not is_finite(getattr(value, field)):
            return False
    return True


cdef bint all_finite(values) except -1:
    for value in values:
        if not is_finite(value):
            return False
    return True
