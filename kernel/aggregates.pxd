cdef class Aggregation:
    cdef tuple names, columns, states

    cdef tuple updated(self, value, tuple states, bint removes)
    cdef object to_json(self, tuple states)
    cdef tuple from_json(self, data)


cdef class Adder:
    cdef Aggregation aggregation


cdef inline object aggregated(aggregator, key, value, old):
    """Return aggregator(key, value, old)."""
    if type(aggregator) is Adder:
        return (<Adder>aggregator).aggregation.updated(value, <tuple?>old, False)
    return aggregator(key, value, old)
