"""The functions that are installed in this process, by names that say which code they are.

A function is named `celsius` in queries and `celsius__3fa21b0c` in plans: what follows is the beginning of the digest
of its code. So a plan, a fragment and a stored state are of one code, a function that was changed is another function,
and two projects in one process cannot take each other's. The digest is over the text of the definition and of
everything at the top of its file that it uses; a function that is added beside it changes nothing.

The text of files, not pickled code, is what the workers of a site's Spark are given. No code is stored or sent.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType

from catchment.errors import CatchmentError, ConfigError, FunctionError
from catchment.functions.declared import AggregateFunction, ScalarFunction

DIGITS = 8  # of the digest that follows a name
_INSTALLED_NAME = re.compile(rf"\b[a-z][a-z0-9_]*?__[0-9a-f]{{{DIGITS}}}\b", re.IGNORECASE)

Declared = ScalarFunction | AggregateFunction


@dataclass(frozen=True)
class FunctionsFile:
    """A file of Python code: its name, for messages, and its text."""

    name: str
    text: str


@dataclass(frozen=True)
class InstalledFunction:
    """A function with the digits of its code, and the file that it is in."""

    declared: Declared
    digits: str
    file: str

    @property
    def name(self) -> str:
        """The name that queries call it by."""
        return self.declared.name

    @property
    def installed_name(self) -> str:
        """The name that plans call it by."""
        return f"{self.declared.name}__{self.digits}"


_lock = threading.RLock()
_files: dict[FunctionsFile, Mapping[str, InstalledFunction]] = {}
_by_installed_name: dict[str, InstalledFunction] = {}


def install(file: FunctionsFile) -> Mapping[str, InstalledFunction]:
    """Run a file, unless that was done already; return the functions that it declares, by name."""
    with _lock:
        if file not in _files:
            found = dict(_run(file))
            _files[file] = MappingProxyType(found)
            _by_installed_name.update({f.installed_name: f for f in found.values()})
        return _files[file]


def installed_files() -> tuple[FunctionsFile, ...]:
    """Return the files that are installed, for the workers of this process."""
    return tuple(_files)


def find_installed(installed_name: str) -> InstalledFunction | None:
    """Return a function by the name that plans call it by, whatever its case."""
    return _by_installed_name.get(installed_name.lower())


def scalar(installed_name: str) -> ScalarFunction | None:
    """Return a scalar function by the name that plans call it by."""
    found = find_installed(installed_name)
    return found.declared if found is not None and isinstance(found.declared, ScalarFunction) else None


def aggregate_of(installed_name: str) -> AggregateFunction:
    """Return an aggregate by the name that plans call it by; it must be installed."""
    found = find_installed(installed_name)
    if found is None or not isinstance(found.declared, AggregateFunction):
        raise FunctionError(
            f"the code of the aggregate {installed_name} is not installed here",
            hint="bring back the functions of the project as they were, or drop the views that use it",
        )
    return found.declared


def functions_in(text: str) -> frozenset[str]:
    """Return the functions that the text of a plan or an expression calls, by the names of plans."""
    found = (name.lower() for name in _INSTALLED_NAME.findall(text))
    return frozenset(name for name in found if name in _by_installed_name)


def _run(file: FunctionsFile) -> Iterator[tuple[str, InstalledFunction]]:
    digest = hashlib.sha256(file.text.encode()).hexdigest()
    module = ModuleType(f"catchment_functions_{digest[:16]}")
    module.__file__ = file.name
    sys.modules[module.__name__] = module  # where dataclasses and typing look names up
    try:
        tree = ast.parse(file.text, file.name)
        exec(compile(tree, file.name, "exec"), module.__dict__)
    except CatchmentError as error:
        raise error.found_in(file.name) from error
    except Exception as cause:
        line = cause.lineno if isinstance(cause, SyntaxError) else _line_in(cause, file.name)
        raise ConfigError(
            f"the functions of the project cannot be read: {type(cause).__name__}: {cause}",
            where=f"{file.name}:{line}" if line else file.name,
            hint="the file is run when a project is opened, and may import whatever is installed at every site",
        ) from cause
    parts = _top_of(tree, file.text)
    for name, value in vars(module).items():
        if isinstance(value, Declared) and name == value.name:
            yield name, InstalledFunction(value, _digits(name, parts), file.name)


def _line_in(error: BaseException, name: str) -> int | None:
    """Return the last line of a file that an error came through."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@dataclass(frozen=True)
class _Part:
    """A statement at the top of a file: its text, the names that it makes, and all names in it."""

    text: str
    makes: frozenset[str]
    uses: frozenset[str]


def _top_of(tree: ast.Module, text: str) -> list[_Part]:
    lines = text.splitlines()
    return [_Part(_text_of(node, lines), _made_names(node), _used_names(node)) for node in tree.body]


def _text_of(node: ast.stmt, lines: list[str]) -> str:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    first = min([node.lineno, *(d.lineno for d in decorators)])
    return "\n".join(lines[first - 1 : node.end_lineno])


def _made_names(node: ast.stmt) -> frozenset[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return frozenset([node.name])
    if isinstance(node, ast.Import | ast.ImportFrom):
        return frozenset((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    stores = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return frozenset(n.id for n in stores)


def _used_names(node: ast.stmt) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _digits(name: str, parts: list[_Part]) -> str:
    """Return the digest of a definition and of everything at the top of its file that it uses."""
    wanted = {name}
    while True:
        used = [part for part in parts if part.makes & wanted]
        more = wanted.union(*(part.uses | part.makes for part in used))
        if more == wanted:
            break
        wanted = more
    text = "\n".join(part.text for part in used)
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()[:DIGITS]
