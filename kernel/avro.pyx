"""Avro records to dicts and back, as fastavro reads and writes them; see topology/serdes/avro_serdes.py.

Only values of exactly the types of a schema are handled here. fastavro gets all others, so what it accepts besides, and
what it says of wrong values and bytes, stays as it is.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError, PyDict_SetItem
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from penstock.kernel.conversions cimport Conversion
from penstock.kernel.varints cimport put_varint, take_varint

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL
    long long PyLong_AsLongLongAndOverflow(object, int *overflow) except? -1
    double PyLong_AsDouble(object) except? -1.0

cdef extern from *:
    """
    static const union { int number; char first; } byte_order = {1};  /* Avro's numbers are little endian */
    static inline void swapped(char *to, const char *from, int size) {
        for (int i = 0; i < size; i++) to[i] = from[byte_order.first ? i : size - 1 - i];
    }
    """
    void swapped(char *to, const char *, int size) noexcept

cdef enum:
    NULL_TYPE
    BOOLEAN
    INT
    LONG
    FLOAT
    DOUBLE
    BYTES
    STRING
    FIXED
    ENUM
    ARRAY
    MAP
    UNION
    RECORD

PRIMITIVES = {
    "null": NULL_TYPE, "boolean": BOOLEAN, "int": INT, "long": LONG, "float": FLOAT, "double": DOUBLE, "bytes": BYTES,
    "string": STRING,
}
cdef enum:
    ROOM = 1024  # bytes of most records
    VARINT_BYTES = 10
    HEADER_BYTES = 5  # zero and the schema's id
    MAX_DEPTH = 100  # of types in types
    EMPTY_ITEMS = 1000  # items without bytes in one value; more are left to fastavro, behind a check of its bytes

cdef object MISSING = object()  # fits no type


class Unusual(Exception):
    """A schema, a value or bytes that are left to fastavro."""


cdef struct Input:
    const char *at
    const char *end
    int64_t empty_items


cdef struct Output:
    char *data
    Py_ssize_t size
    Py_ssize_t room
    char *owned  # NULL until the first block on the stack is too small


@cython.final
cdef class Type:
    """One type of a schema.

    parts: the types of a record's fields, a union's branches, or an array's items or map's values; depth: of parts in
    parts; names: of fields, symbols of an enum; defaults: of fields, MISSING for none; places: of an enum's symbols;
    size: of FIXED. null, other: positions of a union's branches if it has null and one other, otherwise -1: fastavro
    has to choose. is_empty: whether its values take no bytes. to_value, from_value: of a logical type, otherwise None;
    schema: theirs. has_one_form: whether is_shortest can be True for its values, and those of its parts.
    """
    cdef int kind
    cdef Py_ssize_t size
    cdef int null, other, depth
    cdef bint is_empty, has_one_form
    cdef tuple parts, names, defaults
    cdef dict places
    cdef object to_value, from_value, schema

    cdef object read(self, Input *source):
        value = self.read_plain(source)
        return value if self.to_value is None else self.to_value(value, self.schema, None)

    cdef object read_plain(self, Input *source):
        cdef Py_ssize_t i
        cdef int64_t number
        cdef double wide
        cdef float narrow
        if self.kind == STRING:
            return read_text(source)
        if self.kind == LONG or self.kind == INT:
            return read_number(source)
        if self.kind == UNION:
            number = read_number(source)
            return (<Type>self.parts[place_in(self.parts, number)]).read(source)
        if self.kind == RECORD:
            record = {}
            for i in range(len(self.parts)):
                PyDict_SetItem(record, self.names[i], (<Type>self.parts[i]).read(source))
            return record
        if self.kind == DOUBLE:
            need(source, 8)
            swapped(<char *>&wide, source.at, 8)
            source.at += 8
            return wide
        if self.kind == FLOAT:
            need(source, 4)
            swapped(<char *>&narrow, source.at, 4)
            source.at += 4
            return <double>narrow
        if self.kind == NULL_TYPE:
            return None
        if self.kind == BOOLEAN:
            need(source, 1)
            source.at += 1
            return source.at[-1] != 0
        if self.kind == BYTES or self.kind == FIXED:
            number = self.size
            if self.kind == BYTES:
                number = read_number(source)
            need(source, number)
            data = PyBytes_FromStringAndSize(source.at, number)
            source.at += number
            return data
        if self.kind == ENUM:
            number = read_number(source)
            return self.names[place_in(self.names, number)]
        return self.read_items(source)

    cdef object read_items(self, Input *source):
        """Read an array as a list or a map as a dict."""
        cdef int64_t count, i
        cdef Type part = <Type>self.parts[0]
        items = [] if self.kind == ARRAY else {}
        while True:
            count = read_number(source)
            if count == 0:
                return items
            if count < 0:  # the block's size in bytes follows
                count = -count
                read_number(source)
            need(source, count)  # fewer bytes than items: items without bytes, or no Avro
            if part.is_empty and self.kind == ARRAY:
                source.empty_items += count
                usual(source.empty_items <= EMPTY_ITEMS)
            for i in range(count):
                if self.kind == ARRAY:
                    (<list>items).append(part.read(source))
                else:
                    key = read_text(source)
                    PyDict_SetItem(items, key, part.read(source))

    cdef bint is_shortest(self, Input *source) noexcept:
        """Go past a value of a Type that has_one_form; return whether write() writes the same bytes for what read()
        reads.
        """
        cdef int64_t number
        cdef float narrow
        cdef Type part
        if self.kind == STRING:
            return take_shortest(source, &number) and take_text(source, number)
        if self.kind == LONG or self.kind == INT:
            return take_shortest(source, &number) and (self.kind == LONG or INT32_MIN <= number <= INT32_MAX)
        if self.kind == RECORD:
            for part in self.parts:
                if not part.is_shortest(source):
                    return False
            return True
        if self.kind == UNION:
            if not take_shortest(source, &number):
                return False
            return number == self.null or (number == self.other and (<Type>self.parts[self.other]).is_shortest(source))
        if self.kind == DOUBLE:
            return take(source, 8)
        if self.kind == FLOAT:
            if not take(source, 4):
                return False
            swapped(<char *>&narrow, source.at - 4, 4)
            return narrow == narrow  # as a double, some NaNs are changed
        if self.kind == BOOLEAN:
            return take(source, 1) and <uint8_t>source.at[-1] <= 1
        if self.kind == BYTES:
            return take_shortest(source, &number) and take(source, number)
        if self.kind == FIXED:
            return take(source, self.size)
        if self.kind == ENUM:
            return take_shortest(source, &number) and 0 <= number < len(self.names)
        return self.kind == NULL_TYPE

    cdef int write(self, value, Output *to) except -1:
        cdef int64_t number
        cdef double wide
        cdef float narrow
        cdef int overflow
        if self.from_value is not None:
            value = self.from_value(value, self.schema)
        if self.kind == STRING:
            write_text(to, value)
        elif self.kind == LONG or self.kind == INT:
            usual(type(value) is int)
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
            usual(not overflow and (self.kind == LONG or INT32_MIN <= number <= INT32_MAX))
            write_number(to, number)
        elif self.kind == UNION:
            usual(self.null >= 0)
            if value is None:
                write_number(to, self.null)
            else:
                write_number(to, self.other)
                (<Type>self.parts[self.other]).write(value, to)
        elif self.kind == RECORD:
            usual(type(value) is dict)
            self.write_fields(<dict>value, to)
        elif self.kind == DOUBLE or self.kind == FLOAT:
            usual(type(value) is float or type(value) is int)
            wide = <double>value if type(value) is float else PyLong_AsDouble(value)
            if self.kind == DOUBLE:
                swapped(reserve(to, 8), <const char *>&wide, 8)
            else:
                narrow = <float>wide
                swapped(reserve(to, 4), <const char *>&narrow, 4)
        elif self.kind == NULL_TYPE:
            usual(value is None)
        elif self.kind == BOOLEAN:
            usual(value is True or value is False)
            reserve(to, 1)[0] = value is True
        elif self.kind == BYTES:
            usual(type(value) is bytes)
            write_data(to, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        elif self.kind == FIXED:
            usual(type(value) is bytes and PyBytes_GET_SIZE(value) == self.size)
            memcpy(reserve(to, self.size), PyBytes_AS_STRING(value), self.size)
        elif self.kind == ENUM:
            usual(type(value) is str and value in self.places)
            write_number(to, self.places[value])
        elif self.kind == ARRAY:
            usual(type(value) is list)
            self.write_list(<list>value, to)
        else:
            usual(type(value) is dict)
            self.write_map(<dict>value, to)
        return 0

    cdef int write_fields(self, dict record, Output *to) except -1:
        cdef Py_ssize_t i
        cdef PyObject *found
        usual("-type" not in record)  # in a union, fastavro looks at it
        for i in range(len(self.parts)):
            found = PyDict_GetItemWithError(record, self.names[i])
            value = self.defaults[i] if found == NULL else <object>found
            (<Type>self.parts[i]).write(value, to)
        return 0

    cdef int write_list(self, list items, Output *to) except -1:
        cdef Type part = <Type>self.parts[0]
        cdef Py_ssize_t count = len(items)
        if count:
            write_number(to, count)
            for value in items:
                part.write(value, to)
        write_number(to, 0)
        return 0

    cdef int write_map(self, dict items, Output *to) except -1:
        cdef Type part = <Type>self.parts[0]
        cdef Py_ssize_t count = len(items)
        if count:
            write_number(to, count)
            for key, value in items.items():
                write_text(to, key)
                part.write(value, to)
        write_number(to, 0)
        return 0


def compiled(schema, dict to_value not None, dict from_value not None):
    """Return a record schema, parsed by fastavro, for reader and writer; None if all of it is left to fastavro.

    to_value, from_value: fastavro's functions of logical types, by names such as "long-timestamp-millis".
    """
    try:
        return made(schema, {}, to_value, from_value)
    except Unusual:
        return None


cdef Type made(schema, dict named, dict to_value, dict from_value):
    """Return a Type; named: those with a name that are complete so far."""
    cdef Type new = Type.__new__(Type)
    if type(schema) is list:
        new.kind = UNION
        new.parts = tuple([made(branch, named, to_value, from_value) for branch in schema])
        kinds = [(<Type>part).kind for part in new.parts]
        has_choice = len(kinds) != 2 or kinds.count(NULL_TYPE) != 1
        new.null = -1 if has_choice else kinds.index(NULL_TYPE)
        new.other = 1 - new.null
        new.has_one_form = not has_choice and have_one_form(new.parts)
        return limited(new)
    kind = schema["type"] if type(schema) is dict else schema
    if type(kind) is not str:  # {"type": {"type": …}}
        raise Unusual
    if type(schema) is dict and "logicalType" in schema:
        name = f"{kind}-{schema['logicalType']}"
        new.schema = schema
        new.to_value, new.from_value = to_value.get(name), from_value.get(name)
    is_plain = new.to_value is None and new.from_value is None
    if kind in PRIMITIVES:
        new.kind = PRIMITIVES[kind]
        new.is_empty = new.kind == NULL_TYPE
        new.has_one_form = is_plain
    elif kind == "record":
        new.kind = RECORD
        fields = schema["fields"]
        new.names = tuple([field["name"] for field in fields])
        new.parts = tuple([made(field["type"], named, to_value, from_value) for field in fields])
        new.is_empty = all([(<Type>part).is_empty for part in new.parts])
        new.defaults = tuple([default_of(field) for field in fields])
        new.has_one_form = is_plain and len(set(new.names)) == len(fields) and have_one_form(new.parts)
        named[schema["name"]] = new
    elif kind == "array" or kind == "map":
        new.kind = ARRAY if kind == "array" else MAP
        items = schema["items" if kind == "array" else "values"]
        new.parts = (made(items, named, to_value, from_value),)
    elif kind == "enum":
        new.kind = ENUM
        new.names = tuple(schema["symbols"])
        new.places = {symbol: place for place, symbol in enumerate(new.names)}
        new.has_one_form = is_plain and len(new.places) == len(new.names)
        named[schema["name"]] = new
    elif kind == "fixed":
        new.kind = FIXED
        new.size = schema["size"]
        new.is_empty = new.size == 0
        new.has_one_form = is_plain
        named[schema["name"]] = new
    elif type(schema) is str and schema in named:
        return named[schema]
    else:  # a record inside of itself
        raise Unusual
    return limited(new)


cdef bint have_one_form(tuple parts) except -1:
    return all([(<Type>part).has_one_form for part in parts])


cdef Type limited(Type made):
    """Return a Type with its depth; raise Unusual if that is too much for the C stack, which is used to read it."""
    cdef Type part
    if made.parts is not None:
        for part in made.parts:
            made.depth = max(made.depth, part.depth + 1)
    if made.depth > MAX_DEPTH:
        raise Unusual
    return made


cdef object default_of(field):
    """Return what is written for a field that a dict does not have, MISSING if fastavro decides."""
    if "default" in field:
        return field["default"]
    return None if type(field["type"]) is list and "null" in field["type"] else MISSING


def reader(Type schema not None, read):
    """Return the function from bytes, whose first five name the schema, to a dict. read: the same with fastavro."""
    def read_compiled(bytes data not None):
        cdef Input source
        source.at = PyBytes_AS_STRING(data) + HEADER_BYTES
        source.end = PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data)
        source.empty_items = 0
        try:
            return schema.read(&source)
        except Exception:  # fastavro says what is wrong
            return read(data)

    return read_compiled


def writer(Type schema not None, bytes header not None, write):
    """Return the function from a dict to bytes. write: the same with fastavro."""
    def write_compiled(value):
        cdef char[ROOM] block
        cdef Output to
        to.data, to.size, to.room, to.owned = block, 0, ROOM, NULL
        try:
            memcpy(reserve(&to, PyBytes_GET_SIZE(header)), PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
            schema.write(value, &to)
            return PyBytes_FromStringAndSize(to.data, to.size)
        except Exception:  # fastavro says what is wrong
            return write(value)
        finally:
            PyMem_Free(to.owned)

    return write_compiled


def topic_writer(dict writers not None, topic, write):
    """Return a function from an object to bytes: the topic\'s writer, write while there is none."""
    known = None

    def write_any(value):
        nonlocal known
        if known is None:
            known = writers.get(topic)
            if known is None:
                return write(value)
        return known(value)

    return write_any


def topic_reader(dict readers not None, read):
    """Return a function from bytes to an object: the reader of the first five bytes, read while there is none."""
    cdef bytes before = b""  # the first bytes of the record before, usually this one's too
    read_before = None

    def read_any(bytes data not None):
        nonlocal before, read_before
        if read_before is None or not begins_with(data, before):
            found = readers.get(data[:HEADER_BYTES])
            if found is None:
                return read(data)
            before, read_before = data[:HEADER_BYTES], found
        return read_before(data)

    return read_any


@cython.final
cdef class UnreadBytes(Conversion):
    """Serde.unread: returns bytes of a schema if the writer writes what is read from them as the same bytes.

    headers: the first bytes that name the schema, in any subject; the serde adds them as it reads values.
    """

    cdef Type schema
    cdef set headers
    cdef bytes before  # the header of the bytes before, usually these's too

    def __init__(self, Type schema not None, set headers not None):
        self.schema, self.headers = schema, headers

    cdef object of(self, data):
        cdef Input source
        cdef bytes given = <bytes?>data
        if self.before is None or not begins_with(given, self.before):
            header = given[:HEADER_BYTES]
            if header not in self.headers:
                return None
            self.before = header
        source.at = PyBytes_AS_STRING(given) + HEADER_BYTES
        source.end = PyBytes_AS_STRING(given) + PyBytes_GET_SIZE(given)
        return given if self.schema.is_shortest(&source) and source.at == source.end else None


def unread_bytes(Type schema not None, set headers not None):
    """Return UnreadBytes, None for a schema some of whose values have several forms."""
    return UnreadBytes(schema, headers) if schema.has_one_form else None


@cython.final
cdef class HeaderChange(Conversion):
    """Guarded.translate: replaces the first bytes, which name the schema, by the topic's; None if it has none yet.

    headers: by topic.
    """

    cdef UnreadBytes unread
    cdef dict headers
    cdef object topic
    cdef bytes header

    def __init__(self, UnreadBytes unread not None, dict headers not None, topic):
        self.unread, self.headers, self.topic = unread, headers, topic

    cdef object of(self, data):
        cdef Py_ssize_t size
        if self.unread.of(data) is None:
            return None
        if self.header is None:
            self.header = self.headers.get(self.topic)
            if self.header is None:
                return None
        if begins_with(<bytes>data, self.header):
            return data
        size = PyBytes_GET_SIZE(<bytes>data)
        made = PyBytes_FromStringAndSize(NULL, size)
        memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(self.header), HEADER_BYTES)
        memcpy(PyBytes_AS_STRING(made) + HEADER_BYTES, PyBytes_AS_STRING(<bytes>data) + HEADER_BYTES, size - HEADER_BYTES)
        return made


cdef inline bint begins_with(bytes data, bytes first) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(first)
    return PyBytes_GET_SIZE(data) >= size and memcmp(PyBytes_AS_STRING(data), PyBytes_AS_STRING(first), size) == 0


cdef inline int usual(bint holds) except -1:
    if not holds:
        raise Unusual
    return 0


cdef inline int need(Input *source, int64_t size) except -1:
    """Raise Unusual unless there are so many bytes."""
    return usual(0 <= size <= source.end - source.at)


cdef inline int64_t read_number(Input *source) except? -1:
    """Read a number of 64 bits."""
    cdef int64_t number = 0
    usual(take_number(source, &number))
    return number


cdef inline bint take_number(Input *source, int64_t *number) noexcept:
    """Read a number of 64 bits; return whether there is one."""
    cdef const uint8_t *at = <const uint8_t *>source.at
    if not take_varint(&at, <const uint8_t *>source.end, number):
        return False
    source.at = <const char *>at
    return True


cdef inline bint take(Input *source, int64_t size) noexcept:
    """Go past so many bytes; return whether there are."""
    if not 0 <= size <= source.end - source.at:
        return False
    source.at += size
    return True


cdef inline bint take_shortest(Input *source, int64_t *number) noexcept:
    """Read a number; return whether there is one that has no more bytes than it needs."""
    cdef const char *begin = source.at
    cdef uint8_t last
    if not take_number(source, number):
        return False
    last = <uint8_t>source.at[-1]
    return source.at - begin == 1 or last == 1 or (last != 0 and source.at - begin < VARINT_BYTES)


cdef bint take_text(Input *source, int64_t size) noexcept:
    """Go past so many bytes; return whether there are, and whether they are UTF-8."""
    cdef const char *begin = source.at
    cdef uint8_t seen = 0
    cdef int64_t i
    if not take(source, size):
        return False
    for i in range(size):
        seen |= <uint8_t>begin[i]
    return seen < 128 or is_utf8(begin, size)


cdef bint is_utf8(const char *data, Py_ssize_t size) noexcept:
    try:
        PyUnicode_DecodeUTF8(data, size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef object read_text(Input *source):
    """Read a number of bytes, and them as text."""
    cdef int64_t size = read_number(source)
    need(source, size)
    text = PyUnicode_DecodeUTF8(source.at, size, NULL)
    source.at += size
    return text


cdef inline Py_ssize_t place_in(tuple choices, int64_t place) except -1:
    usual(0 <= place < len(choices))
    return place


cdef char *reserve(Output *to, Py_ssize_t size) except NULL:
    """Return the place of so many more bytes."""
    cdef Py_ssize_t room = to.room
    cdef char *block
    if to.size + size > room:
        while to.size + size > room:
            room *= 2
        block = <char *>PyMem_Realloc(to.owned, room)
        if block == NULL:
            raise MemoryError
        if to.owned == NULL:
            memcpy(block, to.data, to.size)
        to.data = to.owned = block
        to.room = room
    to.size += size
    return to.data + to.size - size


cdef int write_number(Output *to, int64_t number) except -1:
    cdef uint8_t *at = <uint8_t *>reserve(to, VARINT_BYTES)
    to.size -= VARINT_BYTES - (put_varint(at, number) - at)
    return 0


cdef int write_text(Output *to, text) except -1:
    cdef Py_ssize_t size = 0
    usual(type(text) is str)
    cdef const char *data = PyUnicode_AsUTF8AndSize(text, &size)
    write_data(to, data, size)
    return 0


cdef inline int write_data(Output *to, const char *data, Py_ssize_t size) except -1:
    """Write the number of bytes, and the bytes."""
    write_number(to, size)
    memcpy(reserve(to, size), data, size)
    return 0
