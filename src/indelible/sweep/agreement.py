"""Do a sweep's numbers go the paper's way? Its tables by the order of their numbers, its figures by their shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from indelible.stats.paired import hanley_mcneil_variance
from indelible.sweep.contrasts import Number, Numbers, Pulls, RowKey, contrast, difference, mean
from indelible.sweep.numbers import spearman_rows
from indelible.sweep.places import Places
from indelible.sweep.shapes import shape
from indelible.sweep.shown import PaperTable
from indelible.sweep.tally import CANNOT_TELL, Tally

SAME_RECORDS = 0.5
"""Correlation of two of the paper's numbers that are of the same records; it states none."""


def agreement(places: Places, pulls: Mapping[RowKey, Pulls] | None = None) -> list[dict[str, Any]]:
    """One entry a table of the paper or shape it shows: `where`, `what`, `word`, the counts, and a `line` of words.

    Two of our numbers are in an order where the interval of their difference, paired over the records they share and
    pooled over the seeds (see `contrasts`), leaves zero out. Of a table, pairs of one column or row count whose order
    the paper's own sample can tell (`paper_tells`). The word follows from the counts: see `Tally.word` and `shapes`.
    """
    numbers = Numbers(places, pulls or {})
    out = [entry for table in places.config.paper_values for entry in _tables(numbers, table)]
    for expect in places.config.expect:
        for rest in places.left_over((expect.x, expect.by), expect.only):
            where = ", ".join(filter(None, (expect.where, places.named(rest, expect.only))))
            for found in shape(numbers, expect, rest):
                what = found.what if expect.by == "metric" else f"{found.what} ({expect.metric})"
                out.append(_entry(where, what, found.word, found.tally, found.said))
    return out


Cells = Mapping[tuple[str, str | None], tuple[float, Number]]
"""Row and column to the paper's number and ours."""


def _tables(numbers: Numbers, table: PaperTable) -> Iterator[dict[str, Any]]:
    places = numbers.places
    columns = [None] if table.columns is None else places.shown(table.columns, table.only)
    rows = [label for label in places.shown(table.rows, table.only) if label in table.values]
    for rest in places.left_over((table.rows, table.columns), table.only):
        cells: dict[tuple[str, str | None], tuple[float, Number]] = {}
        for row in rows:
            for column in columns:
                place = {**rest, table.rows: row, **({table.columns: column} if table.columns and column else {})}
                known = table.value(row, column)
                ours = numbers.number(place, table.metric)
                if known is not None and ours:
                    cells[row, column] = known, ours
        if not cells:
            continue
        where = ", ".join(filter(None, (table.where, places.named(rest, table.only))))
        if len(cells) == 1:
            yield _entry(where, table.metric, CANNOT_TELL, Tally(), _single(numbers, *next(iter(cells.values()))))
            continue
        tally, n_left = _pairs(numbers, table, cells)
        said = [str(tally)]
        if n_left:
            said.append(f"{n_left} more that the paper's own sample leaves open")
        said += [text for column in columns for text in _column(numbers, column, rows, cells)]
        yield _entry(where, f"order by {table.metric}", tally.word, tally, "; ".join(said))


def _single(numbers: Numbers, known: float, ours: Number) -> str:
    found = contrast([ours], [1.0])
    ends = None if found is None else found.interval(numbers.level)
    value = mean(ours) or 0.0
    return f"{value:.3f}" + ("" if ends is None else f" [{ends[0]:.3f}, {ends[1]:.3f}]") + f" here, {known:.3f} there"


def _pairs(numbers: Numbers, table: PaperTable, cells: Cells) -> tuple[Tally, int]:
    """The pairs of one column or row, counted, and how many the paper cannot tell."""
    tally, n_left = Tally(), 0
    for (one, (paper_a, a)), (other, (paper_b, b)) in combinations(cells.items(), 2):
        if one[0] != other[0] and one[1] != other[1]:
            continue
        same_records = one[1] == other[1] and table.rows == "attack"
        if not paper_tells(table, paper_a, paper_b, numbers.z, same_records=same_records):
            n_left += 1
            continue
        found = difference(a, b)
        if found is not None:
            tally.add(found.sign(numbers.level) * (1 if paper_a > paper_b else -1))
    return tally, n_left


def paper_tells(table: PaperTable, a: float, b: float, z: float, *, same_records: bool) -> bool:
    """Whether two of the paper's numbers differ by more than `n` members and as many non-members leave open:
    |a - b| > z sqrt(Va + Vb - 2 r sqrt(Va Vb)), r 0.5 for two attacks on the same records and 0 else.

    Variance of an AUC: Hanley and McNeil's. Of a TPR p at a rate f: p (1 - p) / n, and for the threshold
    s^2 f (1 - f) / n with s the slope there of the binormal curve of equal variances through (f, p). Of another
    metric's number: `error`, without which nothing is told.
    """
    first, second = (_variance(table, value) for value in (a, b))
    if first is None or second is None:
        return False
    shared = 2 * (SAME_RECORDS if same_records else 0.0) * math.sqrt(first * second)
    return abs(a - b) > z * math.sqrt(max(0.0, first + second - shared))


def _variance(table: PaperTable, value: float) -> float | None:
    from scipy.stats import norm

    n = table.n
    if table.error is not None:
        return table.error**2
    if table.metric == "auc":
        return hanley_mcneil_variance(min(max(value, 1 - value), 1 - 0.5 / n), n, n)
    if table.metric.startswith("tpr@"):
        rate = float(table.metric.removeprefix("tpr@"))
        p = min(max(value, 1 / n), 1 - 1 / n)
        slope = float(norm.pdf(norm.ppf(p)) / norm.pdf(norm.ppf(rate)))
        return p * (1 - p) / n + slope**2 * rate * (1 - rate) / n
    return None


def _column(numbers: Numbers, column: str | None, rows: Sequence[str], cells: Cells) -> Iterator[str]:
    """Rank correlation with the paper over a column's rows, with its interval over rows, and which row is highest."""
    own = {row: cells[row, column] for row in rows if (row, column) in cells}
    if len(own) < 2:
        return
    inside = f" in {column}" if column else ""
    ours = {row: mean(number) or 0.0 for row, (_, number) in own.items()}
    pairs = np.array([[own[row][0], ours[row]] for row in own])
    rho = spearman_rows("", pairs[:, 0], pairs[:, 1], level=numbers.level)[0]
    if rho.value is not None and rho.low is not None and rho.high is not None:
        ends = f" [{rho.low:.2f}, {rho.high:.2f}]" if rho.low < rho.high else ""
        yield f"Spearman{inside} {rho.value:.2f}{ends} over {len(own)} rows"
    first, theirs = max(ours, key=lambda row: ours[row]), max(own, key=lambda row: own[row][0])
    yield f"highest{inside}: " + (f"{first} in both" if first == theirs else f"{first} here, {theirs} in the paper")


def _entry(where: str, what: str, word: str, tally: Tally, said: str) -> dict[str, Any]:
    counts = {"same": tally.same, "against": tally.against, "unclear": tally.unclear}
    return {"where": where, "what": what, "word": word, **counts, "line": f"{where}, {what}: {said}"}
