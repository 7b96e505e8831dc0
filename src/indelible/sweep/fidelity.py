"""How well in-context probing foretells a real gradient step (ICP-MIA, Sec. IV-C, Fig. 4 and 5)."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.attacks.base import Resources
from indelible.attacks.context import IcpReference
from indelible.data.records import Query, Record
from indelible.environment import run_facts
from indelible.errors import Unscorable
from indelible.interview import Interview, prepare
from indelible.models.causal import CausalModel, describe
from indelible.progress import Progress
from indelible.runs import RunDir
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import ENGINE_VERSION
from indelible.stats.metrics import Metric
from indelible.sweep.config import FidelityOptions
from indelible.sweep.data import RowSet
from indelible.sweep.gap import DROPS
from indelible.sweep.numbers import mean_row, spearman_rows
from indelible.sweep.steps import fitting, load_trainable, log_likelihoods, one_step, restored

KIND = "sweep-fidelity"
ATTACK = "icp-ref"


def run_fidelity(
    options: FidelityOptions, model: str, records: RowSet, pool: RowSet, *, seed: int, out: Path, level: float = 0.95
) -> Path:
    """Measure both drops on `runs` batches of `batch` records, and write them with their rank correlation.

    Of a record (x, y), in nats over the whole answer (Eq. 4 to 7): the step's drop is LL(y|x; M') - LL(y|x; M), M' the
    model after one optimiser step on the batch; the probe's is max_j LL(y|C_j,x; M) - LL(y|x; M), C_j the pool records
    most similar to it. Correlated are the records of all batches together.

    Differs from the paper: it states neither optimiser nor size of the step, nor whether a step is taken on the batch
    (as here by default) or on each record (`step: record`); p-value and number of its records fit the pooled form.

    Raises:
        UserError: no record fits, or the embedder is missing.
    """
    started = time.monotonic()
    loaded, source = load_trainable(model, options.load)
    batches = draw_batches(fitting(loaded, records.records), options.runs, options.batch, seed)
    asked = list({r.id: r for batch in batches for r in batch}.values())
    probe = probe_drops(loaded, asked, pool.records, options, seed)
    frames = []
    with Progress("gradient steps", total=sum(map(len, batches)), unit="records") as progress:
        for number, batch in enumerate(batches):
            step, n_tokens = step_drops(loaded, batch, options)
            frames.append(
                pd.DataFrame(
                    {
                        "run": number,
                        "record_id": [r.id for r in batch],
                        "n_target_tokens": n_tokens,
                        "step_drop": step,
                        "icp_drop": [probe[r.id] for r in batch],
                    }
                )
            )
            progress.advance(len(batch))
    frame = pd.concat(frames, ignore_index=True)
    run = RunDir.open(out)
    run.write_parquet(DROPS, frame)
    run.write_json("metrics.json", [m.to_dict() for m in fidelity_metrics(frame, level)], nan_as_null=True)
    facts = run_facts(KIND, run.path, options, {}, [], device=str(loaded.device))
    timings = {"total": round(time.monotonic() - started, 2)}
    run.finish({**facts, "models": {"target": describe(loaded, source)}, "seeds": {"seed": seed}, "timings": timings})
    return run.path


def draw_batches(records: Sequence[Record], runs: int, batch: int, seed: int) -> list[list[Record]]:
    """Batches at random: no record twice as long as there are enough, else none twice in a batch."""
    rng = random.Random(f"{seed}:fidelity")
    batch = min(batch, len(records))
    ordered = sorted(records, key=lambda r: r.id)
    if runs * batch <= len(ordered):
        drawn = rng.sample(ordered, runs * batch)
        return [drawn[i * batch : (i + 1) * batch] for i in range(runs)]
    return [rng.sample(ordered, batch) for _ in range(runs)]


def probe_drops(
    model: CausalModel, records: Sequence[Record], pool: Sequence[Record], options: FidelityOptions, seed: int
) -> dict[str, float]:
    """By how much the best of the `top` most similar pool records raises each record's log-likelihood, nats; NaN where
    that cannot be said."""
    attack = IcpReference(k=options.top, embed=options.embed, reduce="sum", probes="best")
    resources = Resources(pool=pool, seed=seed, embedder=options.embedder)
    prepared = prepare([attack], records, resources)
    cache = AnswerCache(engine_version=ENGINE_VERSION) if options.cache else None
    try:
        answers = Interview({"target": model}, cache).ask([attack], prepared, stage="probes")
    finally:
        if cache is not None:
            cache.close()
    out = {}
    for record in prepared:
        try:
            out[record.id] = -attack.score(record, answers)
        except Unscorable:
            out[record.id] = math.nan
    return out


def step_drops(
    model: CausalModel, records: Sequence[Record], options: FidelityOptions
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """By how much one gradient step raises the log-likelihood of each record of a batch (nats), and its tokens.

    The weights are afterwards what they were, bit for bit.
    """
    before, n_tokens = log_likelihoods(model, records)
    encoded = [model.encode(Query(r.messages, r.target)) for r in records]
    together = options.step == "batch"
    after = np.empty(len(records))
    for at in [list(range(len(records)))] if together else [[i] for i in range(len(records))]:
        with restored(model) as parameters:
            one_step(
                model,
                parameters,
                [encoded[i] for i in at],
                optimiser=options.optimiser,
                learning_rate=options.learning_rate,
                max_grad_norm=options.max_grad_norm,
            )
            after[at], _ = log_likelihoods(model, [records[i] for i in at])
    return after - before, n_tokens


def fidelity_metrics(frame: pd.DataFrame, level: float) -> list[Metric]:
    """Spearman's correlation of the two drops over all records: whole answers, a token of the answer, and the mean of
    the batches' own, with its t-interval over the batches."""
    step, probe = (frame[name].to_numpy(dtype=float) for name in ("step_drop", "icp_drop"))
    n_tokens = frame["n_target_tokens"].to_numpy(dtype=float)
    rows = spearman_rows(ATTACK, step, probe, level=level)
    rows += spearman_rows(ATTACK, step / n_tokens, probe / n_tokens, level=level, metric="spearman_token")
    single = []
    for _, part in frame.groupby("run"):
        found = spearman_rows(ATTACK, part["step_drop"].to_numpy(float), part["icp_drop"].to_numpy(float), level=level)
        if found[0].value is not None:
            single.append(found[0].value)
    by_run = Metric(ATTACK, "target", "spearman_run", None, reason="no run has a correlation")
    if single:
        over = mean_row(
            ATTACK, "target", "spearman_run", single, [str(i) for i in range(len(single))], level=level, member=False
        )
        method = f"mean of {len(single)} runs, from {min(single):.3f} to {max(single):.3f}; t over them"
        by_run = replace(over, method=method, n_nonmembers=len(frame))
    rows.append(by_run)
    for name, values in (("step_drop", step), ("icp_drop", probe)):
        finite = values[np.isfinite(values)]
        value = float(finite.mean()) if len(finite) else None
        why = None if len(finite) else "no record has a value"
        rows.append(Metric(ATTACK, "target", name, value, method="mean, nats", n_nonmembers=len(finite), reason=why))
    return rows
