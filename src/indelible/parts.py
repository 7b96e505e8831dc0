"""Parts of a cohort: the control's records, members set aside, and the table of records."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from indelible.data.records import Record
from indelible.data.splits import Cohort, draw_part
from indelible.errors import ConfigError


def set_aside(cohort: Cohort, n_known: int, seed: int) -> tuple[Cohort, tuple[Record, ...]]:
    """The cohort without `n_known` members, whole groups, and those: known to the attacker, never scored.

    Raises:
        ConfigError: no more members than that.
    """
    if n_known == 0:
        return cohort, ()
    if len(cohort.members) <= n_known:
        raise ConfigError(
            f"{n_known} known members are to be set aside of {len(cohort.members)}: give more members, or leave out "
            "con-recall"
        )
    known = draw_part(cohort.members, n_known, seed, "known")
    ids = {r.id for r in known} | {r.id for r in cohort.members if r.group and r.group in {k.group for k in known}}
    rest = tuple(r for r in cohort.members if r.id not in ids)
    note = f"{len(cohort.members) - len(rest)} of {len(cohort.members)} members set aside as known, never scored"
    return replace(cohort, members=rest, notes=(*cohort.notes, note)), tuple(known)


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
