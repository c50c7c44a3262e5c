from libc.stdint cimport int32_t, int64_t


cdef class Message:
    cdef str _topic
    cdef object _key, _value, _headers, _error
    cdef int64_t _offset, _timestamp
    cdef int32_t _partition
    cdef int _timestamp_type
