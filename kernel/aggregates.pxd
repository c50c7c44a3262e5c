cdef class Aggregation:
    cdef tuple names, columns, states

    cdef tuple updated(self, value, tuple states, bint removes, Py_ssize_t start, Py_ssize_t stop)
    cdef object to_json(self, tuple states)
    cdef tuple from_json(self, data)


cdef class Adder:
    cdef Aggregation aggregation
    cdef Py_ssize_t start, stop


cdef class ChangeAggregator:
    cdef object initializer, add, remove

    cdef object changed(self, key, value, aggregate)


cdef inline bint needs_key(aggregator):
    """Return whether an aggregator gets the key."""
    if type(aggregator) is ChangeAggregator:
        return (<ChangeAggregator>aggregator).initializer is not None
    return type(aggregator) is not Adder


cdef inline object aggregated(aggregator, key, value, old):
    """Return aggregator(key, value, old)."""
    cdef Adder adder
    if type(aggregator) is ChangeAggregator:
        return (<ChangeAggregator>aggregator).changed(key, value, old)
    if type(aggregator) is Adder:
        adder = <Adder>aggregator
        return adder.aggregation.updated(value, <tuple?>old, False, adder.start, adder.stop)
    return aggregator(key, value, old)
