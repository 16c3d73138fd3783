"""The scalar functions that a query may call: an allow-list, checked on exactly the text that Spark will be given.

A query must not be able to run code, read files or learn secrets of the machine that evaluates it. So not all of
Spark's functions are allowed: `reflect` and `java_method` call any static Java method, `from_protobuf` and `xpath` read
what is not in the record, others reveal the user, the file or the partition. A listed function depends on its arguments
alone, so that a record that is read again gives the same answer. Aggregate functions have a catalogue of their own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import pairwise

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from catchment.aggregates.catalogue import FUNCTIONS
from catchment.functions.installed import find_installed
from catchment.query.sql.dialect import AGGREGATE_NAMES, CatchmentSpark, render
from catchment.query.sql.tokens import SqlText

CONDITIONS = """
    between coalesce equal_null if ifnull ilike in isnan isnotnull isnull like nanvl not nullif nullifzero nvl nvl2
    regexp regexp_like rlike when zeroifnull case and or
"""
CONVERSIONS = """
    bigint binary boolean cast date decimal double float int smallint string timestamp tinyint try_cast typeof
"""
NUMBERS = """
    abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh cot csc
    degrees div e exp expm1 factorial floor getbit greatest hex hypot least ln log log10 log1p log2 mod negative pi
    pmod positive pow power radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt
    tan tanh try_add try_divide try_mod try_multiply try_subtract unhex width_bucket
"""
TEXTS = """
    ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains decode elt encode
    endswith find_in_set format_number format_string initcap instr lcase left len length levenshtein locate lower lpad
    ltrim luhn_check mask octet_length overlay position printf quote regexp_count regexp_extract regexp_extract_all
    regexp_instr regexp_replace regexp_substr repeat replace reverse right rpad rtrim soundex space split split_part
    startswith substr substring substring_index to_binary to_char to_number to_varchar translate trim try_to_binary
    try_to_number ucase unbase64 upper parse_url try_parse_url url_decode url_encode try_url_decode
"""
TIMES = """
    add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc
    dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour
    last_day make_date make_dt_interval make_interval make_timestamp make_ym_interval minute month monthname
    months_between next_day quarter second timestamp_micros timestamp_millis timestamp_seconds timestampadd
    timestampdiff to_date to_timestamp to_unix_timestamp to_utc_timestamp trunc try_to_date try_to_timestamp unix_date
    unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear window year interval
"""
HASHES = "crc32 hash md5 sha sha1 sha2 xxhash64"
NESTED = """
    array array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_size array_union arrays_overlap cardinality
    element_at flatten from_csv from_json get get_json_object json_array_length json_object_keys map map_contains_key
    map_entries map_from_arrays map_keys map_values named_struct size slice sort_array str_to_map struct to_csv to_json
    try_element_at
"""
SCALAR_FUNCTIONS = frozenset(" ".join((CONDITIONS, CONVERSIONS, NUMBERS, TEXTS, TIMES, HASHES, NESTED)).split())
# Functions that stand in GROUP BY, and that Spark is never given.
GROUPING_FUNCTIONS = frozenset({"session_window", "cumulate", "calendar_window"})
# Functions that make several rows of a record, in FROM.
ROW_FUNCTIONS = frozenset({"explode", "explode_outer", "posexplode", "posexplode_outer"})
# Words that may stand before a parenthesis and are not functions.
_WORDS = "all as by distinct else end filter from group having on order over then using where within"
_SYNTAX = frozenset(_WORDS.split())


def refuse_unlisted_functions(expression: exp.Expr, text: SqlText) -> None:
    """Refuse a call of a function that is not on the list."""
    for node in reversed(list(expression.find_all(exp.Func))):  # the innermost first: it is the one to point at
        for name in _called_names(node):
            if not _is_listed(name):
                raise text.error(f"the function {name!r} is not available in queries", node, hint=_hint(name))


def _is_listed(name: str) -> bool:
    return is_built_in(name) or find_installed(name) is not None


def is_built_in(name: str) -> bool:
    """Return whether catchment has a function of its own by a name, whether queries may call it or not."""
    return (
        name in SCALAR_FUNCTIONS | GROUPING_FUNCTIONS | ROW_FUNCTIONS
        or name in FUNCTIONS
        or name.upper() in AGGREGATE_NAMES
    )


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, SCALAR_FUNCTIONS, n=1, cutoff=0.7)
    listed = "docs/reference/sql.md lists the functions that are"
    return f"did you mean {near[0]!r}? {listed}" if near else listed


def _called_names(node: exp.Expr) -> Iterator[str]:
    """Return the functions that Spark would call for a node: whatever stands before a parenthesis in its text."""
    try:
        tokens = CatchmentSpark().tokenize(render(node))
    except SqlglotError:  # what cannot be written as Spark SQL is refused by name
        yield node.sql_name().lower() if isinstance(node, exp.Func) else node.key
        return
    if len(tokens) == 1:  # such as SESSION_USER, which is called without parentheses
        yield tokens[0].text.lower()
    for token, following in pairwise(tokens):
        name = token.text.lower()
        is_word = name.replace("_", "").isalnum() and token.token_type not in (TokenType.STRING, TokenType.NUMBER)
        if following.token_type == TokenType.L_PAREN and is_word and name not in _SYNTAX:
            yield name
