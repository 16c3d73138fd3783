"""Lines of JSON and CSV, plain and odd, as a parser may meet them; each is a record of its own or no record at all."""

from __future__ import annotations

import json
import random

import pyarrow as pa

COLUMNS = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("whole", pa.int64()),
        ("small", pa.int32()),
        ("real", pa.float64()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
    ]
)
DDL = "ts TIMESTAMP, name STRING, whole BIGINT, small INT, real DOUBLE, flag BOOLEAN, day DATE"
_PLAIN_TIMES = ("2024-05-06T07:08:09Z", "2024-05-06 07:08:09", "1999-12-31T23:59:59.123456", "2030-02-28 00:00:00.5Z")
_ODD_TIMES = (
    "2024-05-06",
    "2024-05-06 07",
    "2024-05-06T07:08",
    "2024-5-6 7:8:9",
    "2024-02-30 00:00:00",
    "2024-05-06T24:00:00Z",
    "2024-05-06T07:08:60Z",
    "2024-05-06T07:08:09.1234567Z",
    "2024-05-06T07:08:09+05:30",
    "2024-05-06T07:08:09.25-17:59",
    "2024-05-06T07:08:09+18:00",
    "2024-05-06T07:08:09+19:00",
    "2024-05-06T07:08:09+0530",
    "2024-05-06T07:08:09 UTC",
    "2024-05-06T07:08:09 Europe/Berlin",
    "2024-05-06 07+05:30",
    "2024-05-06 07:08+05:30",
    "2024-05-06t07:08:09z",
    " 2024-05-06T07:08:09Z",
    "2024-05-06T07:08:09Z ",
    "0099-01-01T00:00:00Z",
    "1582-10-10T00:00:00Z",
    "12024-05-06T07:08:09Z",
    "epoch",
    "now",
    "",
    "nonsense",
    "1714979289",
)
_ODD_DAYS = ("2024-05-06", "2024-5-6", "2024-02-30", "2024-05-06T", "2024-05-06 ", "20240506", "", "x", "0001-01-01")
_ODD_WHOLES = ("0", "-0", "007", "+5", "0x1F", "1e2", "1.0", "9223372036854775807", "9223372036854775808", " 5", "5 ")
_ODD_REALS = ("1.5", "-0", "-0.0", "0.0", ".5", "5.", "1e400", "1e-400", "+1", "1d", "1.5f", "NaN", "nan", "Infinity")
_ODD_REALS_MORE = ("-Infinity", "inf", "1_0", "0x1p3", "1.7976931348623159e308", "5e-324", " 1.5", "1,5", "null", "--1")
_ODD_FLAGS = ("true", "false", "TRUE", "True", "1", "0", "yes", "t", "")
_NAMES = ("", "plain", "ümlaut", "with space", " lead", "tail ", "tab\there", "null", "NULL", "emoji 😀", "\u2028")


def json_lines(seed: int, count: int) -> list[str]:
    """Return JSON lines; about half of them are plain records."""
    chance = random.Random(seed)
    return [_json_line(chance) for _ in range(count)]


def csv_lines(seed: int, count: int) -> list[str]:
    """Return CSV lines without a header; about half of them are plain records."""
    chance = random.Random(seed)
    return [_csv_line(chance) for _ in range(count)]


def _fields(chance: random.Random) -> dict[str, str | None]:
    """Return the fields of a record as text, one of them odd in half of the records."""
    fields: dict[str, str | None] = {
        "ts": chance.choice(_PLAIN_TIMES),
        "name": chance.choice(("a", "b", "long name")),
        "whole": str(chance.randrange(-(10**12), 10**12)),
        "small": str(chance.randrange(1000)),
        "real": repr(chance.gauss(0, 1000)),
        "flag": chance.choice(("true", "false")),
        "day": f"20{chance.randrange(10, 99)}-0{chance.randrange(1, 10)}-1{chance.randrange(10)}",
    }
    odd = {
        "ts": _ODD_TIMES,
        "name": _NAMES,
        "whole": _ODD_WHOLES,
        "small": (*_ODD_WHOLES, "2147483648"),
        "real": (*_ODD_REALS, *_ODD_REALS_MORE),
        "flag": _ODD_FLAGS,
        "day": _ODD_DAYS,
    }
    if chance.random() < 0.5:
        name = chance.choice(list(odd))
        fields[name] = chance.choice((*odd[name], None))
    return fields


def _json_line(chance: random.Random) -> str:
    fields = _fields(chance)
    texts = []
    for name, value in fields.items():
        if value is None:
            shown = "null"
        elif name in ("ts", "name", "day"):
            shown = json.dumps(value, ensure_ascii=chance.random() < 0.5)
        else:
            shown = value or "null"
        texts.append(f'"{name}":{chance.choice(("", " "))}{shown}')
    if chance.random() < 0.2:
        texts.append(chance.choice(('"other": {"a": [1, {"b": null}]}', '"other": "}"', '"OTHER": "x\\n"', '"ts": 5')))
    if chance.random() < 0.1:
        texts.pop(chance.randrange(len(texts)))
    chance.shuffle(texts)
    line = "{" + ",".join(texts) + "}"
    if chance.random() < 0.15:
        line = chance.choice(_ODD_JSON).replace("LINE", line)
    return line


_ODD_JSON = (
    "LINE LINE",
    "LINELINE",
    " LINE",
    "LINE ",
    "LINE x",
    "[LINE]",
    "[LINE,LINE]",
    "{}",
    "null",
    "5",
    '"text"',
    "   ",
    "\t",
    '{"ts": "2024-05-06T07:08:09Z", "name": 5}',
    '{"ts": "2024-05-06T07:08:09Z", "name": {"a": 1}}',
    '{"ts": "2024-05-06T07:08:09Z", "whole": "5"}',
    '{"ts": "2024-05-06T07:08:09Z", "flag": "true"}',
    '{"ts": "2024-05-06T07:08:09Z", "real": "1.5"}',
    '{"ts": 1714979289}',
    '{"ts": 1714979289.5}',
    '{"ts": "2024-05-06T07:08:09Z", "name": "\\ud800"}',
    '{"ts": "2024-05-06T07:08:09Z", "name": "\\u0041\\u0000"}',
    '{"ts": "2024-05-06T07:08:09Z", "whole": 1, "whole": 2}',
    '{"ts": "2024-05-06T07:08:09Z", "Whole": 1}',
    '{"ts": "2024-05-06T07:08:09Z",}',
    "{'ts': '2024-05-06T07:08:09Z'}",
    '{"ts": "2024-05-06T07:08:09Z"',
    '"ts": "2024-05-06T07:08:09Z"}',
    '{"ts": "2024-05-06T07:08:09Z", "other": ' + "[" * 1100 + "]" * 1100 + "}",
    '{"ts": "2024-05-06T07:08:09Z", "other": ' + "7" * 1100 + "}",
    '{"ts": "2024-05-06T07:08:09Z", "real": ' + "7" * 1100 + "}",
)


def _csv_line(chance: random.Random) -> str:
    fields = ["" if value is None else value for value in _fields(chance).values()]
    line = ",".join(fields)
    if chance.random() < 0.15:
        line = chance.choice(_ODD_CSV).replace("LINE", line)
    return line


_ODD_CSV = (
    "LINE,",
    ",LINE",
    "LINE,more",
    "a,b",
    "",
    "   ",
    ",,,,,,",
    '2024-05-06T07:08:09Z,"quoted, text",1,1,1.5,true,2024-05-06',
    '2024-05-06T07:08:09Z,"",1,1,1.5,true,2024-05-06',
    '2024-05-06T07:08:09Z,"two ""inner"" quotes",1,1,1.5,true,2024-05-06',
    '2024-05-06T07:08:09Z,in"side,1,1,1.5,true,2024-05-06',
    "2024-05-06T07:08:09Z,back\\slash,1,1,1.5,true,2024-05-06",
    "2024-05-06T07:08:09Z,\x00,1,1,1.5,true,2024-05-06",
    "2024-05-06T07:08:09Z,-,1,1,-,true,2024-05-06",
    "ts,name,whole,small,real,flag,day",
    "TS,NAME,WHOLE,SMALL,REAL,FLAG,DAY",
    "#comment,a,1,1,1.5,true,2024-05-06",
)
