"""Parts of a cohort: the control's records, members set aside, and the table of records."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from indelible.data.records import Record
from indelible.data.splits import Cohort, draw_part
from indelible.errors import ConfigError


def set_aside(cohort: Cohort, n_known: int, seed: int) -> Cohort:
    """The cohort with at least `n_known` of its members set aside, whole groups: known to the attacker, never scored.

    Raises:
        ConfigError: no other member would be left.
    """
    if n_known == 0:
        return cohort
    for n in range(n_known, len(cohort.members)):
        drawn = draw_part(cohort.members, n, seed, "known")
        groups = {r.group or r.id for r in drawn}
        known = tuple(r for r in cohort.members if (r.group or r.id) in groups)
        if len(known) >= n_known:
            break
    else:
        known = cohort.members
    if len(known) == len(cohort.members):
        raise ConfigError(too_few_members(n_known, len(cohort.members)))
    out = {r.id for r in known}
    rest = tuple(r for r in cohort.members if r.id not in out)
    note = f"{len(known)} of {len(cohort.members)} members set aside as known, never scored"
    return replace(cohort, members=rest, known=known, notes=(*cohort.notes, note))


def too_few_members(n_known: int, n_members: int) -> str:
    """Why members cannot be set aside."""
    return f"{n_known} known members are to be set aside, whole groups, of {n_members}: give more members"


def control_part(records: Sequence[Record], cohort: Cohort, n_most: int | None, seed: int) -> list[Record]:
    """At most `n_most` records a side, seeded, for the control on the base model; groups may be cut."""
    if n_most is None:
        return list(records)
    chosen: set[str] = set()
    for side in (cohort.members, cohort.nonmembers):
        ids = sorted(r.id for r in side)
        chosen |= set(random.Random(f"{seed}:control").sample(ids, min(n_most, len(ids))))
    return [r for r in records if r.id in chosen]


def records_frame(cohort: Cohort, n_tokens: Mapping[str, int]) -> pd.DataFrame:
    """`records.parquet`."""
    rows = [
        (r.id, member, r.group or r.id, n_tokens[r.id])
        for member, side in ((True, cohort.members), (False, cohort.nonmembers))
        for r in side
    ]
    frame = pd.DataFrame(rows, columns=["record_id", "member", "group", "n_target_tokens"])
    return frame.sort_values("record_id", ignore_index=True)
