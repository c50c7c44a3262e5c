"""Recognizes dicts that JSON would read back unchanged, without writing them."""

from cpython.dict cimport PyDict_Next
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.ref cimport PyObject
from libc.math cimport isfinite

cdef extern from "Python.h":
    int PyUnicode_KIND(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    void *PyUnicode_DATA(object)
    Py_UCS4 PyUnicode_READ(int kind, void *data, Py_ssize_t index)


cdef inline bint is_written(object text) noexcept:
    """Return whether a text can be written: lone surrogates cannot."""
    cdef int kind = PyUnicode_KIND(text)
    cdef Py_ssize_t i
    if kind == 1:
        return True
    for i in range(PyUnicode_GET_LENGTH(text)):
        if 0xd800 <= PyUnicode_READ(kind, PyUnicode_DATA(text), i) <= 0xdfff:
            return False
    return True


cdef inline bint is_plain(object value) except -1:
    """Return whether a value is immutable, and JSON would read it back unchanged."""
    cdef int overflow = 0
    kind = type(value)
    if kind is int:
        PyLong_AsLongLongAndOverflow(value, &overflow)
        return not overflow
    if kind is str:
        return is_written(value)
    if kind is float:
        return isfinite(<double>value)
    return kind is bool or value is None


cdef inline bint is_flat(object value) except -1:
    """Return whether a value is a dict from texts to plain values, so that a copy shares nothing mutable with it."""
    cdef PyObject *name
    cdef PyObject *part
    cdef Py_ssize_t position = 0
    if type(value) is not dict:
        return False
    while PyDict_Next(value, &position, &name, &part):
        if type(<object>name) is not str or not is_written(<object>name) or not is_plain(<object>part):
            return False
    return True
