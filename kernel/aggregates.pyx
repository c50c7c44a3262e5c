# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The aggregates of `penstock.agg`: several of them in one pass over a record.

Each aggregate is a Column. Its state is what a store keeps of it, its result what the table has. No state is ever changed
in place, because a record cache keeps it. States are what JSON reads back, so that a cache need not convert them.
"""

cimport cython
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.math cimport fabs, isfinite

from base64 import b64decode, b64encode
from bisect import bisect_left
from decimal import Decimal
from math import fsum
from numbers import Integral, Real
from operator import itemgetter

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)

cdef object value_of_pair = itemgetter(0)


@cython.final
cdef class Field:
    """A part of a record's value: by names, keys of dicts or attributes, or by a function; without either, all of it."""

    cdef tuple names
    cdef object only, function  # only: the only name

    def __init__(self, tuple names not None, function=None):
        self.names, self.function = names, function
        self.only = names[0] if len(names) == 1 else None

    cdef object of(self, value):
        """Return the part, None if it is missing."""
        cdef PyObject *found
        if value is None:
            return None
        if self.only is not None and type(value) is dict:
            found = PyDict_GetItemWithError(value, self.only)
            return None if found is NULL else <object>found
        if self.function is not None:
            return self.function(value)
        for name in self.names:
            if isinstance(value, dict):
                found = PyDict_GetItemWithError(value, name)
                value = None if found is NULL else <object>found
            else:
                value = getattr(value, name)
            if value is None:
                return None
        return value


cdef object number_of(value):
    """Return an int, a finite float or a finite Decimal; raises TypeError or ValueError for anything else."""
    if type(value) is int:
        return value
    if type(value) is not float:
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Decimal):
            if not value.is_finite():
                raise ValueError(f"{value!r} is not a finite number")
            return value
        if not isinstance(value, Real):
            raise TypeError(f"a number is needed, not {value!r} ({type(value).__name__})")
        value = float(value)
    return finite(value)


cdef object finite(value):
    """Return a number that is not an infinite float; raises ValueError for that, because JSON has none."""
    if type(value) is float and not isfinite(<double>value):
        raise ValueError(f"{value!r} is not a finite number")
    return value


cdef object exact_sum(total, number):
    """Return a sum from which each number can be subtracted again: an int or Decimal, with floats [int, float, …].

    The floats are a sum without rounding: of numbers whose digits do not overlap (Shewchuk; as in math.fsum).
    """
    cdef list parts
    cdef double x, y, high, low
    whole = (<list>total)[0] if type(total) is list else total
    if type(number) is not float:
        if type(total) is list and type(number) is not int:
            raise TypeError("a Decimal cannot be added to floats")
        whole = whole + number
        return [whole, *(<list>total)[1:]] if type(total) is list else whole
    if type(whole) is not int:
        raise TypeError("a float cannot be added to Decimals")
    parts = [whole]
    x = number
    for part in (<list>total)[1:] if type(total) is list else ():
        y = part
        if fabs(x) < fabs(y):
            x, y = y, x
        high = x + y
        low = y - (high - x)
        if low:
            parts.append(low)
        x = high
    if x:
        parts.append(finite(x))
    return parts if len(parts) > 1 else whole


cdef class Column:
    """One aggregate. label: its name in errors. field: of the values that it aggregates; values that are None are skipped."""

    cdef str label
    cdef Field field

    def __init__(self, str label not None, Field field not None):
        self.label, self.field = label, field

    cdef object empty(self):
        """Return the state of no values."""
        return None

    cdef object added(self, state, value):
        """Return the state after a record's value."""
        part = self.field.of(value)
        return state if part is None else self.add(state, part)

    cdef object removed(self, state, value):
        """Return the state without a record's value that was added before."""
        part = self.field.of(value)
        return state if part is None else self.remove(state, part)

    cdef object add(self, state, part):
        raise NotImplementedError

    cdef object remove(self, state, part):
        raise NotImplementedError

    cdef object merged(self, state, later):
        """Return the state of the values of two states."""
        raise NotImplementedError

    cdef object result(self, state):
        """Return the result, the caller's own."""
        return state

    cdef object to_json(self, state):
        return state

    cdef object from_json(self, data):
        """Return a state; raises ValueError for what another aggregate has written."""
        return data

    cdef object check(self, data, bint fits):
        if not fits:
            raise ValueError(f"{self.label} cannot continue from {data!r}, which another aggregate has written")
        return data


@cython.final
cdef class Count(Column):
    """How many records, or with a field, how many values."""

    cdef bint all_records

    def __init__(self, label, field, bint all_records):
        Column.__init__(self, label, field)
        self.all_records = all_records

    cdef object empty(self):
        return 0

    cdef object added(self, state, value):
        return state + 1 if self.all_records or self.field.of(value) is not None else state

    cdef object removed(self, state, value):
        return state - 1 if self.all_records or self.field.of(value) is not None else state

    cdef object merged(self, state, later):
        return state + later

    cdef object from_json(self, data):
        return self.check(data, type(data) is int)


cdef class Sum(Column):
    """The sum of numbers. exact: without rounding, so that numbers can be subtracted again."""

    cdef bint exact

    def __init__(self, label, field, bint exact):
        Column.__init__(self, label, field)
        self.exact = exact

    cdef object plus(self, total, number):
        return exact_sum(total, number) if self.exact else finite(total + number)

    cdef object empty(self):
        return 0

    cdef object add(self, state, part):
        return self.plus(state, number_of(part))

    cdef object remove(self, state, part):
        return self.plus(state, -number_of(part))

    cdef object merged(self, state, later):
        return self.plus(state, later)  # of sessions, which are not exact

    cdef object result(self, state):
        return fsum(state) if type(state) is list else state

    cdef object to_json(self, state):
        return str(state) if type(state) is Decimal else state

    cdef object from_json(self, data):
        if type(data) is str:
            return Decimal(data)
        if type(data) is list:
            return self.check(data, self.exact and type(data[0]) is int and all(type(part) is float for part in data[1:]))
        return self.check(data, type(data) is int or (type(data) is float and not self.exact))


@cython.final
cdef class Mean(Sum):
    """The mean of numbers, from [sum, count]; None without numbers."""

    cdef object empty(self):
        return [0, 0]

    cdef object add(self, state, part):
        return [self.plus((<list?>state)[0], number_of(part)), (<list>state)[1] + 1]

    cdef object remove(self, state, part):
        return [self.plus((<list?>state)[0], -number_of(part)), (<list>state)[1] - 1]

    cdef object merged(self, state, later):
        return [self.plus((<list?>state)[0], (<list?>later)[0]), (<list>state)[1] + (<list>later)[1]]

    cdef object result(self, state):
        total, count = <list?>state
        return Sum.result(self, total) / count if count else None

    cdef object to_json(self, state):
        total, count = <list?>state
        return [Sum.to_json(self, total), count]

    cdef object from_json(self, data):
        self.check(data, type(data) is list and len(data) == 2 and type(data[1]) is int)
        return [Sum.from_json(self, data[0]), data[1]]


cdef class Values(Column):
    """Base of aggregates whose states have values. as_read(value): a copy, as JSON reads it back; raises if it cannot."""

    cdef object as_read

    def __init__(self, label, field, as_read):
        Column.__init__(self, label, field)
        self.as_read = as_read

    cdef object kept(self, value):
        """Return what a state has of a record's value."""
        kind = type(value)
        if kind is int or kind is bool or (kind is str and PyUnicode_IS_ASCII(value)):
            return value
        return finite(value) if kind is float else self.as_read(value)

    cdef object own(self, value):
        """Return a state's value for the caller, who may change it."""
        return self.as_read(value) if type(value) is dict or type(value) is list else value


@cython.final
cdef class Extreme(Values):
    """The smallest value, or the largest one; None without values."""

    cdef bint largest

    def __init__(self, label, field, as_read, bint largest):
        Values.__init__(self, label, field, as_read)
        self.largest = largest

    cdef object add(self, state, part):
        part = self.kept(part)
        if state is None or (part > state if self.largest else part < state):
            return part
        return state

    cdef object merged(self, state, later):
        return state if later is None else self.add(state, later)

    cdef object result(self, state):
        return self.own(state)


@cython.final
cdef class First(Values):
    """The first value that arrived, None without values."""

    cdef object add(self, state, part):
        return self.kept(part) if state is None else state

    cdef object merged(self, state, later):
        return later if state is None else state

    cdef object result(self, state):
        return self.own(state)


@cython.final
cdef class Last(Values):
    """The last value that arrived, None without values."""

    cdef object add(self, state, part):
        return self.kept(part)

    cdef object merged(self, state, later):
        return state if later is None else later

    cdef object result(self, state):
        return self.own(state)


cdef class Collect(Values):
    """The first values, up to a limit. keeps_all: a state has all of them, so that they can be removed again."""

    cdef Py_ssize_t limit
    cdef bint keeps_all

    def __init__(self, label, field, as_read, Py_ssize_t limit, bint keeps_all):
        Values.__init__(self, label, field, as_read)
        self.limit, self.keeps_all = limit, keeps_all

    cdef object empty(self):
        return []

    cdef object add(self, state, part):
        if not self.keeps_all and len(<list?>state) >= self.limit:
            return state
        return [*<list?>state, self.kept(part)]

    cdef object remove(self, state, part):
        part = self.kept(part)
        if part not in <list?>state:
            return state
        state = (<list>state).copy()
        state.remove(part)
        return state

    cdef object merged(self, state, later):
        return [*<list?>state, *<list?>later][:self.limit]  # of sessions, which do not keep all

    cdef object result(self, state):
        return [self.own(value) for value in (<list?>state)[:self.limit]]

    cdef object from_json(self, data):
        return self.check(data, type(data) is list)


@cython.final
cdef class End(Collect):
    """The first or the last of the values that are left of a grouped table, by arrival; None without values."""

    cdef bint last

    def __init__(self, label, field, as_read, bint last):
        Collect.__init__(self, label, field, as_read, 1, True)
        self.last = last

    cdef object result(self, state):
        cdef list values = <list?>state
        return self.own(values[len(values) - 1 if self.last else 0]) if values else None


@cython.final
cdef class Sorted(Values):
    """The smallest or the largest of the values that are left of a grouped table, from [[value, count], …] by value."""

    cdef bint largest

    def __init__(self, label, field, as_read, bint largest):
        Values.__init__(self, label, field, as_read)
        self.largest = largest

    cdef object empty(self):
        return []

    cdef object changed(self, list pairs, part, int by):
        part = self.kept(part)
        cdef Py_ssize_t place = bisect_left(pairs, part, key=value_of_pair)
        cdef bint found = place < len(pairs) and (<list?>pairs[place])[0] == part
        cdef list new = pairs.copy()
        if found:
            count = (<list>pairs[place])[1] + by
            new[place:place + 1] = [[(<list>pairs[place])[0], count]] if count else []
        elif by > 0:
            new.insert(place, [part, 1])
        return new

    cdef object add(self, state, part):
        return self.changed(<list?>state, part, 1)

    cdef object remove(self, state, part):
        return self.changed(<list?>state, part, -1)

    cdef object result(self, state):
        cdef list pairs = <list?>state
        return self.own((<list?>pairs[len(pairs) - 1 if self.largest else 0])[0]) if pairs else None

    cdef object from_json(self, data):
        return self.check(data, type(data) is list and all(type(pair) is list and len(pair) == 2 for pair in data))


cdef enum:
    PENDING = 64  # values until a sketch is copied and updated: then an update costs less than the rest of a record


@cython.final
cdef class Sketched:
    """The state of a Sketch: a sketch of the library, None without one, and the values after it, the newest one here."""

    cdef object sketch, value
    cdef Sketched before
    cdef int pending


@cython.final
cdef class Sketch(Column):
    """What a sketch of a library estimates. Its state is None without values, and bytes in base64 in JSON.

    kind: has checked(value), which returns what to update a sketch with, extended(sketch or None, values), merged(one, other),
    result(sketch or None), to_bytes(sketch) and from_bytes(bytes). None of them changes a sketch.
    """

    cdef object kind

    def __init__(self, label, field, kind):
        Column.__init__(self, label, field)
        self.kind = kind

    cdef Sketched holding(self, sketch):
        cdef Sketched state = Sketched.__new__(Sketched)
        state.sketch = sketch
        return state

    cdef object sketch_of(self, Sketched state):
        """Return the sketch of all values, None without any."""
        cdef list values = []
        if state is None or not state.pending:
            return None if state is None else state.sketch
        while state.pending:
            values.append(state.value)
            state = state.before
        values.reverse()
        return self.kind.extended(state.sketch, values)

    cdef object add(self, state, part):
        cdef Sketched before = state, new = Sketched.__new__(Sketched)
        new.before = self.holding(None) if before is None else before
        new.value = self.kind.checked(part)
        new.pending = new.before.pending + 1
        return new if new.pending < PENDING else self.holding(self.sketch_of(new))

    cdef object merged(self, state, later):
        if state is None or later is None:
            return later if state is None else state
        return self.holding(self.kind.merged(self.sketch_of(state), self.sketch_of(later)))

    cdef object result(self, state):
        return self.kind.result(self.sketch_of(state))

    cdef object to_json(self, state):
        return None if state is None else b64encode(self.kind.to_bytes(self.sketch_of(state))).decode()

    cdef object from_json(self, data):
        self.check(data, data is None or type(data) is str)
        return None if data is None else self.holding(self.kind.from_bytes(b64decode(data)))


@cython.final
cdef class Aggregation:
    """Aggregates of one key in one pass: a tuple of states, as what a table's operator takes as its functions.

    names: of the results in a row, which is a dict; None for one aggregate, whose result stands alone.
    """

    def __init__(self, tuple names, tuple columns not None):
        cdef Column column
        self.names, self.columns = names, columns
        self.states = tuple([(<Column?>column).empty() for column in columns])

    def initializer(self):
        """Return the states of no records."""
        return self.states

    @property
    def aggregator(self):
        """aggregator(key, value, states): the states after one more record."""
        return Adder(self, 0, len(self.columns))

    def aggregator_of(self, Py_ssize_t start, Py_ssize_t stop):
        """Return the aggregator of some of the columns, those of one stream of a cogroup; it leaves the other states."""
        return Adder(self, start, stop)

    def subtractor(self, key, value, tuple states not None):
        """Return the states without a record that was added before."""
        return self.updated(value, states, True, 0, len(self.columns))

    def merger(self, key, tuple states not None, tuple later not None):
        """Return the states of two sessions, the earlier one first."""
        cdef Py_ssize_t i
        return tuple([(<Column>self.columns[i]).merged(states[i], later[i]) for i in range(len(self.columns))])

    cdef tuple updated(self, value, tuple states, bint removes, Py_ssize_t start, Py_ssize_t stop):
        cdef Py_ssize_t i, count = len(self.columns)
        cdef tuple new = PyTuple_New(count)
        cdef Column column = None
        try:
            for i in range(count):
                state = states[i]
                if start <= i < stop:
                    column = <Column>self.columns[i]
                    state = column.removed(state, value) if removes else column.added(state, value)
                Py_INCREF(state)
                PyTuple_SET_ITEM(new, i, state)
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{column.label}: {error}") from error
        return new

    def result(self, tuple states not None):
        """Return the row of results, or the only result."""
        cdef Py_ssize_t i
        if self.names is None:
            return (<Column>self.columns[0]).result(states[0])
        return {self.names[i]: (<Column>self.columns[i]).result(states[i]) for i in range(len(self.columns))}

    def writer(self, encode):
        """Return a function from states to the bytes that encode returns: of a dict of them, or of the only one."""
        def write(states):
            return encode(self.to_json(<tuple?>states))

        return write

    def reader(self, decode):
        """Return a function from these bytes to states; decode: their inverse. An aggregate that they do not have begins.

        It raises ValueError for what other aggregates have written.
        """
        def read(data):
            return self.from_json(decode(data))

        return read

    cdef object to_json(self, tuple states):
        cdef Py_ssize_t i
        if self.names is None:
            return (<Column>self.columns[0]).to_json(states[0])
        return {self.names[i]: (<Column>self.columns[i]).to_json(states[i]) for i in range(len(self.columns))}

    cdef tuple from_json(self, data):
        cdef Py_ssize_t i
        cdef PyObject *found
        cdef tuple states
        if self.names is None:
            return ((<Column>self.columns[0]).from_json(data),)
        if type(data) is not dict:
            raise ValueError(f"a row of {', '.join(self.names)} is needed, not {data!r}")
        states = PyTuple_New(len(self.columns))
        for i in range(len(self.columns)):
            found = PyDict_GetItemWithError(data, self.names[i])
            state = self.states[i] if found is NULL else (<Column>self.columns[i]).from_json(<object>found)
            Py_INCREF(state)
            PyTuple_SET_ITEM(states, i, state)
        return states


@cython.final
cdef class Adder:
    """The aggregator of an Aggregation's columns from start to stop.

    Nodes know it: they call it in C, and need not read the record's key for it.
    """

    def __init__(self, Aggregation aggregation not None, Py_ssize_t start, Py_ssize_t stop):
        self.aggregation, self.start, self.stop = aggregation, start, stop

    def __call__(self, key, value, tuple states not None):
        return self.aggregation.updated(value, states, False, self.start, self.stop)


@cython.final
cdef class ChangeAggregator:
    """The aggregator of a grouped table: it removes the old value of a change, and adds the new one.

    add, remove: functions (key, value, aggregate), with initializer() for the first value; or with initializer None
    functions (aggregate, value), where the first value is the first aggregate.
    """

    def __init__(self, initializer, add not None, remove not None):
        self.initializer, self.add, self.remove = initializer, add, remove

    cdef object changed(self, key, value, aggregate):
        """Return the aggregate after a change, None if there is none."""
        cdef bint reduces = self.initializer is None
        new, old, _ = value
        if old is not None and aggregate is not None:
            aggregate = self.remove(aggregate, old) if reduces else self.remove(key, old, aggregate)
        if new is None:
            return aggregate
        if reduces:
            return new if aggregate is None else self.add(aggregate, new)
        return self.add(key, new, self.initializer() if aggregate is None else aggregate)
