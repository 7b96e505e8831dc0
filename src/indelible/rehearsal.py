"""What comes after a run's questions (a check in float32, statistics, the report) and how long it will take."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from indelible.attacks.base import Attack
from indelible.config import AuditConfig
from indelible.data.records import Record
from indelible.data.splits import Cohort
from indelible.interview import Interview
from indelible.parts import records_frame
from indelible.selection import expand
from indelible.stats.blind import BLIND_ATTACK
from indelible.stats.combined import COMBINED
from indelible.stats.evaluate import evaluate

SHORT, LONG = 1, 8
"""Permutations of the blind control's test in two rehearsals of the statistics; of the combination's, twice as many."""

SAMPLE = 100
"""Questions whose mean length is taken."""

SLOWER = 3.0
"""How much longer a token takes in the plain float32 check, one question at a time."""

REPORT_SECONDS, REPORT_SECONDS_AN_ATTACK = 1.0, 0.03
"""Figures, pages and tables of a run, measured on one core: too little to rehearse."""


def check_seconds(interview: Interview, a_token: float, config: AuditConfig, load_seconds: float) -> float:
    """Of the check of a few answers in float32 (`drift`): so many of mean length, and loading the model for it.

    Args:
        a_token: seconds that the audited model takes for one. load_seconds: what loading one model took.
    """
    import torch

    from indelible.models.causal import CausalModel

    model = interview.models["target"]
    found = list(interview.found(model))[:SAMPLE]
    if not (config.drift_records and found and isinstance(model, CausalModel) and config.load.quantise == "none"):
        return 0.0
    length = sum(len(model.encode(query)) for query in found) / len(found)
    loading = 0.0 if model.dtype == torch.float32 else load_seconds
    return config.drift_records * length * a_token * SLOWER + loading


def statistics_seconds(
    attacks: Sequence[Attack],
    control: Sequence[Record],
    cohort: Cohort,
    lengths: Mapping[str, int],
    config: AuditConfig,
) -> float:
    """Of the statistics on these records, by rehearsals on random scores with few permutations and a few more.

    Args:
        control: the records that have a score on the base too. lengths: tokens by record id.
    """
    frame = records_frame(cohort, lengths)
    audited = [*cohort.members, *cohort.nonmembers]
    rng = np.random.default_rng([config.seed, 7])
    rows = [
        (r.id, attack.name, subject, rng.normal(), None)
        for subject, part in (("target", audited), ("base", control))
        for attack in attacks
        for r in part
    ]
    scores = pd.DataFrame(rows, columns=["record_id", "attack", "model", "score", "reason"])
    fitted = {BLIND_ATTACK, COMBINED} & {*expand(config.attacks)}

    def took(n_permutations: int) -> float:
        started = time.monotonic()
        evaluate(
            frame,
            scores,
            texts={r.id: r.text for r in audited} if BLIND_ATTACK in fitted else None,
            seed=config.seed,
            level=config.level,
            n_bootstrap=config.n_bootstrap,
            blind_permutations=n_permutations,
            combined=COMBINED in fitted,
            combined_permutations=2 * n_permutations,
        )
        return time.monotonic() - started

    if not fitted:
        return took(SHORT)
    import sklearn.ensemble
    import sklearn.feature_extraction.text
    import sklearn.linear_model  # noqa: F401 - loaded once: no part of the statistics

    few, more = took(SHORT), took(LONG)
    whole = inspect.signature(evaluate).parameters["blind_permutations"].default
    return few + max(more - few, 0.0) * float(whole - SHORT) / (LONG - SHORT)


def report_seconds(attacks: Sequence[Attack]) -> float:
    """Of the report and the files of a run."""
    return REPORT_SECONDS + REPORT_SECONDS_AN_ATTACK * len(attacks)
