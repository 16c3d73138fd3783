"""The reference is complete and says what the code says: its pages are made from the code, and compared with it here.

Catches: a command, an option, a metric, an exit code or a method that is not in the reference, or is there differently.
Cannot catch: an explanation in the code that is wrong.
"""

from __future__ import annotations

import inspect

import pytest

import catchment
from tools import reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_of_the_reference_says_what_the_code_says(name: str) -> None:
    page = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert page == reference.PAGES[name](), "run: make reference"


def test_every_parameter_of_every_command_says_what_it_is() -> None:
    found = [(words, parameter) for words, command in reference.commands() for parameter in command.params]
    assert len(found) > 100
    assert [(words, p.name) for words, p in found if not p.help] == []


def test_every_public_name_of_the_package_is_in_the_reference() -> None:
    page = reference.python_interface()
    assert [name for name in catchment.__all__ if name != "__version__" and name not in page] == []


def test_every_public_method_has_a_docstring() -> None:
    members = [
        (cls, name, member) for cls in reference.PYTHON_CLASSES for name, member in reference.public_members(cls)
    ]
    assert len(members) > 10
    assert [f"{cls.__name__}.{name}" for cls, name, member in members if not inspect.getdoc(member)] == []
