"""Makes named tuples of one to five fields, as tuple.__new__ does, without a tuple of their fields."""

cdef extern from *:
    """
    #ifndef PENSTOCK_NAMED_TUPLES
    #define PENSTOCK_NAMED_TUPLES
    static inline PyObject *filled_tuple(PyTypeObject *type, PyObject **fields, Py_ssize_t count) {
        PyObject *made = type->tp_alloc(type, count);
        if (made == NULL) return NULL;
    #if PY_VERSION_HEX >= 0x030E0000
        ((PyTupleObject *)made)->ob_hash = -1;  /* not known yet: 0 would be taken for the hash */
    #endif
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_INCREF(fields[i]);
            PyTuple_SET_ITEM(made, i, fields[i]);
        }
        return made;
    }
    static inline PyObject *tuple_of_one(PyTypeObject *type, PyObject *a) {
        return filled_tuple(type, &a, 1);
    }
    static inline PyObject *tuple_of_two(PyTypeObject *type, PyObject *a, PyObject *b) {
        PyObject *fields[] = {a, b};
        return filled_tuple(type, fields, 2);
    }
    static inline PyObject *tuple_of_three(PyTypeObject *type, PyObject *a, PyObject *b, PyObject *c) {
        PyObject *fields[] = {a, b, c};
        return filled_tuple(type, fields, 3);
    }
    static inline PyObject *tuple_of_four(PyTypeObject *type, PyObject *a, PyObject *b, PyObject *c, PyObject *d) {
        PyObject *fields[] = {a, b, c, d};
        return filled_tuple(type, fields, 4);
    }
    static inline PyObject *tuple_of_five(PyTypeObject *type, PyObject *a, PyObject *b, PyObject *c, PyObject *d,
                                          PyObject *e) {
        PyObject *fields[] = {a, b, c, d, e};
        return filled_tuple(type, fields, 5);
    }
    #endif
    """
    object tuple_of_one(type, object)
    object tuple_of_two(type, object, object)
    object tuple_of_three(type, object, object, object)
    object tuple_of_four(type, object, object, object, object)
    object tuple_of_five(type, object, object, object, object, object)
