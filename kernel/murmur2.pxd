from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef enum:
    SEED = 0x9747b28c
    FACTOR = 0x5bd1e995
    SHIFT = 24
    POSITIVE = 0x7fffffff


cdef inline int32_t partition_of(const char *key, Py_ssize_t size, int32_t partitions) noexcept nogil:
    """Return the partition to which Java's producer sends a key (murmur2); see topology/context/partitioners.py."""
    cdef const uint8_t *at = <const uint8_t *>key
    cdef const uint8_t *end = at + (size & ~<Py_ssize_t>3)
    cdef uint32_t found = <uint32_t>SEED ^ <uint32_t>size
    cdef uint32_t four
    cdef int rest = size & 3
    while at < end:
        four = at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24
        four *= <uint32_t>FACTOR
        four ^= four >> SHIFT
        four *= <uint32_t>FACTOR
        found = found * <uint32_t>FACTOR ^ four
        at += 4
    if rest == 3:
        found ^= <uint32_t>at[2] << 16
    if rest >= 2:
        found ^= <uint32_t>at[1] << 8
    if rest >= 1:
        found = (found ^ at[0]) * <uint32_t>FACTOR
    found ^= found >> 13
    found *= <uint32_t>FACTOR
    found ^= found >> 15
    return <int32_t>(<uint32_t>(found & POSITIVE) % <uint32_t>partitions)
