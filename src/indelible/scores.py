"""`indelible score`: scores made elsewhere get the same statistics and the same report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from indelible.attacks import FITTED
from indelible.audit import Outcome
from indelible.config import ScoreConfig
from indelible.environment import default_out, run_facts
from indelible.errors import DataError
from indelible.report import render
from indelible.runs import RunDir
from indelible.stats.blind import BLIND_ATTACK
from indelible.stats.evaluate import evaluate
from indelible.stats.gate import parse_gate

REQUIRED = ("record_id", "member", "attack", "score")
OPTIONAL = ("model", "group", "n_target_tokens", "reason")

MODELS = ("target", "base", "none")

_TRUE = {"1", "1.0", "true", "yes", "member"}
_FALSE = {"0", "0.0", "false", "no", "nonmember", "non-member"}


def read_scores(path: str) -> pd.DataFrame:
    """A score table: CSV, TSV, JSONL, JSON or Parquet with `record_id`, `member`, `attack`, `score`.

    `model` (target or base; target where absent), `group`, `n_target_tokens` and `reason` are optional.

    Raises:
        DataError: unreadable, a column missing, a membership that is neither yes nor no, a score that is not a finite
            number (a missing score is a row with a `reason`, or no row), a record that is both.
    """
    frame = _read(Path(path))
    missing = [c for c in REQUIRED if c not in frame.columns]
    if missing:
        raise DataError(
            f"{path}: column {missing[0]!r} is missing; found {', '.join(map(str, frame.columns))}; "
            f"expected {', '.join(REQUIRED)} and optionally {', '.join(OPTIONAL)}"
        )
    if frame.empty:
        raise DataError(f"{path}: no rows")
    frame = frame.copy()
    frame["record_id"] = frame["record_id"].astype(str)
    frame["attack"] = frame["attack"].astype(str)
    frame["member"] = _membership(frame["member"], path)
    frame["model"] = frame["model"].fillna("target").astype(str) if "model" in frame.columns else "target"
    odd = ~frame["model"].isin(MODELS)
    if odd.any():
        raise DataError(
            f"{path}: model is {frame['model'][odd].iloc[0]!r}; expected {', '.join(MODELS)}, or no such column"
        )
    frame["reason"] = frame["reason"] if "reason" in frame.columns else None
    numbers = pd.to_numeric(frame["score"], errors="coerce").astype(float)
    unexplained = (~numbers.apply(lambda v: abs(v) < float("inf"))) & frame["reason"].isna()
    if unexplained.any():
        row = int(unexplained.to_numpy().argmax())
        raise DataError(
            f"{path}: row {row + 1} (record {frame['record_id'].iloc[row]!r}, attack {frame['attack'].iloc[row]!r}) "
            f"has score {frame['score'].iloc[row]!r}; expected a finite number: leave the row out, or say why in a "
            "'reason' column"
        )
    frame["score"] = numbers
    both = frame.groupby("record_id")["member"].nunique()
    if (both > 1).any():
        raise DataError(f"{path}: record {both[both > 1].index[0]!r} is a member in one row and not in another")
    twice = frame.duplicated(["record_id", "attack", "model"])
    if twice.any():
        again = frame[twice].iloc[0]
        raise DataError(f"{path}: record {again['record_id']!r} has two scores of attack {again['attack']!r}")
    return frame


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a table with columns {', '.join(REQUIRED)}")
    try:
        match path.suffix.lower():
            case ".parquet":
                return pd.read_parquet(path)
            case ".jsonl":
                return pd.read_json(path, lines=True, dtype={"record_id": str})
            case ".json":
                return pd.read_json(path, dtype={"record_id": str})
            case ".tsv":
                return pd.read_csv(path, sep="\t", dtype={"record_id": str})
            case _:
                return pd.read_csv(path, dtype={"record_id": str})
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise DataError(f"{path} cannot be read as a score table: {' '.join(str(error).split())[:200]}") from error


def _membership(column: pd.Series[Any], path: str) -> pd.Series[bool]:
    text = column.astype(str).str.strip().str.lower()
    odd = ~text.isin(_TRUE | _FALSE)
    if odd.any():
        raise DataError(
            f"{path}: member is {column[odd].iloc[0]!r} in row {int(odd.to_numpy().argmax()) + 1}; "
            "expected 1/0 or true/false"
        )
    return text.isin(_TRUE)


def run_score(config: ScoreConfig, given: Mapping[str, Any], *, command: Sequence[str]) -> Outcome:
    """Evaluate a score table and write the run directory.

    Raises:
        UserError: one line saying what to mend.
    """
    gates = [parse_gate(text) for text in config.fail_if]
    frame = read_scores(config.file)
    records = frame.drop_duplicates("record_id")
    records = pd.DataFrame(
        {
            "record_id": records["record_id"],
            "member": records["member"],
            "group": records["group"].astype(str) if "group" in frame.columns else records["record_id"],
            "n_target_tokens": records["n_target_tokens"] if "n_target_tokens" in frame.columns else None,
        }
    ).sort_values("record_id", ignore_index=True)
    n_members = int(records["member"].sum())
    n_nonmembers = len(records) - n_members
    if not n_members or not n_nonmembers:
        raise DataError(f"{config.file}: {n_members} members and {n_nonmembers} non-members; expected some of both")
    run = RunDir.open(Path(config.out or default_out("score", config.file)), force=bool(given.get("force")))
    scores = frame[["record_id", "attack", "model", "score", "reason"]].reset_index(drop=True)
    not_run = []
    if BLIND_ATTACK not in set(scores["attack"]):
        not_run.append({"what": BLIND_ATTACK, "reason": "a score table holds no texts, and this one no such scores"})
    if "base" not in set(scores["model"]):
        not_run.append({"what": "base", "reason": "the score table has no rows with model=base"})
    evaluation = evaluate(
        records,
        scores,
        texts=None,
        seed=config.seed,
        level=config.level,
        n_bootstrap=config.n_bootstrap,
        controls_not_run={n["what"]: n["reason"] for n in not_run},
    )
    run.write_parquet("records.parquet", records)
    run.write_parquet("scores.parquet", scores)
    run.write_json("metrics.json", [m.to_dict() for m in evaluation.metrics])
    run.write_json("verdict.json", evaluation.verdict.to_dict())
    content = Path(config.file).read_bytes()
    manifest: dict[str, Any] = {
        **run_facts("score", run.path, config, given, command, device="none"),
        "models": {"target": None, "base": None, "reference": None},
        "data": {
            "members": None,
            "nonmembers": None,
            "pool": None,
            "scores": {
                "source": config.file,
                "format": "score table",
                "sha256": hashlib.sha256(content).hexdigest(),
                "n_rows": len(frame),
            },
        },
        "cohort": {
            "n_members": n_members,
            "n_nonmembers": n_nonmembers,
            "n_pool": 0,
            "n_groups": int(records["group"].nunique()),
            "dropped": {},
            "notes": ["membership and scores as given; duplicates and leakage between the sides were not checked"],
        },
        "attacks": [
            {
                "name": str(a),
                "settings": {},
                "access": "as given",
                "formula": "as given",
                "paper": "",
                "deviation": "",
                "fitted": a in FITTED,
            }
            for a in sorted(set(scores["attack"]))
        ],
        "counts": {"asked": 0, "unique": 0, "cached": 0, "tokens": 0, "unscorable": {}},
        "training": None,
        "threat_model": {
            "access": "unknown: scores were made elsewhere",
            "knowledge": "unknown",
            "queries_per_record": None,
        },
        "not_run": not_run,
        "timings": {},
    }
    render(run.path, manifest)
    run.finish(manifest)
    tripped = [line for gate in gates for line in gate.tripped(evaluation.metrics, evaluation.verdict)]
    return Outcome(run.path, evaluation, tuple(tripped))
