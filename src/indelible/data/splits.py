"""From two or three tables to one cohort: what is kept out and counted, the reference pool, the seeded part.

Every choice depends on the records' content (or their own ids) and the seed, never on the order of a file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from indelible.data.duplicates import NearIndex, comparison_text, exact_key, jaccard, short_digest
from indelible.data.formats import Table
from indelible.data.records import Record
from indelible.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

Side = Literal["member", "nonmember", "pool"]
SIDES: tuple[Side, ...] = ("member", "nonmember", "pool")

REASONS: Mapping[str, str] = {
    "empty": "the target is blank",
    "also_member": "equal in normal form to a member",
    "also_nonmember": "pool record equal in normal form to a non-member",
    "duplicate": "equal in normal form to a kept record of its own side",
    "near_member": "near duplicate of a member, so no clean non-member",
    "near_nonmember": "pool record that is a near duplicate of a non-member",
    "group_on_other_side": "its group (such as the same question) holds a member, or for the pool a non-member",
    "near_duplicate": "near duplicate of a kept record of its own side",
    "too_long": "longer than the model's context; never cut",
    "not_sampled": "outside the seeded random part that max_records or max_pool takes",
}
"""Why a record is kept out, in the order in which the reasons are tried."""


@dataclass(frozen=True)
class Cohort:
    """Who is audited. A record is on one side only, its group too, and its id is unique.

    Attributes:
        members, nonmembers: the audited records, in the order of their ids.
        pool: reference records: never scored, never members.
        known: members that the attacker knows for certain: set aside after all else, never scored.
        dropped: reason (a key of `REASONS`) -> side -> count. With the kept ones they add up to the rows read; records
            reserved for the pool count as read on the non-members' side.
        notes: what was decided, one sentence each.
    """

    members: tuple[Record, ...]
    nonmembers: tuple[Record, ...]
    pool: tuple[Record, ...]
    dropped: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...]
    known: tuple[Record, ...] = ()


def build_cohort(
    members: Table,
    nonmembers: Table,
    pool: Table | None = None,
    *,
    max_records: int | None = None,
    seed: int = 0,
    pool_fraction: float = 0.1,
    max_pool: int | None = None,
    near_threshold: float = 0.8,
) -> Cohort:
    """Clean the tables against each other, set a pool aside, take the seeded part.

    Duplicates are searched in the whole tables, before any sampling: a non-member that equals a member which was not
    sampled was trained on all the same. A repeat of a member is dropped from the non-members and the pool, never from
    the members. Records of one group are near duplicates only when their targets are, since they share the prompt.

    Args:
        pool: reference records; without one, `pool_fraction` of the clean non-members, whole groups, is set aside.
        max_records: at most this many records a side, whole groups as far as they fit.
        max_pool: at most this many pool records.
        near_threshold: Jaccard similarity from which two texts are near duplicates.

    Errors:
        DataError: no member, non-member or (where one is given) pool record is left. ConfigError: a setting is out of
        range.
    """
    _check(max_records, max_pool, pool_fraction, near_threshold)
    tables: dict[Side, Table] = {"member": members, "nonmember": nonmembers}
    if pool is not None:
        tables["pool"] = pool
    dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)
    notes = [f"{side}s, {table.source}: {note}" for side, table in tables.items() for note in table.notes]
    for side, table in tables.items():
        dropped["empty"][side] = table.n_empty
    clean = _clean(tables, near_threshold, seed, dropped)
    for side, table in tables.items():
        if not clean[side]:
            _nothing_left(side, tables, dropped, table)

    audited = clean["nonmember"]
    if pool is not None:
        reserve = draw_part(clean["pool"], max_pool, seed, "pool")
        dropped["not_sampled"]["pool"] = len(clean["pool"]) - len(reserve)
    else:
        n_pool = max(1, round(pool_fraction * len(audited))) if pool_fraction and len(audited) > 1 else 0
        part = draw_part(audited, n_pool if max_pool is None else min(n_pool, max_pool), seed, "pool") if n_pool else []
        # Where no group fits, a part of one was taken: the whole of it leaves the audited side.
        groups = {_group_key(r) for r in part}
        whole_groups = [r for r in audited if _group_key(r) in groups]
        reserve = draw_part(whole_groups, max_pool, seed, "pool")
        dropped["not_sampled"]["nonmember"] += len(whole_groups) - len(reserve)
        audited = [r for r in audited if _group_key(r) not in groups]
        if not audited:
            raise DataError(
                f"{nonmembers.source}: its clean records form one group, which the reference pool would use up; "
                "expected more groups: give a pool of its own, or set the pool fraction to 0."
            )
        notes.append(f"{len(reserve)} of {len(clean['nonmember'])} clean non-members reserved as pool, never scored")
    sides: dict[Side, list[Record]] = {"pool": reserve}
    whole: dict[Side, list[Record]] = {"member": clean["member"], "nonmember": audited}
    for side, records in whole.items():
        sides[side] = draw_part(records, max_records, seed, "sample")
        n_out = len(records) - len(sides[side])
        dropped["not_sampled"][side] += n_out
        if n_out:
            notes.append(f"{len(sides[side])} of {len(records)} clean {side}s taken at random, seed {seed}")
    n_renamed = _rename_clashes(sides)
    if n_renamed:
        notes.append(f"{n_renamed} records had an id that another side uses too; a content digest was added to it")
    notes.extend(
        f"{n} {side} records dropped: {REASONS[reason]}"
        for reason in ("also_member", "near_member", "group_on_other_side")
        for side in ("nonmember", "pool")
        if (n := dropped[reason][side])
    )
    return Cohort(
        members=tuple(sides["member"]),
        nonmembers=tuple(sides["nonmember"]),
        pool=tuple(sides["pool"]),
        dropped={reason: {side: dropped[reason][side] for side in SIDES} for reason in REASONS},
        notes=tuple(notes),
    )


def split_frame(cohort: Cohort) -> pd.DataFrame:
    """The split ledger: one row a record, with `record_id`, `member` (bool), `group`, `side` (`known`: a member that is
    not scored)."""
    import pandas as pd

    sides = {"member": cohort.members, "nonmember": cohort.nonmembers, "pool": cohort.pool, "known": cohort.known}
    rows = [(r.id, side in ("member", "known"), r.group, side) for side, records in sides.items() for r in records]
    frame = pd.DataFrame(rows, columns=["record_id", "member", "group", "side"])
    return frame.astype({"record_id": str, "member": bool, "group": str, "side": str})


def _check(max_records: int | None, max_pool: int | None, pool_fraction: float, near_threshold: float) -> None:
    if max_records is not None and max_records < 1:
        raise ConfigError(f"max_records is {max_records}; expected at least 1, or none for all.")
    if max_pool is not None and max_pool < 1:
        raise ConfigError(f"max_pool is {max_pool}; expected at least 1, or none for all.")
    if not 0 <= pool_fraction < 1:
        raise ConfigError(f"pool_fraction is {pool_fraction}; expected at least 0 and below 1.")
    if not 0 < near_threshold <= 1:
        raise ConfigError(f"near_threshold is {near_threshold}; expected above 0 and at most 1.")


def _own_group(record: Record) -> bool:
    return record.group in ("", record.id)


def _group_key(record: Record) -> str:
    # A prefix, so that an id that happens to equal another record's group name stays apart.
    return f"id {record.id}" if _own_group(record) else f"group {record.group}"


@dataclass
class _Seen:
    """What the walk through the sides has met."""

    exact: dict[Side, set[str]] = field(default_factory=lambda: {side: set() for side in SIDES})
    groups: set[str] = field(default_factory=set)  # groups of the sides before this one
    kept: set[int] = field(default_factory=set)


def _clean(
    tables: Mapping[Side, Table], threshold: float, seed: int, dropped: Mapping[str, Counter[str]]
) -> dict[Side, list[Record]]:
    """Walk through members, non-members and pool, each in the order of ids; keep what nothing before it repeats."""
    walk = [(side, r) for side, table in tables.items() for r in sorted(table.records, key=lambda r: r.id)]
    index = NearIndex.build([comparison_text(r) for _, r in walk], threshold=threshold, seed=seed)
    seen = _Seen()
    clean: dict[Side, list[Record]] = {side: [] for side in SIDES}
    before: Side | None = None
    for i, (side, record) in enumerate(walk):
        if before is not None and side != before:
            # All members, dropped repeats too: their group was trained on. Of the non-members, those that are kept.
            of_before = tables["member"].records if before == "member" else clean[before]
            seen.groups |= {r.group for r in of_before if not _own_group(r)}
        before = side
        key = exact_key(record)
        reason = _reason(i, side, key, walk, seen, index, threshold)
        # A member is compared with whether it was kept or not, for it was trained on; others only once kept.
        if reason is None or (side == "member" and reason != "duplicate"):
            index.add(i)
        if side == "member" or reason is None:
            seen.exact[side].add(key)
        if reason is None:
            seen.kept.add(i)
            clean[side].append(record)
        else:
            dropped[reason][side] += 1
    return clean


def _reason(
    i: int, side: Side, key: str, walk: Sequence[tuple[Side, Record]], seen: _Seen, index: NearIndex, threshold: float
) -> str | None:
    """Why record `i` of the walk is kept out; None if it is kept."""
    record = walk[i][1]

    def near(other: Side) -> bool:
        return index.match(i, _near_on(other, record, walk, seen, own=other == side, threshold=threshold)) is not None

    others = SIDES[: SIDES.index(side)]
    for other in others:
        if key in seen.exact[other]:
            return f"also_{other}"
    if key in seen.exact[side]:
        return "duplicate"
    for other in others:
        if near(other):
            return f"near_{other}"
    if not _own_group(record) and record.group in seen.groups:
        return "group_on_other_side"
    return "near_duplicate" if near(side) else None


def _near_on(
    other: Side, record: Record, walk: Sequence[tuple[Side, Record]], seen: _Seen, *, own: bool, threshold: float
) -> Callable[[int], bool]:
    def accept(j: int) -> bool:
        side, before = walk[j]
        if side != other or (own and j not in seen.kept):
            return False
        # Answers to one question share a long prompt; they are copies only if the answers are.
        same_group = not _own_group(record) and before.group == record.group
        return not same_group or jaccard(before.target, record.target) >= threshold

    return accept


def _nothing_left(side: Side, tables: Mapping[Side, Table], dropped: Mapping[str, Counter[str]], table: Table) -> None:
    reasons = ", ".join(f"{n[side]} {reason}" for reason, n in dropped.items() if n[side])
    members = tables["member"]
    if side != "member" and (table.sha256 == members.sha256 or dropped["also_member"][side] == len(table.records)):
        raise DataError(
            f"{table.source} holds the same records as the member file {members.source}; expected {side} records "
            "that the model was not trained on: give a held-out file."
        )
    raise DataError(
        f"{table.source}: none of its {table.n_rows} rows is left as a {side} record ({reasons}); expected records "
        "that repeat no other and, save members, were not trained on: check which file is which."
    )


def draw_part(records: Sequence[Record], n_most: int | None, seed: int, purpose: str) -> list[Record]:
    """At most `n_most` records: whole groups that still fit, in a seeded order; part of a group only if none fits."""
    if n_most is None or len(records) <= n_most:
        return list(records)
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[_group_key(record)].append(record)
    order = sorted(groups, key=lambda g: short_digest(seed, purpose, g, n_hex=64))
    taken: list[Record] = []
    for name in order:
        if len(taken) + len(groups[name]) <= n_most:
            taken.extend(groups[name])
    if not taken:
        first = sorted(groups[order[0]], key=lambda r: short_digest(seed, purpose, r.id, n_hex=64))
        taken = first[:n_most]
    return sorted(taken, key=lambda r: r.id)


def _rename_clashes(sides: dict[Side, list[Record]]) -> int:
    """Make ids unique over the sides: every record whose id occurs twice gets a digest of its content, on each side."""
    uses = Counter(r.id for records in sides.values() for r in records)

    def renamed(r: Record) -> Record:
        if uses[r.id] == 1:
            return r
        name = f"{r.id}-{short_digest(r.text, n_hex=8)}"
        return replace(r, id=name, group=name if _own_group(r) else r.group)

    for side, records in sides.items():
        sides[side] = sorted((renamed(r) for r in records), key=lambda r: r.id)
    after = Counter(r.id for records in sides.values() for r in records)
    repeated = [name for name, n in after.items() if n > 1]
    if repeated:
        raise DataError(
            f"{len(repeated)} record ids are not unique over the cohort, such as '{repeated[0]}'; expected one id a "
            "record: mend the id column or leave it out."
        )
    return sum(n for n in uses.values() if n > 1)
