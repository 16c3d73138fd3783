"""What vectorised expressions compute of texts: the answers of Spark, or an error that leaves the batch to it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from catchment.errors import EngineError
from catchment.vectorised.values import Value

END_OF_TEXT = 2**31 - 1  # no text has as many characters


def count_characters(value: Value) -> Value:
    """Return length(value): characters, not bytes."""
    return pc.utf8_length(value)


def octets(value: Value) -> Value:
    """Return octet_length(value): bytes, not characters."""
    return pc.binary_length(value)


def trim(value: Value) -> Value:
    """Return the text without spaces at its ends."""
    return pc.utf8_trim(value, characters=" ")


def trim_left(value: Value) -> Value:
    """Return the text without spaces at its beginning."""
    return pc.utf8_ltrim(value, characters=" ")


def trim_right(value: Value) -> Value:
    """Return the text without spaces at its end."""
    return pc.utf8_rtrim(value, characters=" ")


def upper(value: Value) -> Value:
    """Return upper(value) of texts in ASCII."""
    _refuse_other_letters(value)
    return pc.ascii_upper(value)


def lower(value: Value) -> Value:
    """Return lower(value) of texts in ASCII."""
    _refuse_other_letters(value)
    return pc.ascii_lower(value)


def _refuse_other_letters(value: Value) -> None:
    if pc.all(pc.string_is_ascii(value)).as_py() is False:
        raise EngineError("letters beyond ASCII have rules of their own in Spark")


def join_texts(*values: Value) -> Value:
    """Return concat(values): null where one of them is."""
    return pc.binary_join_element_wise(*values, "")


def take_characters(value: Value, start: Value, stop: Value) -> Value:
    """Return the characters [start, stop) of a text."""
    return pc.utf8_slice_codeunits(value, start.as_py(), stop.as_py())


def starts_with(value: Value, text: Value) -> Value:
    """Return whether a text starts with another."""
    return pc.starts_with(value, text.as_py())


def ends_with(value: Value, text: Value) -> Value:
    """Return whether a text ends with another."""
    return pc.ends_with(value, text.as_py())


def contains(value: Value, text: Value) -> Value:
    """Return whether a text contains another."""
    return pc.match_substring(value, text.as_py())


def last_characters(value: Value, count: Value) -> Value:
    """Return the last characters of a text, at least one."""
    return pc.utf8_slice_codeunits(value, -count.as_py(), END_OF_TEXT)


def reverse_text(value: Value) -> Value:
    """Return the characters of a text from its end to its beginning."""
    return pc.utf8_reverse(value)


def replace_text(value: Value, searched: Value, replacement: Value) -> Value:
    """Return a text with every occurrence of another, which is not empty, replaced."""
    return pc.replace_substring(value, pattern=searched.as_py(), replacement=replacement.as_py())


def join_known_texts(separator: Value, *values: Value) -> Value:
    """Return concat_ws(separator, values): what is null is left out."""
    first, *others = values
    joined = first
    for value in others:
        both = pc.binary_join_element_wise(joined, value, separator)
        joined = pc.coalesce(both, joined, value)
    return pc.coalesce(joined, pa.scalar(""))


def matches(value: Value, pattern: Value) -> Value:
    """Return value LIKE pattern; there is no backslash in the pattern."""
    return pc.match_like(value, pattern.as_py())


def matches_any_case(value: Value, pattern: Value) -> Value:
    """Return value ILIKE pattern of texts in ASCII; there is no backslash in the pattern."""
    _refuse_other_letters(value)
    return pc.match_like(pc.ascii_lower(value), pattern.as_py().lower())
