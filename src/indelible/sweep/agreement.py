"""Do a sweep's numbers go the paper's way? Counted over pairs: same order, other order, too close to tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from indelible.sweep.config import Expect, PaperTable
from indelible.sweep.places import Place, Places, ends

Number = tuple[float, float, float] | None
"""Value, lowest, highest."""


@dataclass
class Tally:
    """Pairs of numbers that the paper orders: ours in the same order, in the other, or with overlapping spreads."""

    same: int = 0
    against: int = 0
    unclear: int = 0

    def add(self, smaller: Number, larger: Number) -> None:
        """Two of our numbers, the one first that the paper has smaller; a missing one is not counted."""
        if smaller is None or larger is None:
            return
        if smaller[2] < larger[1]:
            self.same += 1
        elif larger[2] < smaller[1]:
            self.against += 1
        else:
            self.unclear += 1

    @property
    def word(self) -> str:
        """agrees, agrees in part, disagrees, or cannot tell."""
        if self.same + self.against == 0:
            return "cannot tell"
        if self.against == 0:
            return "agrees"
        return "agrees in part" if self.same > self.against else "disagrees"

    def __str__(self) -> str:
        total = self.same + self.against + self.unclear
        if total == 0:
            return "no two numbers to compare"
        close = f", {self.unclear} too close to tell" if self.unclear else ""
        pairs = f"{total} pair{'s' * (total != 1)}"
        return f"of {pairs} {self.same} in the paper's order, {self.against} against it{close}"


def agreement(places: Places) -> list[dict[str, Any]]:
    """One entry a table of the paper or shape it shows: `where`, `what`, `word`, the counts, and a `line` of words."""
    config = places.config
    entries = [entry for table in config.paper_values for entry in _tables(places, table)]
    return entries + [entry for expect in config.expect for entry in _shapes(places, expect)]


def _tables(places: Places, table: PaperTable) -> Iterable[dict[str, Any]]:
    columns = [None] if table.columns is None else places.shown(table.columns, table.only)
    rows = [label for label in places.shown(table.rows, table.only) if label in table.values]
    for rest in places.left_over((table.rows, table.columns), table.only):
        tally, firsts = Tally(), []
        cells: dict[tuple[str, str | None], tuple[float, Number]] = {}
        for row in rows:
            for column in columns:
                known = table.value(row, column)
                place = {**rest, table.rows: row, **({table.columns: column} if table.columns and column else {})}
                if known is not None:
                    cells[row, column] = known, ends(places.row(place, table.metric))
        for column in columns:
            own = {row: cells[row, column] for row in rows if (row, column) in cells}
            _tally(tally, list(own.values()))
            able = {row: ours for row, (_, ours) in own.items() if ours is not None}
            if len(able) > 1:
                theirs = max(able, key=lambda row, own=own: own[row][0])  # type: ignore[misc]
                ours = max(able, key=lambda row, able=able: able[row][0])  # type: ignore[misc]
                firsts.append(f"highest{f' in {column}' if column else ''}: {_same(ours, theirs)}")
        for row in rows:
            _tally(tally, [cells[row, column] for column in columns if (row, column) in cells])
        if cells:
            where = ", ".join(filter(None, (table.where, places.named(rest, table.only))))
            single = [(known, ours) for known, ours in cells.values() if ours is not None]
            if len(cells) == 1 and single:
                (known, (value, low, high)) = single[0]
                firsts.append(f"{value:.3f} [{low:.3f}, {high:.3f}] here, {known:.3f} in the paper")
            yield _entry(where, f"order by {table.metric}" if len(cells) > 1 else table.metric, tally, firsts)


def _same(ours: str, theirs: str) -> str:
    return f"{ours} in both" if ours == theirs else f"{ours} here, {theirs} in the paper"


def _tally(tally: Tally, numbers: Sequence[tuple[float, Number]]) -> None:
    for (paper_a, a), (paper_b, b) in combinations(numbers, 2):
        if paper_a != paper_b:
            tally.add(*((a, b) if paper_a < paper_b else (b, a)))


def _shapes(places: Places, expect: Expect) -> Iterable[dict[str, Any]]:
    for rest in places.left_over((expect.x, expect.by), expect.only):
        tally = Tally()
        labels = places.shown(expect.x, expect.only)

        def number(line: str, label: str, rest: Place = rest) -> Number:
            if expect.by == "metric":
                return ends(places.row({**rest, expect.x: label}, line))
            return ends(places.row({**rest, expect.by: line, expect.x: label}, expect.metric))

        for line in expect.lines:
            values = [number(line, label) for label in labels]
            if expect.shape == "above":
                for other in expect.than:
                    for label, value in zip(labels, values, strict=True):
                        tally.add(number(other, label), value)
            elif expect.shape == "peak":
                _peak(tally, labels, values, expect.between)
            else:
                first, last = values[0], values[-1]
                tally.add(*((first, last) if expect.shape == "rises" else (last, first)))
        named = ", ".join(expect.lines)
        said = {
            "rises": f"{named} rises over {expect.x}",
            "falls": f"{named} falls over {expect.x}",
            "peak": f"{named} peaks inside {expect.between} of {expect.x}",
            "above": f"{named} above {', '.join(expect.than)} over {expect.x}",
        }[expect.shape]
        where = ", ".join(filter(None, (expect.where, places.named(rest, expect.only))))
        yield _entry(where, said if expect.by == "metric" else f"{said} ({expect.metric})", tally, [])


def _peak(tally: Tally, labels: Sequence[str], values: Sequence[Number], between: tuple[float, float] | None) -> None:
    """The highest inside against the ends outside: one pair below, one above."""
    low, high = between or (float("-inf"), float("inf"))
    known = [(float(label), value) for label, value in zip(labels, values, strict=True) if value is not None]
    inside = max((v for x, v in known if low <= x <= high), key=lambda v: v[0], default=None)
    for outside in ([v for x, v in known if x < low][:1], [v for x, v in known if x > high][-1:]):
        if outside:
            tally.add(outside[0], inside)


def _entry(where: str, what: str, tally: Tally, more: Sequence[str]) -> dict[str, Any]:
    line = f"{where}, {what}: " + "; ".join([str(tally), *more])
    counts = {"same": tally.same, "against": tally.against, "unclear": tally.unclear}
    return {"where": where, "what": what, "word": tally.word, **counts, "line": line}
