from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef inline uint8_t *put_varint(uint8_t *at, int64_t number) noexcept nogil:
    """Write a zigzag varint; return the position after it."""
    cdef uint64_t rest = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    while rest > 127:
        at[0] = <uint8_t>(rest & 127) | 128
        at += 1
        rest >>= 7
    at[0] = <uint8_t>rest
    return at + 1


cdef inline bint take_varint(const uint8_t **at, const uint8_t *end, int64_t *number) noexcept nogil:
    """Read a zigzag varint and advance at; return whether there is one of at most ten bytes."""
    cdef const uint8_t *byte = at[0]
    cdef uint64_t value = 0
    cdef int shift = 0
    while byte < end and shift < 64:
        value |= <uint64_t>(byte[0] & 127) << shift
        byte += 1
        if byte[-1] < 128:
            at[0] = byte
            number[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            return True
        shift += 7
    return False
