cdef class Written:
    cdef int kind
    cdef Py_ssize_t size
    cdef Written inside

    cdef bint holds(self, const char *data, Py_ssize_t size) noexcept


cdef class Rewriter:
    cdef object encode, decode
    cdef Written written
    cdef public dict known

    cdef object rewrite(self, bytes data)


cpdef bytes hash128(bytes data)
