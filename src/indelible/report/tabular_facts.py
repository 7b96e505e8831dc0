"""A tabular run as read back, and its numbers by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indelible.report.format import MetricRow, is_number

RUN, PROBE = "tabular", "tabular-probe"
KINDS = (RUN, PROBE)

_AXES = ("table", "profile", "defence", "n_queries", "learning_rate")


@dataclass(frozen=True)
class Place:
    """A cell of the grid: what is the same for all of its seeds. Of a model tuned elsewhere only the table is known."""

    table: str
    profile: str | None = None
    defence: str | None = None
    n_queries: int | None = None
    learning_rate: float | None = None

    @property
    def label(self) -> str:
        """For a table's head: `Q 50, rate 0.001`."""
        if self.learning_rate is None:
            return "the model as given"
        profile = "" if self.profile in (None, "controlled") else f"{self.profile}, "
        return f"{profile}Q {self.n_queries}, rate {self.learning_rate:g}"


@dataclass(frozen=True)
class TabularRun:
    """A tabular run as read back."""

    path: Path
    manifest: Mapping[str, Any]
    metrics: list[dict[str, Any]]
    verdict: Mapping[str, Any]
    _rows: dict[tuple[Any, ...], MetricRow] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        last = {one.get("config_id"): one.get("epoch") for one in self.manifest.get("configurations") or []}
        for row in self.metrics:
            place = place_of(row)
            epoch = row.get("epoch")
            own = (row["attack"], row["metric"], row["model"], row.get("part", "members"))
            self._rows[place, row.get("seed"), epoch, *own] = row
            if row.get("seed") is not None and row.get("config_id") in last and epoch == last[row.get("config_id")]:
                self._rows[place, row["seed"], "last", *own] = row

    @property
    def name(self) -> str:
        """The name in the manifest, else that of the folder."""
        return str(self.manifest.get("name") or self.path.resolve().name)

    @property
    def is_probe(self) -> bool:
        """Whether the model was tuned elsewhere."""
        return self.manifest.get("kind") == PROBE

    @property
    def randomised(self) -> bool:
        """Whether the grid was tuned on shuffled labels; the comparison of defences has trainings on both."""
        resolved = (self.manifest.get("config") or {}).get("resolved") or {}
        return not self.is_probe and bool(resolved.get("randomise"))

    @property
    def tables(self) -> list[str]:
        """Labels of the tables, in the order of the settings."""
        return list(self.manifest.get("data") or {})

    @property
    def seeds(self) -> list[int]:
        """Seeds that ran."""
        return list(dict.fromkeys(one["seed"] for one in self.manifest.get("configurations") or []))

    def places(self, table: str | None = None) -> list[Place]:
        """Cells of the grid, in the order in which they ran."""
        found = dict.fromkeys(place_of(one) for one in self.manifest.get("configurations") or [])
        return [place for place in found if table is None or place.table == table]

    def defences(self, table: str) -> list[tuple[Mapping[str, Any], Place]]:
        """Facts and place of every defence of a table."""
        places = {row["defence"]: place_of(row) for row in self.metrics if row.get("defence") and row["table"] == table}
        facts = [one for one in self.manifest.get("defences") or [] if one.get("table") == table]
        return [(one, places[one["defence"]]) for one in facts if one.get("defence") in places]

    def row(
        self,
        place: Place,
        attack: str,
        metric: str,
        *,
        model: str = "target",
        part: str = "members",
        seed: int | None = None,
        epoch: int | str | None = None,
    ) -> MetricRow | None:
        """A number: over the seeds unless one is named, at the last epoch unless another is. With one seed it is that
        seed's own, whose reason is not wrapped in how many seeds have none."""
        own = (attack, metric, model, part)
        if seed is None and epoch is None and len(self.seeds) == 1:
            found = self.row(place, attack, metric, model=model, part=part, seed=self.seeds[0])
            return found if found is not None else self._rows.get((place, None, None, *own))
        if seed is not None and epoch is None:
            found = self._rows.get((place, seed, "last", *own))
            return found if found is not None else self._rows.get((place, seed, None, *own))
        return self._rows.get((place, seed, epoch, *own))

    def value(self, place: Place, attack: str, metric: str, **more: Any) -> float | None:
        """The number itself, None where there is none."""
        row = self.row(place, attack, metric, **more)
        return float(row["value"]) if row is not None and is_number(row.get("value")) else None

    def by_seed(self, place: Place, attack: str, metric: str, **more: Any) -> list[tuple[int, MetricRow]]:
        """The rows of each seed at its last epoch."""
        rows = ((seed, self.row(place, attack, metric, seed=seed, **more)) for seed in self.seeds)
        return [(seed, row) for seed, row in rows if row is not None]

    def reference(self, table: str) -> Place | None:
        """The cell that is shown in full: the fewest query rows, controlled where that ran, and of its learning rates
        the one that fitted members' labels best, the smaller of equals. No score of a probe plays a part."""
        places = self.places(table)
        if not places:
            return None
        first = min(places, key=lambda p: (p.profile != "controlled", p.n_queries or 0))
        same = [p for p in places if (p.profile, p.n_queries) == (first.profile, first.n_queries)]
        return max(same, key=lambda p: (self.value(p, "training", "accuracy") or 0.0, -(p.learning_rate or 0.0)))

    def curve(self, place: Place, attack: str, metric: str) -> list[tuple[int, float]]:
        """Mean over seeds after every probe epoch that all of them reached."""
        found: dict[int, list[float]] = {}
        for row in self.metrics:
            if (
                row.get("seed") is not None and row.get("epoch") is not None and row["attack"] == attack
                and row["metric"] == metric and row["model"] == "target" and row.get("part", "members") == "members"
                and is_number(row.get("value")) and place_of(row) == place
            ):  # fmt: skip
                found.setdefault(int(row["epoch"]), []).append(float(row["value"]))
        most = max(map(len, found.values()), default=0)
        return [(epoch, sum(v) / len(v)) for epoch, v in sorted(found.items()) if len(v) == most]

    def n_classes(self, table: str) -> int:
        """Classes of a table."""
        return len(((self.manifest.get("data") or {}).get(table) or {}).get("classes") or [])

    def splits(self, table: str) -> Iterator[Mapping[str, Any]]:
        """Facts of every split of a table."""
        return (one for one in self.manifest.get("splits") or [] if one.get("table") == table)


def place_of(row: Mapping[str, Any]) -> Place:
    """The cell that a row, or a configuration of the manifest, belongs to."""
    return Place(*(row.get(name) for name in _AXES))  # type: ignore[arg-type]


def read_tabular(path: Path | str, manifest: Mapping[str, Any] | None = None) -> TabularRun:
    """Read a tabular run; `manifest` is the draft of one about to be finished.

    Raises:
        UserError: the run is missing, unfinished, or of another kind. DataError: a file of it cannot be read.
    """
    from indelible.errors import UserError
    from indelible.runs import read_json, read_manifest

    path = Path(path)
    found = read_manifest(path) if manifest is None else manifest
    if found.get("kind") not in KINDS:
        raise UserError(f"{path} is a run of kind {found.get('kind')}, expected {' or '.join(KINDS)}.")
    return TabularRun(path, found, read_json(path / "metrics.json", list), read_json(path / "verdict.json", dict))
