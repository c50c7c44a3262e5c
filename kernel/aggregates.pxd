cdef class Aggregation:
    cdef tuple names, columns, states

    cdef tuple updated(self, value, tuple states, bint removes, Py_ssize_t start, Py_ssize_t stop)
    cdef object to_json(self, tuple states)
    cdef tuple from_json(self, data)


cdef class Adder:
    cdef Aggregation aggregation
    cdef Py_ssize_t start, stop


cdef inline object aggregated(aggregator, key, value, old):
    """Return aggregator(key, value, old)."""
    cdef Adder adder
    if type(aggregator) is Adder:
        adder = <Adder>aggregator
        return adder.aggregation.updated(value, <tuple?>old, False, adder.start, adder.stop)
    return aggregator(key, value, old)
