"""`indelible tabular probe`: the same probes and statistics on a model that was tuned elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indelible.environment import default_out, run_facts, training_facts
from indelible.errors import ConfigError
from indelible.progress import say
from indelible.runs import ROWS, RunDir
from indelible.stats.cohort import Column
from indelible.stats.evaluate import SIGNIFICANCE
from indelible.stats.intervals import Interval
from indelible.stats.metrics import Metric
from indelible.stats.paired import Paired
from indelible.stats.tabular import DEPLOYMENT, ERASED, POSITIVE, PRIMARY, TabularEvaluation
from indelible.stats.tabular_rows import (
    Row,
    as_row,
    columns_of,
    departure_minus,
    read_scores,
    read_side,
    separation_rows,
)
from indelible.stats.verdict import Control, Evidence, Verdict, judge
from indelible.tabular.block import lines
from indelible.tabular.config import TabularProbeConfig
from indelible.tabular.evaluate import evaluate_part, placed, records_of, scores_of
from indelible.tabular.files import check_files, read_given
from indelible.tabular.gates import Outcome, gates_of, tripped
from indelible.tabular.worlds import World, prove_on, world_of
from indelible.tabular.write import (
    METRICS,
    SPLIT,
    TABULAR,
    VERDICT,
    lean,
    model_facts,
    probe_facts,
    raw_frame,
    split_frame,
)
from indelible.training.budget import stream

KIND = "tabular-probe"
CONFIG_ID = "model"
FEATURES = "features-alone"
_FOLDS = 5


def run_probe(config: TabularProbeConfig, given: Mapping[str, Any], *, command: Sequence[str], force: bool) -> Outcome:
    """Ask a tuned model and its base about every row, and write the run directory.

    Raises:
        UserError: one line saying what to mend.
    """
    from indelible.attacks.tabular import PROBES
    from indelible.attacks.tabular_scores import score_rows
    from indelible.models.tabular import load_tabular
    from indelible.report.tabular import render_tabular

    gates = gates_of(config.fail_if)
    if config.out is not None:
        RunDir.check(config.out, force=force)
    started = time.monotonic()
    check_files(config)  # before the models, which take seconds
    tuned, base = (load_tabular(name, device=config.device) for name in (config.model, config.base))
    if tuned.fingerprint == base.fingerprint:
        raise ConfigError(
            f"--model {config.model} and --base {config.base} are the same weights: give the model before tuning"
        )
    files = read_given(config, min(tuned.max_classes, base.max_classes))
    prepared, split = files.prepared, files.split
    for role, counts in files.rows.items():
        say(f"{role}: {counts['used']} rows ({counts['repeated']} repeated ones removed)")
    say(prepared.said())
    out = Path(config.out or default_out("tabular-probe", Path(config.model.rpartition(":")[2]).name))
    world = world_of(prepared, split, tuned, seed=config.seed)
    say("\n".join([world.said(), *split.notes]))
    prove_on(tuned, world)
    run = RunDir.open(out, force=force)
    rows = np.sort(np.concatenate(list(world.groups.values())))
    names = list(PROBES)
    asking = time.monotonic()
    before = score_rows(base, world.probes, rows, names)
    after = score_rows(tuned, world.probes, rows, names)
    place: dict[str, Any] = {
        "config_id": CONFIG_ID, "table": prepared.label, "seed": config.seed, "learning_rate": float("nan"),
        "n_queries": len(split.members), "epoch": 0,
    }  # fmt: skip
    frame = lines(place, after, before, world)
    asked = time.monotonic()
    found = evaluate_part(frame, world, config, config.seed, blind_reason=f"see {FEATURES}")
    verdict, control = _against_features(found, frame, world, config)
    here = {
        "config_id": CONFIG_ID, "table": prepared.label, "profile": None, "defence": None, "n_queries": None,
        "learning_rate": None,
    }  # fmt: skip
    metrics = placed([*lean(found.metrics), *control], here, None, config.seed)
    run.write_parquet(TABULAR, frame)
    run.write_parquet(SPLIT, split_frame({(config.seed, len(split.members), prepared.label, False): world}))
    if config.with_text:
        run.write_parquet(ROWS, raw_frame(prepared))
    run.write_json(METRICS, metrics, nan_as_null=True)
    run.write_json(VERDICT, verdict.to_dict(), nan_as_null=True)
    own = {"table": prepared.label, "seed": config.seed, "n_queries": len(split.members)}
    manifest = {
        **run_facts(KIND, run.path, config, given, command, device=config.device),
        "dtype": "float32",
        "models": {"target": model_facts(tuned), "base": model_facts(base)},
        "data": {
            prepared.label: {"source": ", ".join(str(getattr(config, r)) for r in files.rows), **prepared.facts()}
        },
        "files": {role: {"source": getattr(config, role), **counts} for role, counts in files.rows.items()},
        "splits": [{**own, **world.facts()}],
        "configurations": [{**here, "seed": config.seed, "name": "model", "epoch": None, "word": verdict.word}],
        "probes": probe_facts(),
        "training": training_facts(Path(config.model.partition(":")[2])),
        "defences": None,
        "counts": {"configurations": 1, "metrics": len(metrics)},
        "not_run": [],
        "timings": {"reading": asking - started, "asking": asked - asking, "statistics": time.monotonic() - asked},
    }
    manifest["rows"] = manifest.pop("files")  # `files` is where a manifest lists hashes
    render_tabular(run.path, manifest)
    timings = {**manifest["timings"], "total": time.monotonic() - started}
    run.finish({**manifest, "timings": {name: round(seconds, 2) for name, seconds in timings.items()}})
    return Outcome(run.path, verdict, tripped(gates, {"": (metrics, verdict)}, verdict), (), _table(metrics, verdict))


def _table(metrics: Sequence[Row], verdict: Verdict) -> tuple[tuple[str, ...], ...]:
    """A line a score, for the terminal."""
    found = {(r["attack"], r["metric"]): r["value"] for r in metrics if r["part"] == "members" and r["model"] != "base"}
    lines = []
    for name in (*PRIMARY, POSITIVE, DEPLOYMENT, ERASED, FEATURES):
        control = verdict.controls.get(name)  # the numbers that the reasons above name, calibrated or not
        if control is None and (name, "auc") not in found:
            continue
        numbers = (control.auc, control.p_value) if control else (found[name, "auc"], found.get((name, "p_value")))
        word = verdict.attacks[name].word if name in verdict.attacks else "control"
        lines.append((name, *("n/a" if number is None else f"{number:.3f}" for number in numbers), word))
    return (("score", "AUC", "p", "verdict"), *lines)


def _against_features(
    found: TabularEvaluation, frame: Any, world: World, config: TabularProbeConfig
) -> tuple[Verdict, list[Row]]:
    """The verdict with a further control: a classifier that sees rows and labels and no model.

    Files are no random draw: members and non-members may differ in their rows alone. A score that separates them must
    then go beyond what the rows themselves give away, as texts do in the audit of language models.
    """
    side = read_side(records_of(world), "members", level=config.level, n_bootstrap=config.n_bootstrap, seed=config.seed)
    if side is None:
        return found.verdict, []
    blind, reason = features_alone(world, side.rows, side.cohort.member, config.seed)
    if blind is None:
        row = Metric(FEATURES, "none", "auc", None, reason=reason)
        controls = {**found.verdict.controls, FEATURES: Control(False, reason)}
        return replace(found.verdict, controls=controls), [as_row(row, "members")]
    column = Column(blind, {})
    rows = separation_rows(FEATURES, "none", column, side)
    area, p_value = rows[0], rows[1]["value"]
    columns = columns_of(side, *read_scores(scores_of(frame, world)))
    own = {name: [row for row in found.metrics if _own(row, name)] for name in PRIMARY}
    evidence: list[Evidence] = []
    for name in PRIMARY:
        if not own[name] or name not in found.verdict.attacks:  # not asked, or no test of its own
            continue
        by = {row["metric"]: row for row in own[name]}
        made = _evidence_of(name, by, by["p_holm"]["value"], by["smallest_auc"]["value"])
        if made.unusable is None and (made.p_holm or 0) <= SIGNIFICANCE:
            beyond = departure_minus(columns[name, "target"], column, side, either_side=False)
            made = replace(made, minus_blind=beyond)
        evidence.append(made)
    control = Control(True, None, area["value"], area["low"], area["high"], p_value)
    verdict = judge(evidence, {**found.verdict.controls, FEATURES: control}, SIGNIFICANCE)
    said = [reason for reason in found.verdict.reasons if " control " in reason or reason.startswith("the order")]
    said.append(f"blind control {FEATURES}: AUC {area['value']:.3f}, p = {p_value:.2g}: what rows alone give away")
    said += list(world.split.notes)
    return replace(verdict, reasons=(*verdict.reasons, *said)), rows


def _evidence_of(name: str, rows: Mapping[str, Row], p_holm: float | None, smallest_auc: float | None) -> Evidence:
    """What a verdict needs to know of one score, from its rows by metric.

    Args:
        name: under which it is judged.
    """
    area, minus = rows["auc"], rows.get("auc_minus_base") or {}
    if area["value"] is None or p_holm is None:
        return Evidence(name, unusable=area.get("reason") or "no test was possible")
    paired = None
    if minus.get("value") is not None:
        ends = Interval(minus["low"], minus["high"], minus["level"], minus["method"])
        paired = Paired(area["value"], area["value"] - minus["value"], minus["value"], ends, None)
    return Evidence(
        name, None, area["value"], area.get("low"), area.get("high"), rows["p_value"]["value"], p_holm=p_holm,
        minus_base=paired, base_reason=minus.get("reason") or "no score on the base model", smallest_auc=smallest_auc,
    )  # fmt: skip


def _own(row: Row, name: str) -> bool:
    return (row["attack"], row["model"], row["part"]) == (name, "target", "members")


def features_alone(
    world: World, rows: NDArray[np.int64], member: NDArray[np.bool_], seed: int
) -> tuple[NDArray[np.float64] | None, str | None]:
    """Out-of-fold log-odds of membership by logistic regression on encoded features and labels, five folds; or None
    with the reason."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if min(int(member.sum()), int((~member).sum())) < 2 * _FOLDS:
        return None, f"fewer than {2 * _FOLDS} members or non-members, too few for {_FOLDS} folds"
    labels = np.eye(world.prepared.n_classes)[np.asarray(world.probes.target, np.int64)[rows]]
    x = np.concatenate([world.probes.encoded[rows].astype(np.float64), labels], axis=1)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=stream(seed, "features alone") % 2**32)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000, class_weight="balanced"))
    scores = cross_val_predict(model, x, member, cv=folds, method="decision_function")
    return np.asarray(scores, np.float64), None
