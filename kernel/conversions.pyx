# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Functions of one value that the kernel calls in C: those between objects and bytes."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF


cdef class Conversion:
    """A function of one value. The kernel calls of()."""

    def __call__(self, value):
        return self.of(value)

    cdef object of(self, value):
        raise NotImplementedError


@cython.final
cdef class Guarded(Conversion):
    """A serde's function. For whatever else it raises it calls refuse(value, error), see codecs.refusal.

    translate: of a serializer for one topic: from bytes that the serde wrote for another topic to those that function
    writes for the value that they are read as, or to None if they must be read. None: all must be read.
    """

    def __init__(self, function, refuse, Conversion translate=None):
        self.function, self.refuse, self.translate = function, refuse, translate

    @property
    def __wrapped__(self):
        return self.function

    cdef object of(self, value):
        # A try statement would save the exception that is being handled at each call.
        cdef PyObject *found = PyObject_CallOneArg(self.function, value)
        if found is NULL:
            self.refused(value)
        made = <object>found
        Py_DECREF(made)
        return made

    cdef int refused(self, value) except -1:
        try:
            return raise_error()
        except Exception as error:
            self.refuse(value, error)
            raise


cdef int raise_error() except -1:
    """Raise the error that a C function has set."""
    return -1
