"""The records of a user's processor: copies with another field, and forwarding; in Python: topology/records.py and
topology/operators/processor_operator.py.
"""

cdef extern from *:
    """
    /* Make a named tuple of four, as tuple.__new__ does. */
    static inline PyObject *named_tuple(PyTypeObject *type, PyObject *a, PyObject *b, PyObject *c, PyObject *d) {
        PyObject *fields[4] = {a, b, c, d};
        PyObject *made = type->tp_alloc(type, 4);
        if (made == NULL) return NULL;
        for (int i = 0; i < 4; i++) {
            Py_INCREF(fields[i]);
            PyTuple_SET_ITEM(made, i, fields[i]);
        }
        return made;
    }

    /* Whether an object is an int of 0 to 2**63 - 1. */
    static inline int is_timestamp(PyObject *number) {
        int overflow;
        return PyLong_CheckExact(number) && PyLong_AsLongLongAndOverflow(number, &overflow) >= 0;  // else -1
    }
    """
    object named_tuple(type, object, object, object, object)
    bint is_timestamp(object)


def with_field(type record not None, int place):
    """Return the method of a record that copies it with another field; place: of the field."""
    def copy(self, value):
        if not isinstance(self, record):
            raise TypeError(f"a {record.__name__} is needed, not {self!r}")
        given = <tuple>self
        return named_tuple(
            record,
            value if place == 0 else given[0],
            value if place == 1 else given[1],
            value if place == 2 else given[2],
            given[3],
        )

    return copy


def record_maker(type record not None):
    """Return the function that makes a record of its four fields, as they are."""
    def make(key, value, timestamp, headers):
        return named_tuple(record, key, value, timestamp, headers)

    return make


def forwarder(task, target, type record not None, forward_any):
    """Return the forward of a ProcessorContext. forward_any: the same in Python, for unusual records and with a child."""
    def forward(given, child=None):
        if child is not None or not isinstance(given, record) or not is_timestamp((<tuple>given)[2]):
            forward_any(given, child)
            return
        fields = <tuple>given
        timestamp, headers = task.timestamp, task.headers
        target(fields[0], fields[1], fields[2], fields[3])
        task.timestamp = timestamp
        task.headers = headers

    return forward
