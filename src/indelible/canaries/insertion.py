"""The ordered training file: background rows, canaries in their places, and the way back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from indelible.canaries.base import Row
from indelible.canaries.schedule import update_of
from indelible.errors import DataError

Displacement = Literal["in-place", "drawn"]


def background_sequence(
    rows: Sequence[Row], *, n_rows: int, copies: int, order: Literal["shuffled", "epochs"], seed: int
) -> list[Row]:
    """Exactly n_rows background rows, in training order.

    The first u = ceil(n_rows / copies) of `rows` are used, each `copies` times; where that is not a whole number of
    passes, the first n_rows mod u of them once more than the others. "shuffled" mixes all copies in one sequence,
    "epochs" shuffles pass by pass; both hold the same rows. Raises DataError where `rows` has fewer than u.
    Source: sections A-A (16,544 rows, 4 copies, 66,176 rows), A-D (the passes).
    """
    n_unique = -(-n_rows // copies)
    if len(rows) < n_unique:
        raise DataError(
            f"{n_rows} rows of {copies} copies each need {n_unique} different background rows, the task gave "
            f"{len(rows)}: fewer rows or more copies"
        )
    passes = [list(rows[: min(n_unique, n_rows - start)]) for start in range(0, n_rows, max(n_unique, 1))]
    if order == "shuffled":
        mixed = [row for one in passes for row in one]
        random.Random(f"{seed}:background").shuffle(mixed)
        return mixed
    for number, one in enumerate(passes):
        random.Random(f"{seed}:background:{number}").shuffle(one)
    return [row for one in passes for row in one]


@dataclass(frozen=True)
class Insertion:
    """One appearance of a canary; a row of the ledger.

    Attributes:
        row: where it stands in the training file, from 0.
        update: the optimiser update that trains on it, from 1.
        canary_id: which canary.
        appearance: which of its appearances in the order of training, from 1.
        displaced: id of the background row that is not trained on because of it.
    """

    row: int
    update: int
    canary_id: str
    appearance: int
    displaced: str


def insert(
    background: Sequence[Row],
    slots: Mapping[str, tuple[int, ...]],
    *,
    displacement: Displacement,
    batch_size: int,
    seed: int,
) -> tuple[list[Row | str], list[Insertion]]:
    """Background rows with canary ids in their places, as long as `background`, and the ledger by ascending row.

    - "in-place": a canary takes the place of the background row there, all others stay where they are.
    - "drawn": which background places are emptied depends on the seed and the number of canary rows alone, and
      fewer canary rows empty a subset; the other rows keep their order in the places that canaries leave free. Designs
      that only move their canaries so train on the same background rows in the same order (sections V-B and A-D, the
      moved cohort). The ledger pairs the i-th canary row with the i-th emptied place; the pairing has no other meaning.

    Raises DataError for a place outside the file or one given twice. Source: section III-C (fixed training budget).
    """
    n_rows = len(background)
    owners = {row: canary for canary, rows in slots.items() for row in rows}
    n_slots = sum(len(rows) for rows in slots.values())
    if len(owners) < n_slots:
        raise DataError(f"{n_slots} canary appearances have only {len(owners)} different rows: each needs its own")
    if owners and (min(owners) < 0 or max(owners) >= n_rows):
        raise DataError(f"canary rows {min(owners)} to {max(owners)} reach outside the file of {n_rows} rows")
    taken = sorted(owners)
    emptied = _emptied(taken, n_rows, displacement, seed)
    sequence = _merge({row: owners[row] for row in taken}, _without(background, emptied), n_rows)
    seen: Counter[str] = Counter()
    insertions = []
    for row, place in zip(taken, emptied, strict=True):
        canary = owners[row]
        seen[canary] += 1
        insertions.append(Insertion(row, update_of(row, batch_size), canary, seen[canary], background[place].id))
    return sequence, insertions


def remove(
    sequence: Sequence[Row | str],
    insertions: Sequence[Insertion],
    displaced: Mapping[str, Row],
    *,
    displacement: Displacement,
    seed: int,
) -> list[Row]:
    """The background that `insert` was given: its exact inverse for the same displacement and seed.

    Args:
        sequence: what `insert` returned.
        insertions: its whole ledger, in any order.
        displaced: the rows it displaced, by id.

    Raises DataError where sequence and ledger do not belong together, or a displaced row is missing.
    """
    ledger = sorted(insertions, key=lambda one: one.row)
    places = {row for row, one in enumerate(sequence) if isinstance(one, str)}
    if len(places) != len(ledger) or any(one.row not in places or sequence[one.row] != one.canary_id for one in ledger):
        raise DataError(
            f"the ledger's {len(ledger)} canary rows are not the {len(places)} of the training file of {len(sequence)} "
            "rows: use the ledger that was written with this file"
        )
    missing = sorted({one.displaced for one in ledger} - displaced.keys())
    if missing:
        raise DataError(f"{len(missing)} displaced rows are missing, among them '{missing[0]}': give all of them")
    emptied = _emptied([one.row for one in ledger], len(sequence), displacement, seed)
    back = {place: displaced[one.displaced] for place, one in zip(emptied, ledger, strict=True)}
    rest = [one for one in sequence if not isinstance(one, str)]
    return [row for row in _merge(back, rest, len(sequence)) if not isinstance(row, str)]


def _emptied(taken: Sequence[int], n_rows: int, displacement: Displacement, seed: int) -> list[int]:
    """Background places without a row in the file, ascending; `taken` are the canary rows, ascending."""
    if displacement == "in-place":
        return list(taken)
    places = list(range(n_rows))
    random.Random(f"{seed}:displaced").shuffle(places)
    return sorted(places[: len(taken)])


def _without(background: Sequence[Row], emptied: Sequence[int]) -> list[Row]:
    gone = set(emptied)
    return [row for place, row in enumerate(background) if place not in gone]


def _merge(fixed: Mapping[int, Row | str], rest: Sequence[Row], n_rows: int) -> list[Row | str]:
    """`fixed` at its places, `rest` in its order in the others."""
    others = iter(rest)
    return [fixed[place] if place in fixed else next(others) for place in range(n_rows)]
