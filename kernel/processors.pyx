"""The records of a user's processor: copies with another field."""

from penstock.kernel.named_tuples cimport tuple_of_four


def with_field(type record not None, int place):
    """Return the method of a record that copies it with another field; place: of the field."""
    def copy(self, value):
        if not isinstance(self, record):
            raise TypeError(f"a {record.__name__} is needed, not {self!r}")
        given = <tuple>self
        return tuple_of_four(
            record,
            value if place == 0 else given[0],
            value if place == 1 else given[1],
            value if place == 2 else given[2],
            given[3],
        )

    return copy


def record_maker(type record not None):
    """Return the function that makes a record of its four fields, as they are."""
    def make(key, value, timestamp, headers):
        return tuple_of_four(record, key, value, timestamp, headers)

    return make
