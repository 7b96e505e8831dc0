"""One model asked everything about one design; what was read of all models becomes a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from indelible.canaries.config import ProbeOptions
from indelible.canaries.design import Design
from indelible.canaries.exposure import Memo, ask_probes, make_bank
from indelible.canaries.probes import Probe, probes, substitute
from indelible.canaries.readings import Checkpoint, measure_utility, readings_frame
from indelible.config import ModelOptions
from indelible.drift import measure_drift
from indelible.errors import ConfigError
from indelible.models.causal import CausalModel, describe
from indelible.models.load import LoadOptions
from indelible.models.sources import Source
from indelible.progress import say
from indelible.runs import RunDir
from indelible.stats.conclusions import verdict
from indelible.stats.privacy import one_run_bound
from indelible.stats.protocol import canary_metrics

DRIFT_ROWS = 8
"""Held-out rows whose answers are checked one by one in float32."""


@dataclass(frozen=True)
class Part:
    """What one model said: its rows of `canaries.parquet` and of `utility.json`, and its facts."""

    role: str
    frame: pd.DataFrame
    utility: list[dict[str, object]]
    model: dict[str, Any]
    dtype: str
    device: str
    drift: dict[str, Any] | None = None


@dataclass
class Measured:
    """The parts of a run, in the order in which they were read."""

    parts: list[Part] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """One more model."""
        self.parts.append(part)

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """Facts of the last model of each role."""
        return {part.role: part.model for part in self.parts}

    @property
    def frame(self) -> pd.DataFrame:
        """All readings."""
        return pd.concat([part.frame for part in self.parts], ignore_index=True)

    @property
    def device(self) -> str:
        """Where the models ran."""
        return self.parts[-1].device if self.parts else "cpu"


def load_options(load: ModelOptions, *, images: bool = False) -> LoadOptions:
    """How models are loaded; a design's rows are conversations, on screens with images."""
    return LoadOptions(**load.model_dump(), chat_data=True, images=images)


def wanted_probes(design: Design, options: ProbeOptions, role: str) -> list[Probe]:
    """The probes that a model is asked. One trained without canaries is asked with the code hidden only."""
    names = options.probes
    if role == "clean":
        names = tuple(p for p in names if p == "redacted")
    elif role == "base" and options.base_probes is not None:
        names = options.base_probes
    kept = {c.id for c in design.of("focal", "coin")}
    kept |= {c.id for c in design.of("control")[: options.controls]}
    return [p for p in probes(design, names) if p.canary_id in kept and p.repeat < options.new_codes]


def missing_probes(design: Design, options: ProbeOptions) -> list[dict[str, str]]:
    """Probes that were asked for and that some canaries cannot have, for the manifest's `not_run`."""
    if "absent" in options.probes and not design.on_screens:
        return [{"what": "absent", "reason": "canaries of text stand in no pane that could be left out"}]
    if "substituted" not in options.probes or design.on_screens:
        return []
    focal = design.of("focal")
    alone = sum(substitute(design, canary, focal) is None for canary in focal)
    if not alone:
        return []
    reason = f"{alone} of {len(focal)} canaries share their code's prefix with no other: nothing to put in its place"
    return [{"what": "substituted", "reason": reason}]


def measure(
    model: CausalModel,
    source: Source,
    design: Design,
    checkpoint: Checkpoint,
    options: ProbeOptions,
    memo: Memo,
    *,
    level: float,
    drift: LoadOptions | None = None,
) -> Part:
    """Ask one model its probes and its held-out rows; with `drift`, how it was loaded, check some of its arithmetic."""
    asked = wanted_probes(design, options, checkpoint.model)
    # On screens checkpoints before the last are asked with the code hidden alone (C-B2): a picture is much to compute.
    whole = not (design.on_screens and checkpoint.model == "target" and checkpoint.step < checkpoint.n_steps)
    asked = asked if whole else [probe for probe in asked if probe.probe == "redacted"]
    stage = f"{checkpoint.condition}, seed {design.config.seed}, {checkpoint.model} at update {checkpoint.step}"
    readings = ask_probes(model, make_bank(design, options.decoys), asked, options, memo, stage=stage)
    rows = design.heldout[: options.utility] if whole else ()
    asked_of = tuple((repr((r.id, r.messages, r.answer, r.expected)), *(i.sha256 for i in r.images)) for r in rows)
    key = (model.fingerprint, design.system, design.max_new_tokens, asked_of)
    if key not in memo.utility:  # of the base, the same for every arm
        memo.utility[key] = measure_utility(model, design, rows, checkpoint, level=level)
    known, answers = memo.utility[key]
    where = {name: getattr(checkpoint, name) for name in ("condition", "step", "model")}
    utility = known | where | {"seed": design.config.seed}
    checked = None
    if drift is not None and whole:
        checked = measure_drift(model, drift, answers, n=DRIFT_ROWS, seed=design.config.seed, base=None)
    return Part(
        checkpoint.model,
        readings_frame(design, checkpoint, asked, readings, level=level),
        [utility] if whole else [],
        describe(model, source),
        str(model.dtype).removeprefix("torch."),
        str(model.device),
        checked,
    )


def conclude(
    run: RunDir, measured: Measured, options: ProbeOptions, facts: Mapping[str, Any], *, level: float
) -> dict[str, Any]:
    """Statistics, tables, report, manifest. Returns the verdict.

    Raises:
        ConfigError: nothing was asked.
    """
    from indelible.report.canary import render_canary

    frame, utility = measured.frame, [row for part in measured.parts for row in part.utility]
    if frame.empty:
        raise ConfigError("there is nothing to ask: the design has no canaries, or probe.probes names none of theirs")
    metrics = canary_metrics(frame, utility, level=level)
    said: dict[str, Any] = verdict(frame, utility, metrics, alpha=1 - level)
    run.write_parquet("canaries.parquet", frame)
    run.write_json("utility.json", utility, nan_as_null=True)
    run.write_json("metrics.json", metrics, nan_as_null=True)
    run.write_json("verdict.json", said, nan_as_null=True)
    n_candidates = int(frame["n_candidates"].iloc[0])
    manifest = {
        **facts,
        "dtype": measured.parts[0].dtype,
        "drift": next((part.drift for part in measured.parts if part.drift), None),
        "design": {**facts["design"], "code": {**facts["design"]["code"], "n_candidates": n_candidates}},
        "trained": sorted({str(part.model.get("fingerprint")) for part in measured.parts if part.role == "target"}),
        "models": {role: measured.models.get(role) for role in ("target", "base", "clean")},
        "probes": list(options.probes),
        "epsilon": epsilon(frame, significance=1 - level),
        "counts": {
            "readings": len(frame),
            "without_rank": int(frame["rank"].isna().sum()),
            "canaries": int(frame["canary_id"].nunique()),
        },
    }
    render_canary(run.path, manifest)
    run.finish(manifest)
    say(f"written to {run.path}")
    return said


def epsilon(frame: pd.DataFrame, *, significance: float) -> list[dict[str, Any]] | None:
    """The one-run lower bound of every training that has coin-flipped canaries; None where none has.

    Score: log p of the code with the cue hidden, minus the base model's where the base was asked. The number of guesses
    is fixed beforehand: a third of the coins, rounded down, on each side.
    """
    coins = frame[(frame["role"] == "coin") & (frame["probe"] == "redacted")]
    if coins.empty:
        return None
    found = []
    base = coins[coins["model"] == "base"].set_index(["condition", "seed", "canary_id"])["logprob"]
    tuned = coins[coins["model"] == "target"]
    for key, part in tuned.groupby(["condition", "seed", "step"]):
        scores = part.set_index(["condition", "seed", "canary_id"])["logprob"]
        shared = base.reindex(scores.index)
        calibrated = not shared.isna().any()
        bound = one_run_bound(
            (scores - shared if calibrated else scores).to_numpy(),
            part["included"].to_numpy(dtype=bool).tolist(),
            dose=max(1, int(part["dose"].max())),
            n_guesses=2 * (len(part) // 3),
            delta=1e-5,
            significance=significance,
        )
        where = dict(zip(("condition", "seed", "step"), key, strict=True)) | {"calibrated": calibrated}
        found.append(where | asdict(bound))
    return found
