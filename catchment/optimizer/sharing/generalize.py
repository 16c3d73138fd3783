"""The least demands from which two others can be derived: what a shared fragment carries.

There may be several, because a sketch of a column can be carried as a sketch or as the column itself: few records per
group take fewer bytes as values, which serve every sketch of the column at once; many take fewer as a sketch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from catchment.errors import TimelineError
from catchment.optimizer.normal_form.expressions import columns_of
from catchment.optimizer.normal_form.normalize import key_name
from catchment.optimizer.normal_form.predicates import implies
from catchment.optimizer.sharing.demand import FragmentDemand, counted_argument, spell_out
from catchment.optimizer.sharing.derive import is_derivable
from catchment.query.fragment import Key
from catchment.timeline import Slicing

MAX_SPELLED_OUT = 3  # how many columns with sketches are tried as keys, each alone and all together


def generalizations(left: FragmentDemand, right: FragmentDemand) -> Iterator[FragmentDemand]:
    """Yield demands from which both can be derived, with their sketches and with values in place of some of them."""
    if left.source.at_any_site != right.source.at_any_site:
        return
    sketched = sorted({a for d in (left, right) for atom in d.aggregates if (a := counted_argument(atom))})
    chosen = [(), *((argument,) for argument in sketched[:MAX_SPELLED_OUT])]
    if len(sketched) > 1:
        chosen.append(tuple(sketched))
    found: list[FragmentDemand] = []
    for arguments in chosen:
        wider = generalize(spell_out(left, arguments), spell_out(right, arguments))
        if wider is not None and wider not in found and is_derivable(left, wider) and is_derivable(right, wider):
            found.append(wider)
            yield wider


def generalize(left: FragmentDemand, right: FragmentDemand) -> FragmentDemand | None:
    """Return a demand from which both can be derived, or None where there is none that is certain.

    It keeps the conditions that both imply; the columns of what is left of each become keys, so that each can be
    filtered afterwards; keys, atoms and windows are united.
    """
    if left.source.at_any_site != right.source.at_any_site:
        return None
    if is_derivable(left, right):
        return right
    if is_derivable(right, left):
        return left
    texts = left.source.texts
    common = {c for c in left.conditions if implies(right.conditions, c, texts)}
    common |= {c for c in right.conditions if implies(left.conditions, c, texts)}
    loose = [c for c in (*left.conditions, *right.conditions) if not implies(common, c, texts)]
    added = _keys_of(loose, left)
    if added is None:
        return None
    united = _unite(left, right, added, _least(common, left))
    return united if united and is_derivable(left, united) and is_derivable(right, united) else None


def _keys_of(conditions: list[str], demand: FragmentDemand) -> tuple[Key, ...] | None:
    """Return the columns of some conditions as keys; None where one has no known type."""
    columns = sorted({c for condition in conditions for c in columns_of(condition)})
    if any(c not in demand.source.type_of for c in columns):
        return None
    keys = (Key("key", column, demand.source.type_of[column]) for column in columns)
    return tuple(replace(k, name=key_name(k)) for k in keys)


def _unite(
    left: FragmentDemand, right: FragmentDemand, added: tuple[Key, ...], conditions: tuple[str, ...]
) -> FragmentDemand | None:
    keys = {k.name: k for k in (*left.keys, *right.keys, *added)}
    atoms = {a.name: a for a in (*left.aggregates, *right.aggregates)}
    windows = tuple(sorted({*left.windows, *right.windows}))
    try:
        Slicing.of(windows)
    except TimelineError:
        return None  # the common slices of the windows would be too short
    ordered = tuple(keys[n] for n in sorted(keys)), tuple(atoms[n] for n in sorted(atoms))
    return FragmentDemand(left.source.unite_sites(right.source), *ordered, windows, conditions)


def _least(conditions: set[str], demand: FragmentDemand) -> tuple[str, ...]:
    """Return the conditions without those that the others imply."""
    kept = sorted(conditions)
    for condition in sorted(conditions):
        rest = [c for c in kept if c != condition]
        if implies(rest, condition, demand.source.texts):
            kept = rest
    return tuple(kept)
