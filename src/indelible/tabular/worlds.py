"""Tables split and encoded for one number of members and one seed: what models are tuned on and asked about."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indelible.data.table_splits import N_TRIES
from indelible.tabular.config import TabularRunConfig
from indelible.tabular.tables import Prepared, sizes
from indelible.training.budget import stream

if TYPE_CHECKING:
    from indelible.attacks.tabular import ProbeWorld
    from indelible.data.table_splits import TableSplit
    from indelible.data.tables import Table
    from indelible.models.tabular import TabularModel
    from indelible.training.tabular import TuneTask


def split_sha256(split: TableSplit, table: Table) -> str:
    """Hash of who is what, and of the labels that rows carry: of ids, not of row numbers."""
    digest = hashlib.sha256()
    for name in ("members", "nonmembers", "context", "reserve"):
        rows = np.asarray(getattr(split, name))
        digest.update(repr((name, [table.row_ids[i] for i in rows], np.asarray(split.target)[rows].tolist())).encode())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class World:
    """A table split for one number of members and one seed, encoded, as models are tuned on it and asked about it."""

    prepared: Prepared
    split: TableSplit
    probes: ProbeWorld

    @property
    def groups(self) -> dict[str, NDArray[np.int64]]:
        """Row numbers of members, non-members and the training context."""
        return {
            "member": np.asarray(self.split.members),
            "nonmember": np.asarray(self.split.nonmembers),
            "context": np.asarray(self.split.context),
        }

    def said(self) -> str:
        """For a person: the parts' sizes, and how alike labels of members and non-members are."""
        split = self.split
        sizes = f"{len(split.members)} members, {len(split.nonmembers)} non-members, {len(split.context)} context rows"
        alike = ", classes exactly equal" if split.matched_exactly else ""
        return f"{sizes}, {len(split.reserve)} in reserve; {split.distance_name} {split.distance:.4f}{alike}"

    def task(self, device: str = "cpu") -> TuneTask:
        """What a model on this device is tuned on; the reserve is held out."""
        import torch

        from indelible.training.tabular import TuneTask

        def part(rows: NDArray[np.int64]) -> tuple[Any, Any]:
            rows = np.asarray(rows)
            x = torch.from_numpy(np.array(self.probes.encoded[rows], np.float32))
            y = torch.from_numpy(np.array(self.probes.target[rows], np.int64))
            return x.to(device), y.to(device)

        held = part(self.split.reserve) if len(self.split.reserve) else (None, None)
        return TuneTask(*part(self.split.context), *part(self.split.members), self.prepared.n_classes, *held)

    def facts(self) -> dict[str, Any]:
        """For the manifest: sizes, how alike the two sides are, a hash of who is what."""
        split = self.split
        counts = {
            name: np.bincount(np.asarray(split.target)[rows], minlength=self.prepared.n_classes).tolist()
            for name, rows in self.groups.items()
        }
        return {
            "n_members": len(split.members),
            "n_nonmembers": len(split.nonmembers),
            "n_context": len(split.context),
            "n_reserve": len(split.reserve),
            "randomised": bool(split.randomised),
            "distance": float(split.distance),
            "distance_name": split.distance_name,
            "matched_exactly": bool(split.matched_exactly),
            "class_counts": counts,
            "sha256": split_sha256(split, self.prepared.table),
            "notes": list(split.notes),
        }


def make_world(
    prepared: Prepared, model: TabularModel, config: TabularRunConfig, *, n_members: int, seed: int, randomise: bool
) -> World:
    """Split and encode a table.

    Raises:
        DataError: the table cannot be split so, or two rows are the same to the model.
    """
    from indelible.data.table_splits import split_table
    from indelible.errors import DataError

    wanted = sizes(prepared, n_members, config)
    if isinstance(wanted, str):
        raise DataError(f"{prepared.label}: {wanted}")
    how: dict[str, Any] = {
        "n_members": wanted.members, "n_nonmembers": wanted.nonmembers, "n_context": wanted.context,
        "randomise": randomise, "exact": config.exact, "max_distance": config.max_distance,
    }  # fmt: skip
    split = with_numbers(prepared, split_table(prepared.table, seed=seed, **how))
    for attempt in range(1, N_TRIES):
        if _alike(split, config.max_distance):
            break
        drawn = split_table(prepared.table, seed=stream(seed, f"split {attempt}"), **how)
        split = min(split, with_numbers(prepared, drawn), key=lambda one: one.distance)
    if not _alike(split, config.max_distance):
        far = f"KS {split.distance:.3f} at best in {N_TRIES} draws, expected below {config.max_distance:g}"
        if not split.matched_exactly:
            raise DataError(f"{prepared.label}: {far}: ask for more query rows, or give max_distance")
        split = replace(split, notes=(*split.notes, f"{far}; kept, for the classes are matched exactly"))
    return world_of(prepared, split, model, seed=seed)


def _alike(split: TableSplit, limit: float) -> bool:
    """Whether the distance is below the limit as it is printed, to four digits: 0.05 less a rounding error is not."""
    return round(split.distance, 4) < limit


def with_numbers(prepared: Prepared, split: TableSplit) -> TableSplit:
    """The split of a table whose target was a number, its distance that of the numbers themselves: classes at quantiles
    are matched already. Other splits as they are.

    Source: IclMem, section 4.1, which asks for a Kolmogorov-Smirnov statistic below 0.05 where it regresses.
    """
    from indelible.data.table_matching import kolmogorov_smirnov

    if prepared.numbers is None:
        return split
    one, two = (prepared.numbers[np.asarray(rows)] for rows in (split.members, split.nonmembers))
    distance = kolmogorov_smirnov(one, two)
    note = f"KS of the numbers behind the classes, members against non-members: {distance:.4f}"
    return replace(split, distance=distance, distance_name="KS", notes=(*split.notes, note))


def world_of(prepared: Prepared, split: TableSplit, model: TabularModel, *, seed: int) -> World:
    """A split table as the model sees it.

    Raises:
        DataError: two different rows reach the model as equal numbers.
    """
    from indelible.attacks.tabular import probe_world
    from indelible.data.table_encoding import check_distinct

    encoding = model.encoder(prepared.table, np.asarray(split.context))
    probes = probe_world(prepared.table, split, encoding, seed=seed)
    used = np.concatenate([np.asarray(getattr(split, n)) for n in ("members", "nonmembers", "context", "reserve")])
    check_distinct(probes.encoded[used], [prepared.table.row_ids[i] for i in used])
    return World(prepared, split, probes)


def prove_on(model: TabularModel, world: World) -> None:
    """Prove that the model tells three rows of a table apart under contexts of copies, before anything is trained.

    Raises:
        ModelError: it does not.
    """
    from indelible.models.tabular_identity import prove_identity

    rows = np.concatenate([np.asarray(world.split.members), np.asarray(world.split.nonmembers)])[:3]
    prove_identity(model, world.probes.encoded[rows])
