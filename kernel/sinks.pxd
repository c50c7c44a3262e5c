from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str)
    void *PyUnicode_1BYTE_DATA(str)
    Py_ssize_t PyUnicode_GET_LENGTH(str)

cdef enum:
    PARTITIONER_DECIDES = -1


cdef class RecordTaker:
    cdef bint take(self, str topic, int32_t partition, key, value, timestamp, headers) except -1


cdef inline bint is_ascii(key):
    return type(key) is str and PyUnicode_IS_ASCII(<str>key)


cdef inline bint find_bytes(key, const char **data, Py_ssize_t *size):
    """Return whether a key is bytes or ASCII text, whose memory holds its bytes; set data and size to them."""
    if type(key) is bytes:
        data[0], size[0] = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
    elif is_ascii(key):
        data[0], size[0] = <const char *>PyUnicode_1BYTE_DATA(<str>key), PyUnicode_GET_LENGTH(<str>key)
    else:
        return False
    return True
