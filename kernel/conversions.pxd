from cpython.object cimport PyObject

cdef extern from "Python.h":
    PyObject *PyObject_CallOneArg(object, object)


cdef class Conversion:
    cdef object of(self, value)


cdef class Guarded(Conversion):
    cdef object function, refuse
    cdef Conversion translate

    cdef int refused(self, value) except -1


cdef int raise_error() except -1


cdef inline object converted(object function, object value):
    """Return function(value)."""
    return (<Conversion>function).of(value) if isinstance(function, Conversion) else function(value)


cdef inline bytes translated(object encode, bytes data):
    """Return what encode writes for the value of bytes that its serde wrote for another topic, None if they must be read."""
    cdef bytes found = None
    if type(encode) is Guarded and (<Guarded>encode).translate is not None:
        found = (<Guarded>encode).translate.of(data)
    return found
