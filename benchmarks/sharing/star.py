"""The configuration of a project in which every site sends to the center."""

from __future__ import annotations

from collections.abc import Sequence


def star(name: str, sites: Sequence[str]) -> str:
    """It ends within `[defaults]`, so that more of them can follow."""
    every = "".join(f"[sites.{site}]\n" for site in (*sites, "center"))
    links = "".join(f'[[links]]\nfrom = "{site}"\nto = "center"\n' for site in sites)
    return (
        f'[project]\nname = "{name}"\ncenter = "center"\n{every}{links}'
        '[defaults]\ntrigger = "1 s"\nhistory = false\nfreshness = "none"\n'
    )
