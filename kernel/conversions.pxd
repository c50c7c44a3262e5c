from cpython.object cimport PyObject

cdef extern from "Python.h":
    PyObject *PyObject_CallOneArg(object, object)


cdef class Conversion:
    cdef object of(self, value)


cdef class Guarded(Conversion):
    cdef object function, refuse

    cdef int refused(self, value) except -1


cdef int raise_error() except -1


cdef inline object converted(object function, object value):
    """Return function(value)."""
    return (<Conversion>function).of(value) if isinstance(function, Conversion) else function(value)
