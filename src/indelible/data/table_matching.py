"""How many rows of each class go where, who they are, and how far apart two groups' targets lie.

A stratum is a class, or for a regression a run of rows in the order of their target.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]

_N_RUNS = 30  # of a regression in groups: more could not be filled by whole groups
_UNITS_A_CLASS = 10
"""A finer ratio of members to non-members is taken only while it leaves this many units a class on average: members
come in whole units, and few units make coarse class shares."""


@dataclass(frozen=True)
class Dealt:
    """Row numbers of each part in random order, of the reserve, and of none."""

    parts: tuple[Counts, ...]
    reserve: Counts
    unused: Counts


@dataclass(frozen=True)
class Needs:
    """Rows of each stratum that members and non-members get, (2, K), and what had to be changed."""

    counts: Counts
    notes: tuple[str, ...] = ()


def total_variation(a: ArrayLike, b: ArrayLike) -> float:
    """Total variation distance of two samples of class codes: half the sum over classes of |share in a - share in b|.

    Gibbs and Su 2002; IclMem, section 4.1, asks for less than 0.05.
    """
    first, second = np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64)
    k = int(max(first.max(), second.max())) + 1
    shares = [np.bincount(codes, minlength=k) / codes.size for codes in (first, second)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def kolmogorov_smirnov(a: ArrayLike, b: ArrayLike) -> float:
    """Largest difference between the empirical distribution functions of two samples.

    Massey 1951; IclMem, section 4.1, asks for less than 0.05.
    """
    first, second = np.sort(np.asarray(a, dtype=np.float64)), np.sort(np.asarray(b, dtype=np.float64))
    at = np.concatenate([first, second])
    below = [np.searchsorted(values, at, side="right") / values.size for values in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def apportion(total: int, weights: Counts, caps: Counts) -> Counts:
    """`total` cut into whole parts proportional to `weights`, none above its cap.

    Cumulative shares are rounded, so that each part is within one of its quota and so is each run of parts. What a cap
    cuts off goes to the parts with the most room. Raises ValueError where the caps hold less than `total`.
    """
    if total > caps.sum():
        raise ValueError(f"{total} in all, and the caps hold {caps.sum()}")
    if total == 0:
        return np.zeros(len(weights), dtype=np.int64)
    ends = (2 * np.cumsum(weights) * total + weights.sum()) // (2 * weights.sum())
    parts: Counts = np.minimum(np.diff(ends, prepend=0), caps).astype(np.int64)
    while (left := total - int(parts.sum())) > 0:
        room = caps - parts
        fullest = int(np.argmax(room))
        rest = np.delete(room, fullest)
        parts[fullest] += min(left, max(1, int(room[fullest] - (rest.max() if rest.size else 0))))
    return parts


def exact_ratio(n_members: int, n_nonmembers: int, n_classes: int) -> tuple[int, int] | None:
    """(p, q): a unit of p members and q non-members of one class, so that class shares can be equal exactly.

    p divides `n_members`; q is as large as keeps q/p n_members within `n_nonmembers`. Of the p that leave ten units a
    class (and 1 always), the one that wastes the fewest non-members. None where no unit leaves even one a class.
    """
    units = [p for p in range(1, n_members + 1) if n_members % p == 0 and n_nonmembers * p >= n_members]
    fine = [p for p in units if p == 1 or n_members // p >= _UNITS_A_CLASS * n_classes]
    if not fine:
        fine = [p for p in units if n_members // p >= n_classes][:1]
    if not fine:
        return None
    best = max(fine, key=lambda p: ((n_nonmembers * p // n_members) * (n_members // p), -p))
    return best, n_nonmembers * best // n_members


def matched(available: Counts, n_members: int, n_nonmembers: int) -> Needs | None:
    """Members and non-members with equal class shares, close to the shares of what is `available`; context aside.

    None where the rows don't suffice. Non-members may get fewer than asked, which a note says.
    """
    ratio = exact_ratio(n_members, n_nonmembers, len(available))
    if ratio is None:
        return None
    p, q = ratio
    caps = available // (p + q)
    n_units = n_members // p
    if n_units > caps.sum():
        return None
    units = apportion(n_units, available, caps)
    got = q * n_units
    notes = () if got == n_nonmembers else (
        f"{got} non-members, not {n_nonmembers}, for exactly the members' class shares",)  # fmt: skip
    return Needs(np.stack([p * units, q * units]), notes)


def proportional(available: Counts, n_members: int, n_nonmembers: int) -> Needs | None:
    """Members and non-members each with the shares of what is `available`, rounded; None where rows don't suffice."""
    if n_members + n_nonmembers > available.sum():
        return None
    both = apportion(n_members + n_nonmembers, available, available)
    members = apportion(n_members, both, both)
    return Needs(np.stack([members, both - members]))


def most_matched(available: Counts, n_members: int, n_spare: int = 0) -> int:
    """The most non-members that `matched` finds for so many members, `n_spare` rows left over; 0 where none."""
    best = 0
    for p in (p for p in range(1, n_members + 1) if n_members % p == 0):
        n_units = n_members // p
        if p > 1 and n_units < _UNITS_A_CLASS * len(available):
            continue
        q = 0
        while (available // (p + q + 1)).sum() >= n_units and (p + q + 1) * n_units <= available.sum() - n_spare:
            q += 1
        best = max(best, q * n_units)
    return best


def deal(strata: Counts, groups: Sequence[str] | None, needs: Counts, rng: np.random.Generator) -> Dealt | None:
    """Rows for each part, in random order, by whole groups.

    Groups come in random order; each goes to the part that can use most of its rows, among equals at random in
    proportion to what they still need, or to the reserve if none can use any. Rows of a used group that its part has
    no room for are in no part: elsewhere they would split the group.

    Args:
        strata: (n,) stratum of each row.
        groups: (n,) names; None where every row is its own.
        needs: (parts, K) rows of each stratum that each part gets.

    Returns:
        None if in this order the groups do not fill the parts.
    """
    by_group: dict[str | int, list[int]] = defaultdict(list)
    for row in rng.permutation(len(strata)).tolist():
        by_group[row if groups is None else groups[row]].append(row)
    codes = strata.tolist()
    left = needs.tolist()
    parts: list[list[int]] = [[] for _ in left]
    reserve: list[int] = []
    unused: list[int] = []
    names = list(by_group)
    for g in rng.permutation(len(names)).tolist():
        rows = by_group[names[g]]
        usable = [_usable([codes[r] for r in rows], need) for need in left]
        most = max(usable)
        if most == 0:
            reserve += rows
            continue
        equals = [i for i, n in enumerate(usable) if n == most]
        weights = np.array([sum(left[i]) for i in equals], dtype=np.float64)
        part = equals[0] if len(equals) == 1 else int(rng.choice(equals, p=weights / weights.sum()))
        for r in rows:
            if left[part][codes[r]] > 0:
                left[part][codes[r]] -= 1
                parts[part].append(r)
            else:
                unused.append(r)
    if any(n > 0 for need in left for n in need):
        return None
    shuffled = [rng.permutation(np.array(sorted(rows), dtype=np.int64)) for rows in (*parts, reserve)]
    return Dealt(tuple(shuffled[:-1]), shuffled[-1], np.array(sorted(unused), dtype=np.int64))


def _usable(codes: Sequence[int], need: Sequence[int]) -> int:
    if len(codes) == 1:
        return min(1, need[codes[0]])
    return sum(min(codes.count(c), need[c]) for c in set(codes))


def deal_alike(
    target: NDArray[np.float64],
    groups: Sequence[str] | None,
    sizes: tuple[int, int, int],
    rng: np.random.Generator,
) -> Dealt | None:
    """Context, members and non-members of a regression, as many as `sizes` says, their targets distributed alike.

    Context: one row of each of `n_context` equal runs of rows in the order of their target, ties at random. Members
    and non-members: as many rows as they are, drawn from the others and put in order, are cut into runs with one row
    of the smaller part and its share of the other; who is which is drawn within each run. The Kolmogorov-Smirnov
    statistic is then at most 1 / n_smaller + 1 / (2 n_larger). Groups need longer runs, and may be farther apart.

    Returns:
        None if the rows do not suffice, or in this order the groups do not fill the parts.
    """
    n_context, n_members, n_nonmembers = sizes
    if sum(sizes) > len(target):
        return None
    n_runs = n_context if groups is None else min(n_context, _N_RUNS // 3)
    runs = _ranks(target, rng) * n_runs // len(target)
    first = deal(runs, groups, _even(n_context, n_runs)[None], rng)
    if first is None:
        return None
    rows = first.reserve
    n_runs = min(n_members, n_nonmembers)
    if groups is None:
        rows, left_over = np.split(rng.permutation(rows), [n_members + n_nonmembers])
        needs = np.stack([_even(n_members, n_runs), _even(n_nonmembers, n_runs)])
        runs = np.repeat(np.arange(n_runs), needs.sum(axis=0))[_ranks(target[rows], rng)]
    else:
        left_over, n_runs = rows[:0], min(n_runs, _N_RUNS)
        runs = _ranks(target[rows], rng) * n_runs // max(1, len(rows))
        found = proportional(np.bincount(runs, minlength=n_runs).astype(np.int64), n_members, n_nonmembers)
        if found is None:
            return None
        needs = found.counts
    second = deal(runs, None if groups is None else [groups[r] for r in rows], needs, rng)
    if second is None:
        return None
    reserve = rng.permutation(np.concatenate([left_over, rows[second.reserve]]))
    unused = np.sort(np.concatenate([first.unused, rows[second.unused]]))
    return Dealt((first.parts[0], *(rows[part] for part in second.parts)), reserve, unused)


def _even(total: int, n: int) -> Counts:
    return apportion(total, np.ones(n, dtype=np.int64), np.full(n, total))


def _ranks(values: NDArray[np.float64], rng: np.random.Generator) -> Counts:
    """Place of each value in ascending order, ties at random."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.lexsort((rng.random(len(values)), values))] = np.arange(len(values))
    return ranks
