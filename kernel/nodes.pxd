from libc.stdint cimport int64_t


cdef class RecordContext:
    cdef public object message, headers, at, tracer
    cdef public int64_t timestamp, stream_time_ms
    cdef object written_value, written_serde
    cdef bytes written_data


cdef class Node:
    cdef readonly RecordContext task
    cdef readonly object name
    cdef readonly Node child

    cdef int process(self, key, value, int64_t timestamp, headers) except -1
    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1
    cpdef int use_of_key(self, serde) except -1
    cpdef dict known_keys(self, serde)
