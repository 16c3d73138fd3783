"""Options that people write, in TOML or in SQL: each is declared once, as a field of the dataclass that holds it.

`option` and `required` declare such a field: what the value may be, its default and what it is for. From the fields
follow the reading of a table (`read_options`), the writing of a value (`write_options`), the commented `catchment.toml`
that `catchment init` writes and the reference in `docs/reference/options.md`. Every reader of people's settings goes
through `read_options`, so that an unknown name, a wrong value and a missing one are answered the same way everywhere:
where, what was found, what is possible.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from catchment.errors import CatchmentError, ConfigError

_OPTION = "option"  # the key of an option in the metadata of its field


_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s@]*@")  # in an address, before its host


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class OptionKind:
    """What an option may hold: `read` takes a written value or raises, `write` is its inverse.

    `expected` completes the sentence "it must be ..."; `unit` ends the name of a field that holds such values.
    """

    expected: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = _as_it_is
    unit: str = ""


@dataclass(frozen=True)
class Option:
    """One option: its name, what it holds, its value when it is absent, and what it is for.

    `absent` says in words what holds where the default is None; `example` is a value to show where there is no default.
    """

    name: str
    kind: OptionKind
    default: Any = None
    required: bool = False
    doc: str = ""
    absent: str = ""
    example: Any = None
    field_name: str = ""

    @property
    def key(self) -> str:
        """The name under which `read_options` returns its value: that of its field, if it has one."""
        return self.field_name or self.name


def option(kind: OptionKind, default: Any, *, doc: str, name: str = "", absent: str = "", example: Any = None) -> Any:
    """Declare a dataclass field that is an option with a default.

    It is named as its field is, without the unit, unless another name is given.
    """
    declared = Option(name, kind, default, doc=doc, absent=absent, example=example)
    return field(default=default, metadata={_OPTION: declared})


def required(kind: OptionKind, *, doc: str, name: str = "", example: Any = None) -> Mapping[str, Option]:
    """Return the metadata of a dataclass field that is an option without a default: `field(metadata=required(...))`."""
    return {_OPTION: Option(name, kind, required=True, doc=doc, example=example)}


def options_of(holder: type) -> tuple[Option, ...]:
    """Return the options that are declared in a dataclass, in the order of its fields."""
    return tuple(_with_name(f.metadata[_OPTION], f.name) for f in fields(holder) if _OPTION in f.metadata)


def _with_name(declared: Option, field_name: str) -> Option:
    unit = declared.kind.unit
    name = declared.name or (field_name.removesuffix(f"_{unit}") if unit else field_name)
    return replace(declared, name=name, field_name=field_name)


def write_options(holder: Any, *, defaults: bool = False) -> dict[str, Any]:
    """Return the options of a dataclass instance as they are written, by name.

    Left out are those that have no value and, unless `defaults` is set, those that have their default.
    """
    written: dict[str, Any] = {}
    for known in options_of(type(holder)):
        value = getattr(holder, known.key)
        if value is not None and (defaults or known.required or value != known.default):
            written[known.name] = known.kind.write(value)
    return written


def did_you_mean(word: str, possible: Iterable[str]) -> str:
    """Return a hint: the nearest possible word, if one is near, and all that are possible."""
    names = sorted(possible)
    lowered = {n.lower(): n for n in names}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    choice = f"possible: {', '.join(names)}" if names else "nothing is declared yet"
    return f"did you mean {lowered[near[0]]!r}? {choice}" if near else choice


def read_options(
    given: Mapping[str, Any],
    options: Iterable[Option],
    *,
    what: str,
    where: Callable[[str | None], str],
    error: type[CatchmentError] = ConfigError,
) -> dict[str, Any]:
    """Return the checked values of a table of options, by their keys, with defaults filled in.

    `what` names the table in errors, `where(name)` is the place of an option.
    """
    known = {o.name: o for o in options}
    for name in given:
        if name not in known:
            raise error(f"{what} has no option {name!r}", where=where(name), hint=did_you_mean(name, known))
    for wanted in known.values():
        if wanted.required and wanted.name not in given:
            raise error(
                f"{what} lacks the option {wanted.name!r}",
                where=where(None),
                hint=f"it must be {wanted.kind.expected}",
            )
    return {o.key: _read(o, given, what, where, error) for o in known.values()}


def _read(
    wanted: Option,
    given: Mapping[str, Any],
    what: str,
    where: Callable[[str | None], str],
    error: type[CatchmentError],
) -> Any:
    if wanted.name not in given:
        return wanted.default
    try:
        return wanted.kind.read(given[wanted.name])
    except (ValueError, TypeError, CatchmentError) as cause:
        raise error(
            f"{what}: {wanted.name} = {_without_password(given[wanted.name])!r} cannot be used",
            where=where(wanted.name),
            hint=f"it must be {wanted.kind.expected}",
        ) from cause


def _without_password(value: Any) -> Any:
    """Return a value as an error may show it."""
    return _PASSWORD.sub(r"\1:***@", value) if isinstance(value, str) else value
