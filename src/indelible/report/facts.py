"""Looking things up in a run: metrics rows, scores, the order of the attacks, what stands out record by record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from indelible.report.format import MetricRow, is_number

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from indelible.runs import Run

BLIND = "bag-of-words"
"""The blind baseline: fitted on the words of the records, it never asks a model."""

COMBINED = "combined"
"""All scores of the run in one, fitted on the labels: an upper view and no evidence."""

FITTED = (COMBINED, BLIND)
"""Never ranked among the attacks; they stand below them, in this order."""

FPRS = (0.1, 0.01, 0.001)
N_EXPOSED = 20

_WORD_ORDER = ("detected", "not attributable", "not detected", "not evaluable")


@dataclass(frozen=True)
class Curve:
    """An ROC curve computed from the scores of one attack on one model."""

    fpr: npt.NDArray[np.float64]
    tpr: npt.NDArray[np.float64]
    n_members: int
    n_nonmembers: int


@dataclass(frozen=True)
class Exposed:
    """One member that stands out. `above` is the share of non-members it scores beyond."""

    record_id: str
    group: str
    n_target_tokens: int | None
    score: float
    above: float


@dataclass(frozen=True)
class Facts:
    """Read access to one run. Nothing here recomputes a number of metrics.json."""

    run: Run

    @cached_property
    def attacks(self) -> list[str]:
        """Every attack of the manifest, the metrics, the verdict or the scores, in that order; the fitted ones last."""
        names = [str(attack["name"]) for attack in self.run.manifest.get("attacks") or []]
        names += [str(row["attack"]) for row in self.run.metrics]
        names += [str(name) for name in self.run.verdict.get("attacks") or {}]
        names += [str(name) for name in self.run.scores["attack"].unique()]
        unique = list(dict.fromkeys(names))
        return [name for name in unique if name not in FITTED] + [name for name in FITTED if name in unique]

    @cached_property
    def _rows(self) -> dict[tuple[str, str, str], MetricRow]:
        return {
            (str(row["attack"]), str(row["metric"]), str(row.get("model") or "none")): row for row in self.run.metrics
        }

    def row(self, attack: str, metric: str, *models: str) -> MetricRow | None:
        """The metrics row of an attack, on the first of `models` that has one (default: target, then none)."""
        for model in models or ("target", "none"):
            if (attack, metric, model) in self._rows:
                return self._rows[attack, metric, model]
        return None

    def value(self, attack: str, metric: str, *models: str) -> float | None:
        """The value of `row`, or None."""
        value = (self.row(attack, metric, *models) or {}).get("value")
        return float(value) if is_number(value) else None

    def verdict(self, attack: str) -> Mapping[str, Any]:
        """The verdict of one attack; empty when there is none."""
        found = (self.run.verdict.get("attacks") or {}).get(attack)
        return found if isinstance(found, Mapping) else {}

    def word(self, attack: str) -> str:
        """The verdict word of one attack; "" when it has none."""
        return str(self.verdict(attack).get("word") or "")

    def reversed(self, attack: str) -> bool:
        """Members score lower than non-members: a departure in that direction is leakage too."""
        auc = self.value(attack, "auc")
        return auc is not None and auc < 0.5

    @cached_property
    def ranked(self) -> list[str]:
        """The attacks on the model, strongest first: by verdict, then p-value, then distance of AUC from one half."""

        def key(attack: str) -> tuple[int, float, float]:
            word = self.word(attack)
            order = _WORD_ORDER.index(word) if word in _WORD_ORDER else len(_WORD_ORDER)
            p_holm, auc = self.value(attack, "p_holm"), self.value(attack, "auc")
            return order, 2.0 if p_holm is None else p_holm, 0.0 if auc is None else -abs(auc - 0.5)

        return sorted((attack for attack in self.attacks if attack not in FITTED), key=key)

    @cached_property
    def strongest_first(self) -> list[str]:
        """The ranked attacks, then the fitted ones: the order of every table."""
        return [*self.ranked, *(name for name in self.attacks if name in FITTED)]

    @cached_property
    def _scores(self) -> pd.DataFrame:
        columns = self.run.records[["record_id", "member", "group", "n_target_tokens"]]
        joined = self.run.scores.merge(columns, on="record_id", how="inner")
        return joined[joined["score"].abs() < float("inf")]  # drops NaN too

    def scores(self, attack: str, model: str = "target") -> pd.DataFrame:
        """Finite scores of one attack on one model, with the columns of records.parquet."""
        wanted = (model, "none") if model == "target" else (model,)
        table = self._scores
        return table[(table["attack"] == attack) & table["model"].isin(wanted)]

    def split(self, attack: str, model: str = "target") -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Scores of the members and of the non-members."""
        table = self.scores(attack, model)
        member = table["member"].to_numpy(dtype=bool)
        values = table["score"].to_numpy(dtype=float)
        return values[member], values[~member]

    def curve(self, attack: str, model: str = "target") -> Curve | None:
        """The ROC curve; None when either side has no score."""
        from indelible.stats.roc import roc_curve

        members, nonmembers = self.split(attack, model)
        if not len(members) or not len(nonmembers):
            return None
        curve = roc_curve(members, nonmembers)
        return Curve(curve.fpr, curve.tpr, len(members), len(nonmembers))

    @cached_property
    def drawable(self) -> list[str]:
        """The ranked attacks that have scores on both sides."""
        return [attack for attack in self.ranked if all(len(side) for side in self.split(attack))]

    def flagged(self, attack: str, fpr: float) -> tuple[int, int, int, int] | None:
        """Members flagged, members, non-members flagged, non-members: strictly above the threshold in metrics.json.

        None when that rate does not exist for this cohort.
        """
        row = self.row(attack, f"tpr@{fpr:g}") or {}
        threshold = row.get("threshold")
        members, nonmembers = self.split(attack)
        if not is_number(row.get("value")) or not is_number(threshold) or not len(members):
            return None
        return int((members > threshold).sum()), len(members), int((nonmembers > threshold).sum()), len(nonmembers)

    def exposed(self, attack: str) -> list[Exposed]:
        """The members that score furthest in the direction of the departure, ties by id."""
        table = self.scores(attack)
        sign = -1.0 if self.reversed(attack) else 1.0
        nonmembers = sign * self.split(attack)[1]
        members = table[table["member"].astype(bool)]
        members = members.assign(oriented=sign * members["score"])
        top = members.sort_values(["oriented", "record_id"], ascending=[False, True]).head(N_EXPOSED)
        columns = (top[name] for name in ("record_id", "group", "n_target_tokens", "score", "oriented"))
        return [
            Exposed(
                str(record_id),
                group if isinstance(group, str) else "",
                int(n_tokens) if is_number(n_tokens) else None,
                float(score),
                float((nonmembers < oriented).mean()),
            )
            for record_id, group, n_tokens, score, oriented in zip(*columns, strict=True)
        ]
