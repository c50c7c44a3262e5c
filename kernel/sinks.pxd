from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str)
    void *PyUnicode_1BYTE_DATA(str)
    Py_ssize_t PyUnicode_GET_LENGTH(str)

cdef enum:
    PARTITIONER_DECIDES = -1


cdef class RecordTaker:
    cdef bint take(self, str topic, int32_t partition, key, value, int64_t timestamp, headers, source) except -1
    cdef int64_t now(self) except? -1
    cdef int32_t partitions(self, str topic) except -1


cdef class RecordWriter:
    cdef RecordTaker records
    cdef object plain
    cdef list errors
    cdef object producer
    cdef bint transactional
    cdef dict changelogs
    cdef object source

    cdef bint write(self, topic, int32_t partition, key, value, int64_t timestamp, headers) except -1
    cdef int64_t time(self, timestamp) except? -1


cdef class RecordSink:
    cdef RecordWriter writer
    cdef object plain
    cdef str topic
    cdef object to_key, to_value
    cdef bint has_texts, keys_may_be_none, values_may_be_none

    cdef object key_bytes(self, key)
    cdef object value_bytes(self, value)
    cdef object put(self, key, bint has_key, value, bint has_value, int64_t timestamp, headers, int32_t partition)
    cdef int write(self, key, value, int64_t timestamp, headers, int32_t partition) except -1


cdef class WindowedSink(RecordSink):
    cdef Py_ssize_t times_size
    cdef object partition_count


cdef class Changelog:
    cdef object plain
    cdef RecordWriter writer
    cdef str store
    cdef object topic
    cdef int32_t partition

    cdef int write(self, key, value, int64_t timestamp, headers=*) except -1


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
