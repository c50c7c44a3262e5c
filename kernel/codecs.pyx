"""Serializers that check the values they get, before or after writing them, and the bytes of what operators keep or send."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject_GenericSetAttr
from cpython.ref cimport Py_DECREF, PyObject
from libc.math cimport isfinite
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from uuid import UUID, SafeUUID

from penstock.kernel.conversions cimport Conversion, PyObject_CallOneArg, converted, raise_error
from penstock.kernel.flat_dict cimport is_flat
from penstock.kernel.named_tuples cimport tuple_of_five, tuple_of_four, tuple_of_three, tuple_of_two
from penstock.kernel.rows cimport TIME_BYTES, read_time
from penstock.kernel.sinks cimport find_bytes, is_ascii
from penstock.kernel.varints cimport put_varint, take_varint

cdef int64_t TIME_MAX = 0x7FFFFFFFFFFFFFFF
cdef object UNKNOWN = SafeUUID.unknown
cdef const char *HEX = b"0123456789abcdef"

cdef enum:
    UUID_SIZE = 36  # 8-4-4-4-12
    PLACES = 32  # that are searched at once, by vector instructions
    LARGE = 16384  # bytes; rounding a larger block up to 4 KB wastes little
    # Sizes of a missing part of a buffered value; see buffer_value.py.
    NULL_SIZE = -1
    SAME_AS_PRIOR = -2


def checked_json(dumps, look_again, bint fits):
    """Return dumps with a second look at values that it may have changed, or that it refused.

    dumps writes NaN as null, so JSON without a null needs no second look. look_again(value, data, error) returns JSON or
    raises; data is what dumps wrote, or None with the error that it raised. fits: the bytes that dumps returns occupy only
    what they need. orjson's occupy a block of 4 KB even if they are few, and are copied.
    """
    def serialize(value):
        cdef PyObject *found = PyObject_CallOneArg(dumps, value)
        if found is NULL:
            return look_after_error(value, look_again)
        data = <bytes?><object>found
        Py_DECREF(data)
        if has_null(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) and not is_finite(value):
            return look_again(value, data, None)
        return data if fits else fitted(data)

    return serialize


cdef object look_after_error(value, look_again):
    try:
        raise_error()
    except TypeError as error:
        return look_again(value, None, error)


#: By layouts of struct: the sizes of numbers that are not left to struct.
cdef dict SIZES = {">h": 2, ">i": 4, ">q": TIME_BYTES, ">d": TIME_BYTES}


def number_encoder(str layout not None, pack, convert):
    """Return a function from a number to bytes.

    layout: as in struct; pack: its function, which raises for a number that does not fit. convert: makes the number of
    anything but an int, or with a layout of floats but a float, or raises.
    """
    cdef Py_ssize_t size = SIZES.get(layout, 0)
    cdef bint is_double = layout == ">d"
    cdef type kind = float if layout in (">f", ">d") else int

    def encode(value):
        cdef int64_t bits
        cdef double number
        cdef int overflow = 0
        if type(value) is not kind:
            value = convert(value)
        if size == 0:
            return pack(value)
        if is_double:
            number = value
            memcpy(&bits, &number, sizeof(double))
        else:
            bits = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow or bits >> (8 * size - 1) != bits >> 63:
                return pack(value)
        data = PyBytes_FromStringAndSize(NULL, size)
        put_number(PyBytes_AS_STRING(data), bits, size)
        return data

    return encode


def number_decoder(str layout not None, unpack):
    """Return a function from bytes to a number. layout: as in struct; unpack: its function, for bytes of another size."""
    cdef Py_ssize_t size = SIZES.get(layout, 0)
    cdef bint is_double = layout == ">d"

    def decode(data):
        cdef const uint8_t *at
        cdef int64_t bits
        cdef double number
        if type(data) is not bytes or PyBytes_GET_SIZE(data) != size:
            return (<tuple?>unpack(data))[0]
        at = <const uint8_t *>PyBytes_AS_STRING(data)
        if size == 2:
            return <int16_t>((at[0] << 8) | at[1])
        if size == 4:
            return <int32_t>((<uint32_t>at[0] << 24) | (at[1] << 16) | (at[2] << 8) | at[3])
        bits = read_time(<const char *>at)
        if not is_double:
            return bits
        memcpy(&number, &bits, sizeof(double))
        return number

    return decode


def private_dicts(encode, decode):
    """Return (hold, read, bytes_of), see Serde.private: a dict that JSON reads back unchanged is held as a copy.

    The copy is made faster than JSON is read.
    """
    def hold(value):
        if value is None:
            return None
        return (<dict>value).copy() if is_flat(value) else converted(encode, value)

    def read(held):
        if held is None:
            return None
        return (<dict>held).copy() if type(held) is dict else converted(decode, held)

    def bytes_of(held):
        return converted(encode, held) if type(held) is dict else held

    return hold, read, bytes_of


def typed(kind, serialize, convert):
    """Return serialize for values of exactly this type; convert is applied to others first."""
    def serialize_typed(value):
        return serialize(value if type(value) is kind else convert(value))

    return serialize_typed


def uuid_encoder(encode):
    """Return a function from a UUID to its text. encode: for anything but a UUID."""
    def encode_uuid(value):
        if type(value) is not UUID:
            return encode(value)
        data = PyBytes_FromStringAndSize(NULL, UUID_SIZE)
        cdef char *at = PyBytes_AS_STRING(data)
        number = value.int
        cdef uint64_t high = number >> 64, low = number & 0xFFFFFFFFFFFFFFFF
        cdef int i, digit = 0
        for i in range(UUID_SIZE):
            if is_dash(i):
                at[i] = c'-'
            else:
                at[i] = HEX[(high if digit < 16 else low) >> (60 - 4 * (digit & 15)) & 15]
                digit += 1
        return data

    return encode_uuid


def uuid_decoder(decode):
    """Return a function from a text to its UUID. decode: for texts of another form than Kafka writes."""
    def decode_uuid(bytes data not None):
        cdef const char *at = PyBytes_AS_STRING(data)
        cdef uint64_t halves[2]
        cdef int i, value, digit = 0
        if PyBytes_GET_SIZE(data) != UUID_SIZE:
            return decode(data)
        halves[0] = halves[1] = 0
        for i in range(UUID_SIZE):
            if is_dash(i):
                if at[i] != c'-':
                    return decode(data)
                continue
            value = hex_value(at[i])
            if value < 0:
                return decode(data)
            halves[digit >> 4] = halves[digit >> 4] << 4 | <uint64_t>value
            digit += 1
        made = UUID.__new__(UUID)
        # As UUID.__init__ does, because UUID.__setattr__ refuses.
        PyObject_GenericSetAttr(made, "int", <object>halves[0] << 64 | halves[1])
        PyObject_GenericSetAttr(made, "is_safe", UNKNOWN)
        return made

    return decode_uuid


cdef enum:  # kinds of bytes that a serializer may have written
    ASCII
    SIZED
    UUIDS
    WINDOWED


@cython.final
cdef class Written:
    """What a serde writes. size: of SIZED bytes, -1 for any; in WINDOWED bytes, that of the times after the key."""

    def __init__(self, int kind, Py_ssize_t size=-1, Written inside=None):
        self.kind = kind
        self.size = size
        self.inside = inside

    def __call__(self, bytes data not None):
        return self.holds(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef bint holds(self, const char *data, Py_ssize_t size) noexcept:
        if self.kind == SIZED:
            return self.size < 0 or size == self.size
        if self.kind == ASCII:
            return all_ascii(data, size)
        if self.kind == UUIDS:
            return is_uuid(data, size)
        return size > self.size and self.inside.holds(data, size - self.size)


def windowed_encoder(encode, to_key, tuple times not None):
    """See topology/serdes/windowed_serdes.py. encode: for other keys than windowed ones. to_key: None for bytes."""
    cdef bint has_texts = getattr(to_key, "__wrapped__", to_key) is str.encode

    def encode_windowed(windowed):
        cdef const char *data = NULL
        cdef Py_ssize_t size = 0
        if not isinstance(windowed, tuple) or len(<tuple>windowed) != 3 or (<tuple>windowed)[0] is None:
            return encode(windowed)
        key = (<tuple>windowed)[0]
        if to_key is not None and not (has_texts and is_ascii(key)):
            key = converted(to_key, key)
        if not find_bytes(key, &data, &size):
            return encode(windowed)
        made = PyBytes_FromStringAndSize(NULL, size + TIME_BYTES * len(times))
        cdef char *to = PyBytes_AS_STRING(made)
        memcpy(to, data, size)
        to += size
        for field in times:
            time = (<tuple>windowed)[field]
            if type(time) is not int:
                return encode(windowed)
            to = put_number(to, <int64_t>time, TIME_BYTES)
        return made

    return encode_windowed


def windowed_decoder(decode, from_key, Py_ssize_t times_size, int64_t size_ms, window_end, type windowed):
    """See topology/serdes/windowed_serdes.py. decode: for bytes that are too short. size_ms, window_end: of windows."""
    def decode_windowed(bytes data not None):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data) - times_size
        cdef const char *at = PyBytes_AS_STRING(data) + size
        cdef int64_t start, end
        if size < 0:
            return decode(data)
        if times_size == TIME_BYTES:
            start = read_time(at)
            if window_end is not None:
                end = window_end(start)
            else:
                end = TIME_MAX if start > TIME_MAX - size_ms else start + size_ms
        else:
            end, start = read_time(at), read_time(at + TIME_BYTES)
        key = converted(from_key, PyBytes_FromStringAndSize(PyBytes_AS_STRING(data), size))
        return tuple_of_three(windowed, key, start, end)

    return decode_windowed


def ascii_written():
    """Return Serde.is_written of text, which recognizes ASCII only."""
    return Written(ASCII)


def sized_written(size):
    """Return Serde.is_written of a serde that rewrites all bytes of a size unchanged; None: of any size."""
    return Written(SIZED, -1 if size is None else size)


def uuid_written():
    """Return Serde.is_written of UUIDs."""
    return Written(UUIDS)


def windowed_written(inside, times_size):
    """Return Serde.is_written of windowed keys. inside: that of the inner keys, which the window's times follow."""
    return Written(WINDOWED, times_size, inside)


@cython.final
cdef class Rewriter:
    """Serde.rewrite: from bytes to what the serde writes for the value that it reads from them.

    written: Serde.is_written. known: a dict whose keys are rewritten bytes, which need not be read again.
    """

    def __init__(self, encode, decode, Written written):
        self.encode = encode
        self.decode = decode
        self.written = written

    def __call__(self, bytes data not None):
        return self.rewrite(data)

    def copy(self):
        """Return a Rewriter with the same functions and no known bytes."""
        return Rewriter(self.encode, self.decode, self.written)

    cdef object rewrite(self, bytes data):
        if self.written is not None and self.written.holds(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)):
            return data
        if self.known is not None and data in self.known:
            return data
        value = converted(self.decode, data)
        return None if value is None else converted(self.encode, value)


cdef inline bint all_ascii(const char *data, Py_ssize_t size) noexcept:
    cdef unsigned char seen = 0
    cdef Py_ssize_t i
    for i in range(size):
        seen |= <unsigned char>data[i]
    return seen < 128


cdef bint is_uuid(const char *at, Py_ssize_t size) noexcept:
    """Return whether a text is a UUID as Kafka writes it."""
    cdef int i
    if size != UUID_SIZE:
        return False
    for i in range(UUID_SIZE):
        if (at[i] != c'-') if is_dash(i) else not (c'0' <= at[i] <= c'9' or c'a' <= at[i] <= c'f'):
            return False
    return True


cdef inline bint is_dash(int position) noexcept:
    return position == 8 or position == 13 or position == 18 or position == 23


cdef inline int hex_value(char digit) noexcept:
    if c'0' <= digit <= c'9':
        return digit - c'0'
    if c'a' <= digit <= c'f':
        return digit - c'a' + 10
    if c'A' <= digit <= c'F':
        return digit - c'A' + 10
    return -1


def nullable(function):
    """Return a function that returns None for None, and otherwise the result of this one."""
    def call(value):
        return None if value is None else converted(function, value)

    return call


@cython.final
cdef class TimestampedDecoder(Conversion):
    """Reads rows, see timestamped_decoder in statestore/stores/values.py.

    decode: for the bytes of a value, None if values are bytes. row: the type of the named tuple (value, timestamp).
    """

    cdef object decode
    cdef type row

    def __init__(self, decode, type row not None):
        self.decode, self.row = decode, row

    cdef object of(self, data):
        if data is None:
            return None
        cdef Py_ssize_t size = PyBytes_GET_SIZE(<bytes?>data) - TIME_BYTES
        if size < 0:
            raise ValueError(f"a row with a timestamp has at least {TIME_BYTES} bytes, not {len(data)}")
        cdef const char *at = PyBytes_AS_STRING(data)
        value = PyBytes_FromStringAndSize(at + TIME_BYTES, size)
        if self.decode is not None:
            value = converted(self.decode, value)
        return tuple_of_two(self.row, value, read_time(at))


def required(to_bytes, bint takes_none, refusal):
    """Return to_bytes, but raise refusal() if it returns None. takes_none: it is called for None, too."""
    def encode(value):
        data = converted(to_bytes, value) if takes_none or value is not None else None
        if data is None:
            raise refusal()
        return data

    return encode


def join_parts(int64_t timestamp, int64_t offset, bytes topic not None, int32_t partition, bytes headers not None,
               bytes prior, bytes old, bytes new):
    """Return the bytes of a buffered value, see buffer_value.py; headers: their number and bytes."""
    cdef bint is_prior = old is not None and prior is not None and old == prior
    cdef Py_ssize_t size = 16 + 4 + PyBytes_GET_SIZE(topic) + 4 + PyBytes_GET_SIZE(headers)
    for part in (prior, None if is_prior else old, new):
        size += 4 + (0 if part is None else PyBytes_GET_SIZE(<bytes>part))
    joined = PyBytes_FromStringAndSize(NULL, size)
    cdef char *at = PyBytes_AS_STRING(joined)
    at = put_number(put_number(at, timestamp, 8), offset, 8)
    at = put_sized(at, topic)
    at = put_number(at, partition, 4)
    memcpy(at, PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers))
    at = put_sized(at + PyBytes_GET_SIZE(headers), prior)
    at = put_number(at, SAME_AS_PRIOR, 4) if is_prior else put_sized(at, old)
    put_sized(at, new)
    return joined


cdef inline char *put_number(char *at, int64_t number, int size) noexcept:
    """Write a number, big endian; return the position after it."""
    cdef int i
    for i in range(size):
        at[i] = <char>(<uint64_t>number >> 8 * (size - 1 - i))
    return at + size


cdef inline char *put_sized(char *at, bytes part) noexcept:
    """Write the size of bytes, -1 for None, and the bytes."""
    if part is None:
        return put_number(at, NULL_SIZE, 4)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(part)
    at = put_number(at, size, 4)
    memcpy(at, PyBytes_AS_STRING(part), size)
    return at + size


cdef enum:  # Murmur3
    SEED = 104729
    FACTOR = 5

cdef uint64_t C1 = 0x87C37B91114253D5
cdef uint64_t C2 = 0x4CF5AD432745937F


cdef enum:  # formats of changes, see ChangedSerde in topology/serdes/windowed_serdes.py
    OLD
    NEW
    BOTH
    MORE_FORMATS  # that a format is larger by if a byte for is_latest comes before it


cdef bytes plain_bytes(data):
    """Return what a serializer has returned as bytes; raises TypeError for what is not."""
    return <bytes>data if data is None or type(data) is bytes else bytes(memoryview(data))


def change_encoder(to_bytes, bint may_be_none):
    """Return the function that writes changes of grouped tables.

    to_bytes: of values; may_be_none: whether it is called for None, too.
    """
    def encode_change(change):
        cdef uint8_t[10] number
        cdef bytes new, old, joined
        cdef char *at
        cdef Py_ssize_t size, head
        new_value, old_value, _ = change
        new = None if new_value is None and not may_be_none else plain_bytes(to_bytes(new_value))
        old = None if old_value is None and not may_be_none else plain_bytes(to_bytes(old_value))
        if new is None and old is None:
            raise ValueError("Both old and new value of a change are null, which is not allowed")
        head = 0 if new is None or old is None else put_varint(number, PyBytes_GET_SIZE(new)) - number
        size = head + 1 + (0 if new is None else PyBytes_GET_SIZE(new)) + (0 if old is None else PyBytes_GET_SIZE(old))
        joined = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(joined)
        memcpy(at, number, head)
        at += head
        for part in (new, old):
            if part is not None:
                memcpy(at, PyBytes_AS_STRING(<bytes>part), PyBytes_GET_SIZE(<bytes>part))
                at += PyBytes_GET_SIZE(<bytes>part)
        at[0] = OLD if new is None else NEW if old is None else BOTH
        return joined

    return encode_change


def change_decoder(from_bytes, type change):
    """Return the function that reads changes of grouped tables. from_bytes: to values. change: the type of changes."""
    def decode_change(bytes data not None):
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef const uint8_t *end = at + PyBytes_GET_SIZE(data) - 1
        cdef int form
        cdef int64_t size
        cdef bint is_latest = True
        if end < at:
            raise ValueError("a change in a repartition topic has no bytes")
        form = end[0]
        if form >= 2 * MORE_FORMATS:
            raise ValueError(f"Unknown encoding flag {form} of a change in a repartition topic")
        if form >= MORE_FORMATS:
            form -= MORE_FORMATS
            if end == at:
                raise ValueError("a change in a repartition topic ends too early")
            end -= 1
            is_latest = end[0] == 1
        if form == BOTH:
            if not take_varint(&at, end, &size) or not 0 <= size <= end - at:
                raise ValueError("a change in a repartition topic ends too early")
        else:
            size = end - at if form == NEW else 0
        new = None if form == OLD else from_bytes(PyBytes_FromStringAndSize(<const char *>at, size))
        at += size
        old = None if form == NEW else from_bytes(PyBytes_FromStringAndSize(<const char *>at, end - at))
        return tuple_of_three(change, new, old, is_latest)

    return decode_change


cdef enum:  # messages of foreign-key joins, see topology/operators/foreign_key_serdes.py
    HASH_BYTES = 16
    PARTITION_BYTES = 4
    NO_HASH = 0x80


def combined_key(foreign_to_bytes, primary_to_bytes):
    """Return a function from a foreign key and a primary key to the bytes of both; see foreign_key_serdes.py."""
    def encode_combined(foreign_key, primary_key):
        cdef bytes foreign = (None if foreign_key is None else foreign_to_bytes(foreign_key)) or b""
        cdef bytes primary = (None if primary_key is None else primary_to_bytes(primary_key)) or b""
        joined = PyBytes_FromStringAndSize(NULL, 4 + PyBytes_GET_SIZE(foreign) + PyBytes_GET_SIZE(primary))
        cdef char *at = put_sized(PyBytes_AS_STRING(joined), foreign)
        memcpy(at, PyBytes_AS_STRING(primary), PyBytes_GET_SIZE(primary))
        return joined

    return encode_combined


def subscription_encoder(key_to_bytes):
    """Return the function that writes subscriptions; see foreign_key_serdes.py. key_to_bytes: of keys that are not None."""
    def encode_subscription(wrapper):
        found_hash, instruction, key, partition, version = wrapper
        data = None if key is None else key_to_bytes(key)
        if version == 0:  # without the partition
            return joined_message(version, instruction, found_hash, data, 0, 0)
        if partition is None:
            raise ValueError(f"a subscription of version {version} needs a primary partition")
        return joined_message(version, instruction, found_hash, data, PARTITION_BYTES, partition)

    return encode_subscription


def response_encoder(value_to_bytes, serialized):
    """Return the function that writes responses; see foreign_key_serdes.py.

    value_to_bytes: of values that are not None; serialized: the type of values that are bytes already.
    """
    def encode_response(wrapper):
        found_hash, value, _, version = wrapper
        if type(value) is serialized:
            value = (<tuple>value)[0]
        elif value is not None:
            value = value_to_bytes(value)
        return joined_message(version, None, found_hash, value, 0, 0)

    return encode_response


cdef bytes joined_message(int version, instruction, bytes found_hash, bytes data, int more, int64_t number):
    """Return version, instruction, hash, data and a number of so many bytes; what is None is left out."""
    cdef Py_ssize_t size = 0 if data is None else PyBytes_GET_SIZE(data)
    cdef Py_ssize_t hash_size = 0 if found_hash is None else PyBytes_GET_SIZE(found_hash)
    joined = PyBytes_FromStringAndSize(NULL, 1 + (instruction is not None) + hash_size + size + more)
    cdef char *at = PyBytes_AS_STRING(joined)
    at = put_number(at, version | (NO_HASH if found_hash is None else 0), 1)
    if instruction is not None:
        at = put_number(at, instruction, 1)
    if found_hash is not None:
        memcpy(at, PyBytes_AS_STRING(found_hash), hash_size)
    if data is not None:
        memcpy(at + hash_size, PyBytes_AS_STRING(data), size)
    put_number(at + hash_size + size, number, more)
    return joined


cdef Py_ssize_t end_of_hash(bytes data, Py_ssize_t head, Py_ssize_t tail) except -1:
    """Return where a message's hash ends, which begins at head; raises ValueError unless tail more bytes follow."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), end = head
    if size and not PyBytes_AS_STRING(data)[0] & NO_HASH:
        end += HASH_BYTES
    if size < end + tail:
        raise ValueError(f"{size} bytes are no message of a foreign-key join")
    return end


def subscription_decoder(key_from_bytes, tuple instructions not None, type wrapper):
    """Return the function that reads subscriptions of any version; see foreign_key_serdes.py."""
    def decode_subscription(bytes data not None):
        cdef const char *at = PyBytes_AS_STRING(data)
        cdef int version = at[0] & ~NO_HASH & 0xFF
        cdef Py_ssize_t more = PARTITION_BYTES if version > 0 else 0
        cdef Py_ssize_t begin = end_of_hash(data, 2, more), end = PyBytes_GET_SIZE(data) - more
        if <uint8_t>at[1] >= len(instructions):
            raise ValueError(f"a subscription has no instruction {<uint8_t>at[1]}")
        key = key_from_bytes(PyBytes_FromStringAndSize(at + begin, end - begin))
        found_hash = None if begin == 2 else PyBytes_FromStringAndSize(at + 2, HASH_BYTES)
        partition = read_int32(at + end) if more else None
        return tuple_of_five(wrapper, found_hash, instructions[<uint8_t>at[1]], key, partition, version)

    return decode_subscription


def response_decoder(value_from_bytes, type wrapper):
    """Return the function that reads responses of any version; see foreign_key_serdes.py."""
    def decode_response(bytes data not None):
        cdef const char *at = PyBytes_AS_STRING(data)
        cdef Py_ssize_t begin = end_of_hash(data, 1, 0), size = PyBytes_GET_SIZE(data)
        value = None if size == begin else value_from_bytes(PyBytes_FromStringAndSize(at + begin, size - begin))
        found_hash = None if begin == 1 else PyBytes_FromStringAndSize(at + 1, HASH_BYTES)
        return tuple_of_four(wrapper, found_hash, value, None, at[0] & ~NO_HASH & 0xFF)

    return decode_response


cdef inline int32_t read_int32(const char *at) noexcept:
    cdef uint64_t found = 0
    cdef int i
    for i in range(4):
        found = found << 8 | <unsigned char>at[i]
    return <int32_t>found


cpdef bytes hash128(bytes data):
    """Return the 128-bit Murmur3 hash of foreign-key joins as two big-endian numbers (Kafka Streams: Murmur3.hash128)."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *end = at + (size & ~<Py_ssize_t>15)
    cdef uint8_t[16] rest
    cdef uint64_t h1 = SEED
    cdef uint64_t h2 = SEED
    while at < end:
        h1 = (rotated(h1 ^ mixed1(read_little(at)), 27) + h2) * FACTOR + 0x52DCE729
        h2 = (rotated(h2 ^ mixed2(read_little(at + 8)), 31) + h1) * FACTOR + 0x38495AB5
        at += 16
    memset(rest, 0, 16)
    memcpy(rest, at, size & 15)
    h1 ^= mixed1(read_little(rest)) ^ <uint64_t>size
    h2 ^= mixed2(read_little(&rest[8])) ^ <uint64_t>size
    h1 += h2
    h2 += h1
    h1, h2 = finished(h1), finished(h2)
    h1 += h2
    h2 += h1
    found = PyBytes_FromStringAndSize(NULL, 16)
    put_number(put_number(PyBytes_AS_STRING(found), <int64_t>h1, 8), <int64_t>h2, 8)
    return found


cdef inline uint64_t rotated(uint64_t k, int bits) noexcept nogil:
    return k << bits | k >> (64 - bits)


cdef inline uint64_t mixed1(uint64_t k) noexcept nogil:
    return rotated(k * C1, 31) * C2


cdef inline uint64_t mixed2(uint64_t k) noexcept nogil:
    return rotated(k * C2, 33) * C1


cdef inline uint64_t finished(uint64_t h) noexcept nogil:
    h = (h ^ h >> 33) * <uint64_t>0xFF51AFD7ED558CCD
    h = (h ^ h >> 33) * <uint64_t>0xC4CEB9FE1A85EC53
    return h ^ h >> 33


cdef inline uint64_t read_little(const uint8_t *at) noexcept nogil:
    """Read 8 bytes, little endian."""
    cdef uint64_t found = 0
    cdef int i
    for i in range(8):
        found |= <uint64_t>at[i] << 8 * i
    return found


cdef bytes fitted(bytes data):
    """Return bytes in no more memory than they need; orjson leaves them in a block of 4 KB."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    return data if size > LARGE else PyBytes_FromStringAndSize(PyBytes_AS_STRING(data), size)


cdef bint has_null(const char *data, Py_ssize_t size) noexcept nogil:
    """Return whether JSON contains "null", even in a text."""
    cdef Py_ssize_t start = 0, last = size - 3 - PLACES
    if last < 0:
        return null_within(data, size - 3)
    while start < last:
        if null_within(data + start, PLACES):
            return True
        start += PLACES
    return null_within(data + last, PLACES)  # some places a second time, because a number that is fixed is faster


cdef inline bint null_within(const char *data, Py_ssize_t places) noexcept nogil:
    """Return whether "null" begins in one of the first places."""
    cdef Py_ssize_t i
    cdef char found = 0
    for i in range(places):
        found |= (data[i] == b"n") & (data[i + 1] == b"u") & (data[i + 2] == b"l") & (data[i + 3] == b"l")
    return found


cdef bint is_finite(value) except -1:
    """Return whether a value contains neither NaN nor an infinity; False too if it contains an unknown type."""
    cdef PyObject *part
    cdef Py_ssize_t position = 0
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return True
    if kind is float:
        return isfinite(<double>value)
    if kind is dict:
        while PyDict_Next(value, &position, NULL, &part):
            if not is_finite(<object>part):
                return False
        return True
    if kind is list or kind is tuple:
        return all_finite(value)
    fields = getattr(kind, "__struct_fields__", None)  # a msgspec.Struct
    if fields is None:
        return False
    for field in fields:
        if not is_finite(getattr(value, field)):
            return False
    return True


cdef bint all_finite(values) except -1:
    for value in values:
        if not is_finite(value):
            return False
    return True
