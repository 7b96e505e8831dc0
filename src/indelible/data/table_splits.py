"""Members, non-members, training context and reserve of one table, and the label that each row carries.

IclMem, section 4.1: disjoint members and non-members whose targets are distributed alike, a training context of
uniform labels, labels permuted so that nothing but memory can tell them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from indelible.data.files import fail, listed
from indelible.data.table_matching import (
    Counts,
    deal,
    deal_alike,
    exact_ratio,
    kolmogorov_smirnov,
    matched,
    most_matched,
    proportional,
    total_variation,
)
from indelible.data.tables import Table
from indelible.errors import ConfigError

N_TRIES = 50
"""Splits drawn until labels, or the numbers behind classes, are distributed alike on both sides."""


@dataclass(frozen=True)
class TableSplit:
    """Who is in which part, and with what label.

    Attributes:
        members: row numbers of the table, in random order; so the other three, none of which shares a row or group.
        reserve: rows of groups that no other part uses: for held-out loss and for contexts never trained on.
        target: (n,) the label each row carries in training and in probing. If randomised, a permutation of the true
            ones within members, within non-members, within the context and within the reserve, each by itself.
        distance: between the labels of members and non-members; total variation, or for regression
            Kolmogorov-Smirnov.
        matched_exactly: whether every class has exactly the same share of members and of non-members.
        notes: sizes, class counts, and what had to be changed.
    """

    members: NDArray[np.int64]
    nonmembers: NDArray[np.int64]
    context: NDArray[np.int64]
    reserve: NDArray[np.int64]
    target: NDArray[Any]
    randomised: bool
    distance: float
    distance_name: Literal["TVD", "KS"]
    matched_exactly: bool
    notes: tuple[str, ...]


def split_table(
    table: Table,
    *,
    n_members: int,
    n_nonmembers: int,
    n_context: int,
    seed: int,
    randomise: bool = True,
    exact: bool = True,
    max_distance: float = 0.05,
) -> TableSplit:
    """Split a table whose duplicates are gone.

    The context has the same number of rows of every class, and takes at most half of the rarest; where `n_context` is
    no multiple, or more, fewer rows than asked, which a note says. Members and non-members have exactly the same class
    shares, close to those of the table; non-members may become fewer for it, which a note says. A regression's context
    has one row of each of as many runs of rows in the order of their target; members and non-members are drawn from
    common runs.

    Groups stay whole: none has rows in two parts. Rows of a group that its part has no room for are in no part.

    Args:
        exact: False takes the class shares of the table, rounded, and asks for a total variation below `max_distance`
            only. Regression always does so, with the Kolmogorov-Smirnov statistic.
        randomise: permute labels within each part, so that every marginal is kept exactly (label randomisation,
            section 4.1). Permuted or not, the other properties hold for the labels that are carried.

    Raises:
        ConfigError: a size below 1, a context smaller than the number of classes, a distance outside (0, 1], sizes for
            which class shares cannot be equal exactly.
        DataError: too few rows, and what would fit; labels of members and non-members too far apart; members of one
            class alone.

    Source: IclMem, section 4.1. Differs from the paper: class shares match exactly by default, where it asks for a
    total variation below 0.05: at 50 rows a side, 0.05 moves the AUC of a score that knows nothing but the label.
    Our reading: uniform labels of a regression's context are uniform over quantiles.
    """
    _check(table, n_members, n_nonmembers, n_context, max_distance)
    by_class = table.task == "classification"
    notes: list[str] = []
    if by_class:
        counts = _class_counts(table)
        context = _context_counts(table, counts, n_context, notes)
        needs = (matched if exact else proportional)(counts - context, n_members, n_nonmembers)
        if needs is None:
            _too_small(table, counts - context, int(context.sum()), n_members, n_nonmembers, exact)
        _refuse_one_class(table, needs.counts[0], counts)
        if absent := [name for name, n in zip(table.classes, needs.counts[0], strict=True) if not n]:
            notes.append(f"no member is of class {listed(absent)}")
        notes.extend(needs.notes)
        wanted = np.vstack([context, needs.counts])
    elif n_context + n_members + n_nonmembers > table.n_rows:
        _too_small(table, np.array([max(0, table.n_rows - n_context)]), n_context, n_members, n_nonmembers, exact=False)

    closest = np.inf
    measure = total_variation if by_class else kolmogorov_smirnov
    for attempt in range(N_TRIES):
        rng = _rng(seed, f"parts {attempt}")
        if by_class:
            dealt = deal(table.target, table.groups, wanted, rng)
        else:
            dealt = deal_alike(table.target, table.groups, (n_context, n_members, n_nonmembers), rng)
        if dealt is None:
            continue
        in_context, members, nonmembers = dealt.parts
        distance = measure(table.target[members], table.target[nonmembers])
        closest = min(closest, distance)
        if round(distance, 4) < max_distance:  # as it is printed: 0.05 less a rounding error is no less
            break
    else:
        _not_found(table, closest, max_distance, n_members, n_nonmembers)
    parts = {"members": members, "nonmembers": nonmembers, "context": in_context, "reserve": dealt.reserve}
    target = table.target.copy()
    if randomise:
        for part, rows in parts.items():
            target[rows] = target[_rng(seed, f"labels of {part}").permutation(rows)]
    same = by_class and _same_shares(target[members], target[nonmembers])
    notes.extend(_described(table, parts, target))
    if len(dealt.unused):
        notes.append(f"{len(dealt.unused)} rows of used groups had no room in their part and are in none")
    name: Literal["TVD", "KS"] = "TVD" if by_class else "KS"
    notes.append(
        f"{name} of the labels of members and non-members: {distance:.4f}" + (" (exactly equal)" if same else "")
    )
    notes.append("labels permuted within each part" if randomise else "labels as they are")
    return TableSplit(**parts, target=target, randomised=randomise, distance=distance, distance_name=name,
                      matched_exactly=same, notes=tuple(notes))  # fmt: skip


def most_nonmembers(table: Table, *, n_members: int, n_context: int, n_reserve: int = 0, exact: bool = True) -> int:
    """The most non-members that `split_table` has rows for beside so many members, context and reserve rows; 0 if none.

    By counts of rows: where groups are larger than one row, fewer may fit.

    Raises:
        ConfigError: as `split_table` for these sizes.
    """
    _check(table, n_members, 1, n_context, 1.0)
    left = table.n_rows - n_context
    if table.task == "classification":
        counts = _class_counts(table)
        available = counts - _context_counts(table, counts, n_context, [])
        if exact:
            return most_matched(available, n_members, n_reserve)
        left = int(available.sum())
    return max(0, left - n_members - n_reserve)


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(random.Random(f"{seed}:{purpose}").getrandbits(64))


def _check(table: Table, n_members: int, n_nonmembers: int, n_context: int, max_distance: float) -> None:
    sizes = {"n_members": n_members, "n_nonmembers": n_nonmembers, "n_context": n_context}
    for what, n in sizes.items():
        if n < 1:
            raise ConfigError(f"{what} is {n}; expected at least 1")
    if not 0 < max_distance <= 1:
        raise ConfigError(f"max_distance is {max_distance}; expected above 0 and at most 1")
    if n_context < len(table.classes):
        raise ConfigError(f"a context of {n_context} rows cannot hold each of the {len(table.classes)} classes of "
                          f"{table.name}; expected at least {len(table.classes)} rows: give more")  # fmt: skip


def _class_counts(table: Table) -> Counts:
    return np.bincount(table.target, minlength=len(table.classes)).astype(np.int64)


def context_each(counts: Counts, n_context: int) -> int:
    """Rows of each class in a context of at most `n_context`: equally many, and no more than half of the rarest class,
    so that members and non-members can have it too; one at least."""
    return max(1, min(n_context // len(counts), int(counts.min()) // 2))


def _context_counts(table: Table, counts: Counts, n_context: int, notes: list[str]) -> Counts:
    """Rows of each class in the context, `context_each`; a note where fewer than asked."""
    k = len(counts)
    each = context_each(counts, n_context)
    if each * k < n_context:
        rarest = int(counts.argmin())
        why = f"for that is no multiple of its {k} classes"
        if each < n_context // k:
            why = f"for class '{table.classes[rarest]}' has {counts[rarest]} rows, of which the context takes half"
        notes.append(f"context of {each * k} rows, not {n_context}, {why}")
    return np.full(k, each, dtype=np.int64)


def _refuse_one_class(table: Table, members: Counts, counts: Counts) -> None:
    """DataError where all members are of one class: shuffled or not, their labels then tell nothing apart."""
    if np.count_nonzero(members) < 2:
        name, rarest = table.classes[int(members.argmax())], int(counts.argmin())
        fail(f"{table.name}: all {members.sum()} members would be of class '{name}', for '{table.classes[rarest]}' has "
             f"{counts[rarest]} of {table.n_rows} rows; expected two classes among members: ask for more members, add "
             "rows of rare classes, or merge them.")  # fmt: skip


def _too_small(
    table: Table, available: Counts, n_context: int, n_members: int, n_nonmembers: int, exact: bool
) -> NoReturn:
    if exact and exact_ratio(n_members, n_nonmembers, len(available)) is None:
        raise ConfigError(f"{n_members} members and {n_nonmembers} non-members cannot have exactly the same class "
                          "shares; expected sizes of which one is a multiple of the other: change one, or ask for "
                          "exact=False")  # fmt: skip
    rows = int(available.sum())
    pairs = int((available // 2).sum()) if exact else rows // 2
    most = most_matched(available, n_members) if exact else max(0, rows - n_members)
    shares = " with the same class shares" if exact else ""
    fits = f"at most {most} non-members to {n_members} members" if most else f"no {n_members} members and non-members"
    fail(f"{table.name}: {table.n_rows} rows are too few for a context of {n_context}, {n_members} members and "
          f"{n_nonmembers} non-members{shares}; beside that context fit {fits}, or {pairs} of each: ask for "
          "fewer.")  # fmt: skip


def _not_found(table: Table, closest: float, max_distance: float, n_members: int, n_nonmembers: int) -> NoReturn:
    if np.isinf(closest):
        n_groups = len(set(table.groups or ()))
        fail(f"{table.name}: its {table.n_rows} rows come in {n_groups} groups, which cannot be dealt so that "
              f"{n_members} members and {n_nonmembers} non-members match and no group is split: ask for "
              "fewer.")  # fmt: skip
    fail(
        f"{table.name}: the labels of {n_members} members and {n_nonmembers} non-members are {closest:.3f} apart "
        f"at best, in {N_TRIES} draws; expected below {max_distance}: ask for more, or raise max_distance."
    )


def _same_shares(a: NDArray[Any], b: NDArray[Any]) -> bool:
    first, second = Counter(a.tolist()), Counter(b.tolist())
    return all(first[c] * len(b) == second[c] * len(a) for c in first | second)


def _described(table: Table, parts: dict[str, NDArray[np.int64]], target: NDArray[Any]) -> list[str]:
    lines = []
    for name, rows in parts.items():
        shown = ""
        if table.task == "classification" and len(rows):
            counts = np.bincount(target[rows], minlength=len(table.classes))
            shown = ", by class: " + ", ".join(f"{c} {n}" for n, c in zip(counts[:20], table.classes, strict=False))
            shown += ", ..." if len(counts) > 20 else ""
        lines.append(f"{name.replace('nonm', 'non-m')}: {len(rows)} rows{shown}")
    return lines
