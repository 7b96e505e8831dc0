"""Balanced codes: at every place each symbol equally often, so that no digit is easier to guess than another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from indelible.errors import DataError

if TYPE_CHECKING:
    from indelible.canaries.codes import CodeFormat

_RESTARTS = 8


def too_few(codes: CodeFormat, n: int, n_left: int) -> DataError:
    """The error of a format that has not n codes left."""
    return DataError(
        f"{n:,} codes of the format '{codes.name}' asked for, but {n_left:,} are not yet in use; "
        "expected at least as many: use a longer code or fewer canaries."
    )


def draw_balanced(codes: CodeFormat, n: int, rng: random.Random, left_out: set[str]) -> list[str]:
    """n different codes outside `left_out`, each alternative of a place used equally often, give or take one.

    Raises:
        DataError: there are too few codes, or no balanced choice of them was found.
    """
    n_rest = codes.size - n - len(left_out)
    if n_rest < 0:
        raise too_few(codes, n, n + n_rest)
    if n_rest >= n:
        found = _search(codes.parts, n, (), left_out, rng)
    else:
        # The whole space is balanced, so what a balanced choice leaves is balanced: search for the smaller of the two.
        rest = _search(codes.parts, n_rest, [codes.split(code) for code in sorted(left_out)], left_out, rng)
        found = None if rest is None else [c for c in codes.all() if c not in left_out.union(rest)]
        rng.shuffle(found or [])
    if found is None:
        raise DataError(
            f"no {n:,} balanced codes of the format '{codes.name}' were found beside the {len(left_out):,} in use; "
            "use a longer code, fewer canaries, or balance: false."
        )
    return found


def _search(
    parts: tuple[tuple[str, ...], ...], n: int, fixed: Sequence[Sequence[str]], forbidden: set[str], rng: random.Random
) -> list[str] | None:
    """n different codes outside `forbidden`, balanced together with the `fixed` ones; None if none were found."""
    used = [Counter(row[place] for row in fixed) for place in range(len(parts))]
    for _ in range(_RESTARTS):
        columns = []
        for part, count in zip(parts, used, strict=True):
            low, n_more = divmod(n + len(fixed), len(part))
            more = [symbol for symbol in part if count[symbol] > low]
            if len(more) > n_more or any(count[symbol] > low + 1 for symbol in more):
                return None  # the fixed ones alone are out of balance
            more += rng.sample([symbol for symbol in part if count[symbol] <= low], n_more - len(more))
            column = [symbol for symbol in part for _ in range(low + (symbol in more) - count[symbol])]
            rng.shuffle(column)
            columns.append(column)
        rows = [list(row) for row in zip(*columns, strict=True)]
        if _repaired(rows, forbidden, rng):
            return ["".join(row) for row in rows]
    return None


def _repaired(rows: list[list[str]], forbidden: set[str], rng: random.Random) -> bool:
    """Swap symbols within columns until no row is forbidden or there twice; whether that succeeded. Changes `rows`."""
    times = Counter("".join(row) for row in rows)

    def is_wrong(i: int) -> bool:
        code = "".join(rows[i])
        return code in forbidden or times[code] > 1

    def count(i: int, step: int) -> int:
        # Faults that come with row i (step 1) or go with it (step -1).
        code = "".join(rows[i])
        times[code] += step
        return (code in forbidden) + (times[code] > (step > 0))

    todo = [i for i in range(len(rows)) if is_wrong(i)]
    for _ in range(20 * len(rows) + 5_000):
        while todo and not is_wrong(todo[-1]):
            todo.pop()
        if not todo:
            return True
        i, j, place = todo[-1], rng.randrange(len(rows)), rng.randrange(len(rows[0]))
        change = count(i, -1) + count(j, -1)
        rows[i][place], rows[j][place] = rows[j][place], rows[i][place]
        change -= count(i, 1) + count(j, 1)
        if change < 0:  # more faults than before: swap back
            for row in (i, j):
                count(row, -1)
            rows[i][place], rows[j][place] = rows[j][place], rows[i][place]
            for row in (i, j):
                count(row, 1)
        elif is_wrong(j):
            todo.append(j)
    return False
