"""From answers of a tabular model to membership scores: log-probability, margin, each minus the base's, the suite.

Source: IclMem (arXiv 2606.31208), 4 and 4.2; the difference to the pre-trained model is the difficulty calibration of
Watson et al. 2022 with one reference. Higher means more member-like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from indelible.attacks.tabular import PROBES, ProbeWorld, TabularProbe, make_probe
from indelible.attacks.tabular_world import Codes
from indelible.errors import DataError, ModelError
from indelible.stats.tabular_rows import SAME_ANSWER

if TYPE_CHECKING:
    from torch import Tensor

    from indelible.models.tabular import TabularModel, TabularQueries

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Objects = NDArray[np.object_]
SUITE = "suite"
NO_BASE = "no base model was given"
NOT_FINITE = "the model gave a log-probability that is not finite"
NOT_SHOWN = "no row of its label stands in the context, and a model shows probabilities of the labels there only"
ALONE = "its label is the only one in the context: there is nothing to tell it from"


def score_rows(
    model: TabularModel,
    world: ProbeWorld,
    rows: ArrayLike,
    probes: Sequence[TabularProbe | str],
    state: Mapping[str, Tensor] | None = None,
) -> pd.DataFrame:
    """Scores of rows under every probe.

    Args:
        rows: (n,) row numbers of the table, each once.
        probes: probes, or names for those with default settings.
        state: parameters in place of the model's own, by name; the model itself is left as it is.

    Returns:
        One line a probe and row, probe by probe in the order given: row, probe, logprob, margin (`multiple_choice`),
        reason. Where a score does not exist both are NaN and `reason` says why.

    Raises:
        ModelError: `state` does not fit, or two rows reach the model as equal features. ConfigError: unknown probe.
        DataError: a row is there twice.
    """
    asked = np.asarray(rows, np.int64)
    if np.unique(asked).size != asked.size:
        raise DataError(f"probes: {asked.size - np.unique(asked).size} rows are asked for more than once")
    if state is not None:
        model = _with_state(model, state)
    frames = []
    for probe in (make_probe(p) if isinstance(p, str) else p for p in probes):
        logprob, margin = np.full((2, asked.size), np.nan)
        reason = np.array(probe.unfit(world, asked), dtype=object)
        fit = _none(reason)
        if fit.any():
            logprobs, shown = _answers(model, world, probe, asked[fit])
            choices, own = world.choices[asked[fit]], world.target[asked[fit]]
            logprob[fit], margin[fit], reason[fit] = multiple_choice(logprobs, shown, choices, own)
        line = {"row": asked, "probe": probe.name, "logprob": logprob, "margin": margin, "reason": reason}
        frames.append(pd.DataFrame(line))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*_COLUMNS])


_COLUMNS = ("row", "probe", "logprob", "margin", "reason")


def _none(reasons: Objects) -> Mask:
    """Where there is no reason against a score."""
    return np.array([reason is None for reason in reasons], dtype=bool)


def _with_state(model: TabularModel, state: Mapping[str, Tensor]) -> TabularModel:
    copied = model.clone()
    try:
        copied.module.load_state_dict({**copied.module.state_dict(), **state})
    except RuntimeError as error:
        why = " ".join(str(error).split())[:300]
        raise ModelError(f"{model.name}: the parameters to probe do not fit the network: {why}") from error
    return copied


def _answers(model: TabularModel, world: ProbeWorld, probe: TabularProbe, rows: Codes) -> tuple[Floats, Mask]:
    """Log-probabilities of all classes (n, n_classes), and which classes stand in the row's context (n, n_classes)."""
    if probe.identity:
        return _ask(model, probe.contexts(world, rows), rows)
    # Rows with the same candidates are one question here. It is asked once: asked in one batch, equal questions may get
    # answers that differ in the last bit, and ranks would then tell rows apart by their place.
    _, first, place = np.unique(world.choices[rows], axis=0, return_index=True, return_inverse=True)
    logprobs, shown = _ask(model, probe.contexts(world, rows[first]), None)
    return logprobs[place.reshape(-1)], shown[place.reshape(-1)]


def _ask(model: TabularModel, queries: TabularQueries, rows: Codes | None) -> tuple[Floats, Mask]:
    from indelible.models.tabular_identity import check_identity

    n_questions, n_queries = queries.query_x.shape[:2]
    if rows is not None:
        check_identity(queries, rows.reshape(n_questions, n_queries).tolist())
    logprobs = model.logprobs(queries).double().cpu().numpy().reshape(-1, queries.n_classes)
    labels = queries.context_y.cpu().numpy()
    shown = np.zeros((n_questions, queries.n_classes), bool)
    shown[np.arange(n_questions)[:, None], labels] = True
    return logprobs, np.repeat(shown, n_queries, axis=0)


def multiple_choice(logprobs: Floats, shown: Mask, choices: Codes, own: Codes) -> tuple[Floats, Floats, Objects]:
    """Log-probability and margin of each row's own label among its candidates.

    Args:
        logprobs: (n, n_classes) of all classes, up to a constant of the row.
        shown: (n, n_classes) whether a class stands in the context. Candidates that do not are left out.
        choices: (n, K') candidate labels. own: (n,) the label the row carries, one of them.

    Returns:
        log p(y) - log sum over candidates c of p(c), at most 0; log p(y) - max over c != y of log p(c); both in nats.
        Last (n,) the reasons, None where the scores exist, else they are NaN.

    The first is computed from the differences to y, so that two rows the model is sure of do not tie at 0 where float32
    has run out of digits.
    """
    z = np.take_along_axis(logprobs, choices, axis=1)  # (n, K')
    right = choices == own[:, None]
    stands = np.take_along_axis(shown, choices, axis=1)
    others = stands & ~right
    reason = np.full(len(own), None, dtype=object)
    reason[~(np.isfinite(z) | ~stands).all(axis=1)] = NOT_FINITE
    reason[~others.any(axis=1)] = ALONE
    reason[~(stands & right).any(axis=1)] = NOT_SHOWN
    known = _none(reason)
    logprob, margin = np.full((2, len(own)), np.nan)
    behind = np.where(others, z, -np.inf)[known] - z[right].reshape(-1, 1)[known]  # log p(c) - log p(y), others only
    most = behind.max(axis=1, initial=-np.inf)
    total = most + np.log(np.exp(behind - most[:, None]).sum(axis=1))
    logprob[known], margin[known] = -np.logaddexp(0.0, total), -most
    return logprob, margin, reason


@dataclass
class _Long:
    """Score columns (n,) of the same rows, gathered into the long form."""

    rows: NDArray[Any]
    parts: list[pd.DataFrame] = field(default_factory=list)

    def add(self, attack: str, model: str, score: Floats, reason: Objects) -> None:
        lost = reason.copy()
        lost[~np.isnan(score)] = None
        frame = {"row": self.rows, "attack": attack, "model": model, "score": score, "reason": lost}
        self.parts.append(pd.DataFrame(frame))

    def frame(self) -> pd.DataFrame:
        return pd.concat(self.parts, ignore_index=True)


def tabular_scores(tuned: pd.DataFrame, base: pd.DataFrame | None) -> pd.DataFrame:
    """All scores of a tuned model in long form: row, attack, model, score, reason (of a missing score).

    Args:
        tuned, base: what `score_rows` gave for the tuned and for the base model, on the same rows and probes.

    Names under model "target": a probe's own (log-probability minus the base's), `:raw` (log-probability alone),
    `:margin` (margin minus the base's), `:margin-raw`; over the probes of the suite `suite:mean` and `suite:min` (of
    the calibrated log-probabilities), `suite:mean-raw` and `suite:min-raw`. The base's own scores stand under the raw
    names with model "base". `row-order` has raw names alone. A probe with no score for any row is left out of the
    suite; a row that lacks one of the others has no suite score.

    Raises DataError for tables that do not fit together. Source: IclMem, 4.2; mean and minimum over the suite are our
    reading of "robust to context manipulations" (section 1). `copies` is left out of it where it is `copy` again.
    """
    order = list(dict.fromkeys(tuned["probe"]))
    stranger = [name for name in order if name not in PROBES]
    if stranger or not order:
        raise DataError(
            f"tabular scores: no known probe ({', '.join(stranger) or 'no rows'}); expected rows of score_rows"
        )
    rows = tuned["row"].unique()
    after = _wide(tuned, rows, order, "tuned")
    before = None if base is None else _wide(base, rows, order, "base")
    out = _Long(rows)
    for name in order:
        for kind, suffix in (("logprob", ""), ("margin", ":margin")):
            score, why = after[kind, name], after["reason", name]
            raw = f"{name}{suffix}-raw" if suffix else f"{name}:raw"
            if name != "row-order":
                out.add(name + suffix, "target", *_calibrated(score, why, before, kind, name))
            out.add(raw, "target", score, why)
            if before is not None:
                out.add(raw, "base", before[kind, name], before["reason", name])
    names = _suite_of(order, after, before)
    if names:
        calibrated = {
            name: _calibrated(after["logprob", name], after["reason", name], before, "logprob", name) for name in names
        }
        _add_suite(out, "target", "", calibrated)
        _add_suite(out, "target", "-raw", {name: (after["logprob", name], after["reason", name]) for name in names})
        if before is not None:
            _add_suite(out, "base", "-raw", {name: (before["logprob", name], before["reason", name]) for name in names})
    return out.frame()


Wide = dict[tuple[str, str], Any]


def _suite_of(order: Sequence[str], after: Wide, before: Wide | None) -> list[str]:
    """Probes that the suite is made of. `copies` is left out where both models answer it as they do `copy`: the same
    answer would count twice in the mean."""
    names = [name for name in order if PROBES[name].in_suite]
    if not {"copy", "copies"} <= set(names):
        return names
    both = [model for model in (after, before) if model is not None]
    apart = [np.abs(model["logprob", "copies"] - model["logprob", "copy"]) for model in both]
    known = np.concatenate(apart)
    known = known[np.isfinite(known)]
    return [name for name in names if name != "copies"] if known.size and known.max() <= SAME_ANSWER else names


def _wide(frame: pd.DataFrame, rows: NDArray[Any], order: Sequence[str], what: str) -> Wide:
    """(column, probe) -> array in the order of `rows`."""
    if frame.duplicated(["row", "probe"]).any():
        raise DataError(f"tabular scores: the {what} model has a row twice under one probe")
    wide: Wide = {}
    for name, part in frame.groupby("probe", sort=False):
        lined = part.set_index("row").reindex(rows)
        if len(part) != len(rows) or lined["probe"].isna().any():
            raise DataError(
                f"tabular scores: probe {name} of the {what} model has {len(part)} rows, not the {len(rows)} asked"
            )
        for column in ("logprob", "margin"):
            wide[column, str(name)] = lined[column].to_numpy(np.float64)
        reasons = lined["reason"].to_numpy(object, copy=True)
        reasons[pd.isna(reasons)] = None
        wide["reason", str(name)] = reasons
    lacking = [name for name in order if ("logprob", name) not in wide]
    if lacking:
        raise DataError(f"tabular scores: the {what} model was not asked with {', '.join(lacking)}")
    return wide


def _calibrated(score: Floats, why: Objects, before: Wide | None, kind: str, name: str) -> tuple[Floats, Objects]:
    if before is None:
        return np.full(score.shape, np.nan), np.full(score.shape, NO_BASE, dtype=object)
    of_base = np.array(
        [None if reason is None else f"base model: {reason}" for reason in before["reason", name]], object
    )
    return score - before[kind, name], np.where(_none(why), of_base, why)


def _add_suite(out: _Long, model: str, suffix: str, probes: Mapping[str, tuple[Floats, Objects]]) -> None:
    kept = {name: pair for name, pair in probes.items() if np.isfinite(pair[0]).any()} or dict(probes)
    values = np.stack([score for score, _ in kept.values()], axis=1)  # (n, n_probes)
    reason = np.full(len(values), None, dtype=object)
    for name, (score, why) in kept.items():
        here = np.isnan(score) & _none(reason)
        reason[here] = [text if text == NO_BASE else f"{name}: {text}" for text in why[here]]
    out.add(f"{SUITE}:mean{suffix}", model, values.mean(axis=1), reason)
    out.add(f"{SUITE}:min{suffix}", model, values.min(axis=1), reason)
