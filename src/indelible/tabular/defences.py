"""Defences beside each other: what each leaves of the leakage, and what it costs in accuracy.

One training, fixed beforehand, is compared with the same one under each defence, and with a server that refuses
contexts no honest user would send. Leakage is measured on randomised labels. Accuracy cannot be: of randomised
labels nothing can be predicted. Each defence is therefore trained a second time on the true labels of the same rows,
and answers about held-out rows whose true labels are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.attacks.tabular import PROBES
from indelible.stats.tabular_rows import Row, columns_of, read_scores, read_side, separation_rows
from indelible.tabular.config import Statistics
from indelible.tabular.evaluate import records_of, scores_of
from indelible.tabular.worlds import World
from indelible.training.budget import stream

if TYPE_CHECKING:
    from indelible.models.tabular import TabularQueries

GUARD = "refuse-degenerate-contexts"
LEAKAGE = ("copy", "train-context", "suite:mean", "suite:min")
HONEST = 100
"""Contexts drawn at random from the reserve, to see how often the guard refuses a user who means no harm."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Guard:
    """What a server asks of a context before it answers.

    Attributes:
        rows_per_label: rows for each label in the context, at least.
        distinct: share of its rows that are different from each other, at least.
        contradictory: share of its rows that stand there with another label too, at most: one row under every label
            is what a multiple-choice context is made of.
        spread: standard deviation of its columns, on average, as a share of that of the training context, at least.

    Our own rules: the paper names no such defence.
    """

    rows_per_label: int = 4
    distinct: float = 0.5
    contradictory: float = 0.25
    spread: float = 0.25

    def reason(self, x: Floats, labels: NDArray[np.int64], reference: Floats) -> str | None:
        """Why a context is refused, or None where it is answered.

        Args:
            x: (C, F) its rows as the model sees them. labels: (C,).
            reference: (C', F) the training context, by which the server knows how rows spread.
        """
        n, n_labels = len(x), len(np.unique(labels))
        least = self.rows_per_label * max(2, n_labels)
        if n < least:
            return f"fewer than {least} rows"
        _, place, counts = np.unique(x, axis=0, return_inverse=True, return_counts=True)
        place = place.reshape(-1)
        if len(counts) < self.distinct * n:
            return "most rows repeat another"
        kinds = np.zeros((len(counts), int(labels.max()) + 1), bool)
        kinds[place, labels] = True
        if (kinds.sum(axis=1) > 1)[place].mean() > self.contradictory:
            return "the same row stands there under several labels"
        usual = reference.std(axis=0)
        varies = usual > 0
        if varies.any() and float((x.std(axis=0)[varies] / usual[varies]).mean()) < self.spread:
            return "its rows hardly differ"
        return None

    def reasons(self, queries: TabularQueries, reference: Floats) -> list[str | None]:
        """The same for every query of a batch, in order; a context that all share is looked at once."""
        x, y = queries.context_x.numpy(), queries.context_y.numpy()
        each = [self.reason(x[i], y[i], reference) for i in range(len(x))]
        return [reason for reason in each for _ in range(queries.query_x.shape[1])]


def refused(guard: Guard, world: World, names: list[str]) -> pd.DataFrame:
    """What the guard says to the probes about members and non-members: row, probe, refused (why, or None).

    Rows that a probe cannot be asked about are left out.
    """
    reference = world.probes.encoded[np.asarray(world.split.context)]
    rows = np.sort(np.concatenate([world.groups["member"], world.groups["nonmember"]]))
    frames = []
    for name in names:
        fit = np.array([reason is None for reason in PROBES[name].unfit(world.probes, rows)], bool)
        if fit.any():
            said = guard.reasons(PROBES[name].contexts(world.probes, rows[fit]), reference)
            frames.append(pd.DataFrame({"row": rows[fit], "probe": name, "refused": said}))
    return pd.concat(frames, ignore_index=True)


def guarded(part: pd.DataFrame, world: World, said: pd.DataFrame) -> pd.DataFrame:
    """Rows of tabular.parquet as they would be behind the guard: what it refuses has no score, and the reason."""
    ids = world.prepared.table.row_ids
    no = said[said["refused"].notna()]
    why = {(ids[row], probe): text for row, probe, text in zip(no["row"], no["probe"], no["refused"], strict=True)}
    keys = list(zip(part["record_id"], part["probe"], strict=True))
    hit = np.array([key in why for key in keys], bool)
    out = part.copy()
    for name in ("score", "margin"):
        out.loc[hit, name] = np.nan
    out.loc[hit, "reason"] = [f"refused: {why[key]}" for key, here in zip(keys, hit, strict=True) if here]
    return out


def refusal_rows(guard: Guard, world: World, said: pd.DataFrame) -> list[Row]:
    """Share of each probe's contexts that are refused, and of honest ones."""
    rows = []
    for name, part in said.groupby("probe", sort=False):
        reasons = part["refused"].dropna()
        row = _row(str(name), "refused", float(part["refused"].notna().mean()), len(part))
        rows.append({**row, "method": "; ".join(dict.fromkeys(reasons)) or "answered"})
    honest = honest_refusals(guard, world)
    rows.append(_row("honest", "refused", honest, HONEST))
    return rows


def honest_refusals(guard: Guard, world: World) -> float | None:
    """Share of refused contexts among some drawn at random from the reserve, as large as the training context; None
    where the reserve is empty."""
    reserve, context = np.asarray(world.split.reserve), np.asarray(world.split.context)
    if not len(reserve):
        return None
    rng = np.random.default_rng(stream(world.probes.seed, "honest contexts"))
    encoded, target = world.probes.encoded, np.asarray(world.probes.target, np.int64)
    n = min(len(context), len(reserve))
    drawn = [rng.choice(reserve, n, replace=False) for _ in range(HONEST)]
    return float(np.mean([guard.reason(encoded[r], target[r], encoded[context]) is not None for r in drawn]))


def leakage_rows(part: pd.DataFrame, world: World, config: Statistics, seed: int) -> list[Row]:
    """AUC of the scores that defences are compared by, and its p-value."""
    side = read_side(records_of(world), "members", level=config.level, n_bootstrap=config.n_bootstrap, seed=seed)
    if side is None:
        return []
    columns = columns_of(side, *read_scores(scores_of(part[part["group"] != "context"], world)))
    rows = []
    for name in LEAKAGE:
        if (name, "target") in columns:
            rows += separation_rows(name, "target", columns[name, "target"], side)
    return rows


def true_label_rows(part: pd.DataFrame, world: World, config: Statistics, seed: int) -> list[Row]:
    """Accuracy on held-out rows under a fresh context, of the tuned and of the base model, and the AUC of `copy`
    without label randomisation."""
    own = part[(part["probe"] == "fresh-context") & (part["group"] == "nonmember")]
    rows = []
    for model, column in (("target", "margin"), ("base", "base_margin")):
        known = own[column].dropna()
        value = float((known > 0).mean()) if len(known) else None
        row = _row("fresh-context", "accuracy", value, len(known), model)
        rows.append({**row, "reason": None if len(known) else _first(own["reason"])})
    found = leakage_rows(part, world, config, seed)
    return rows + [{**r, "metric": "auc_true_labels"} for r in found if (r["attack"], r["metric"]) == ("copy", "auc")]


def _row(attack: str, metric: str, value: float | None, n: int, model: str = "target") -> Row:
    reason = None if value is not None else "the reserve is empty"
    return {
        "attack": attack, "model": model, "metric": metric, "value": value, "part": "members", "n_members": 0,
        "n_nonmembers": n, "reason": reason,
    }  # fmt: skip


def _first(reasons: pd.Series[Any]) -> str:
    return next((str(reason) for reason in reasons.dropna()), "no row could be asked about")


def guard_facts(guard: Guard) -> Mapping[str, Any]:
    """For the manifest."""
    return dict(vars(guard))
