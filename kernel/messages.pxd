from libc.stdint cimport int32_t, int64_t


cdef class Origin:
    cdef str topic
    cdef int32_t partition
    cdef bint has_texts


cdef class Message:
    cdef Origin _origin
    cdef object _key, _value, _headers, _error
    cdef int64_t _offset, _timestamp
    cdef int _timestamp_type
