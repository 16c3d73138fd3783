"""Files that are found again by content: against a search of all pairs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from catchment.files.same_content import WantedFile, find_same_content

contents = st.text("ab", min_size=1, max_size=4)


@given(
    then=st.lists(contents, max_size=6),
    now=st.lists(contents, max_size=6),
    may_be_longer=st.booleans(),
)
def test_each_file_stands_for_one_of_its_content_and_none_is_left_that_fits(
    then: list[str], now: list[str], may_be_longer: bool
) -> None:
    there = {f"new{i}": text for i, text in enumerate(now)}
    wanted = {f"old{i}": text for i, text in enumerate(then)}
    found = dict(
        find_same_content(
            [WantedFile(name, len(text), text) for name, text in wanted.items()],
            {name: len(text) for name, text in there.items()},
            lambda name, length: there[name][:length],
            may_be_longer=may_be_longer,
        )
    )

    def fits(old: str, new: str) -> bool:
        return there[new].startswith(wanted[old]) if may_be_longer else there[new] == wanted[old]

    assert len({*found.values()}) == len(found)
    assert all(fits(old, new) for old, new in found.items())
    left = [new for new in there if new not in found.values()]
    assert not [(old, new) for old in wanted if old not in found for new in left if fits(old, new)]


def test_of_equal_files_the_likelier_is_taken_and_of_those_that_grew_the_longest_that_fits() -> None:
    wanted = [WantedFile("a", 1, "x"), WantedFile("b", 1, "x"), WantedFile("c", 2, "xy")]
    sizes = {"new": 3, "second": 1}
    texts = {"new": "xyz", "second": "x"}
    found = find_same_content(
        wanted, sizes, lambda name, n: texts[name][:n], may_be_longer=True, is_likelier=lambda old, new: old == "a"
    )
    assert list(found) == [("c", "new"), ("a", "second")]


def test_what_cannot_be_digested_is_no_match() -> None:
    assert list(find_same_content([WantedFile("a", 1, "x")], {"b": 1}, lambda name, length: None)) == []
