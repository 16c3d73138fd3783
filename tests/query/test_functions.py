"""Which functions a query may call: those on the list, as Spark will read them, and nothing that reaches outside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.errors import QueryError
from catchment.query.sql.functions import SCALAR_FUNCTIONS
from tests.worlds.query_support import make_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REACHES_OUTSIDE = [
    "reflect('java.lang.System', 'getenv', 'SECRET')",
    "`reflect`('java.lang.System', 'getenv', 'SECRET')",
    "REFLECT('java.lang.System', 'getenv', 'SECRET')",
    "java_method('java.lang.System', 'exit', 1)",
    "try_reflect('java.lang.Runtime', 'x')",
    "from_protobuf(url, 'M', '/etc/passwd')",
    "from_avro(url, '{}')",
    "xpath_string(url, 'a/b')",
    "aes_decrypt(url, url)",
    "raise_error('stop')",
    "session_user()",
    "current_database()",
    "input_file_block_start()",
    "java.lang.System.exit(1)",
    "no_such_function(url)",
]


def select(where: str = "true", key: str = "url", value: str = "bytes") -> str:
    return (
        f"SELECT window.start, {key} AS k, sum({value}) AS s FROM beacons "
        f"WHERE {where} GROUP BY window(ts, '10 seconds'), {key}"
    )


@pytest.mark.parametrize("call", REACHES_OUTSIDE)
@pytest.mark.parametrize("place", ["where", "key", "value"])
def test_a_function_that_reaches_outside_is_refused_wherever_it_stands(call: str, place: str) -> None:
    nested = f"CAST(concat(url, upper(CAST({call} AS STRING))) AS INT)"
    text = select(where=f"{nested} = 1") if place == "where" else select(**{place: nested})
    with pytest.raises(QueryError, match=r"is not available in queries|is not possible|another value each time"):
        make_plan(text)


def test_the_refusal_names_the_function_its_place_and_what_is_near() -> None:
    with pytest.raises(QueryError) as error:
        make_plan(select(where="upper(reflect('a', 'b')) = 'c'"))
    assert "the function 'reflect' is not available in queries" in str(error.value)
    assert str(error.value).startswith("q.sql:2:")
    with pytest.raises(QueryError, match="did you mean 'substring'"):
        make_plan(select(key="CAST(substrin(url, 1, 2) AS STRING)"))


@pytest.mark.parametrize(
    "expression",
    [
        "coalesce(nullif(trim(url), ''), 'none')",
        "CASE WHEN bytes > 3 AND url IN ('a', 'b') THEN date_format(ts, 'yyyy') ELSE CAST(bytes AS DECIMAL(18, 2)) END",
        "regexp_replace(split(url, '-')[0], '[0-9]+', '')",
        "get_json_object(url, '$.a') || substring(url, 1, 2)",
        "date_trunc('HOUR', ts) + INTERVAL 1 DAY",
        "element_at(array(1, 2), 1) + size(map('a', 1)) + extract(HOUR FROM ts)",
        "if(url LIKE 'a%' OR NOT (url RLIKE 'b'), bytes BETWEEN 1 AND 2, bytes IS NULL)",
    ],
)
def test_what_queries_are_made_of_is_allowed(expression: str) -> None:
    assert "Filter" in make_plan(select(where=f"({expression}) IS NOT NULL")).to_text()


def test_the_reference_lists_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sql.md").read_text(encoding="utf-8")
    section = page.partition("### Functions")[2].partition("**Not possible**")[0]
    assert set(re.findall(r"`(\w+)`", section)) == SCALAR_FUNCTIONS


@pytest.mark.spark
def test_every_listed_function_is_one_of_sparks(spark: SparkSession) -> None:
    syntax = {"and", "or", "not", "case", "interval", "try_cast", "timestampadd", "timestampdiff", "in"}
    known = {f.name for f in spark.catalog.listFunctions()}
    assert SCALAR_FUNCTIONS - known - syntax == set()
