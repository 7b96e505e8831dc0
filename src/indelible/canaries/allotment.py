"""Which canaries a design asks for, and the rows where they stand: all that needs neither data nor codes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from indelible.canaries.base import Canary, Identity, Role
from indelible.canaries.config import Cohort, DesignConfig, Placement
from indelible.canaries.schedule import Request, combinations, deal, place, placement_name, spacing_updates


@dataclass(frozen=True)
class Plan:
    """What is asked for a canary before it has a place."""

    role: Role
    cue: str
    dose: int
    placement: Placement | None


def plan_canaries(config: DesignConfig) -> list[Plan]:
    """What is asked for each canary, in the order of `Design.canaries`."""
    groups = combinations(config)
    plans = [Plan("focal", config.cue, *groups[g]) for g in deal(config.canaries, len(groups), config.rotation)]
    plans += [Plan("control", config.cue, 0, None)] * config.controls
    plans += _cohort_plans("support", config.support)
    plans += [Plan("coin", config.cue, 1, "uniform")] * config.coins
    plans += _cohort_plans("auxiliary", config.auxiliary)
    return plans


def canaries_of(
    config: DesignConfig, plans: Sequence[Plan], identities: Sequence[Identity], codes: Sequence[str], n_steps: int
) -> list[Canary]:
    """The planned canaries with their identities and codes; coins are tossed here."""
    tosses = random.Random(f"{config.seed}:coins")
    canaries = []
    number: Counter[Role] = Counter()
    for plan, identity, code in zip(plans, identities, codes, strict=True):
        included = tosses.random() < 0.5 if plan.role == "coin" else None
        canaries.append(
            Canary(
                id=f"{plan.role}-{number[plan.role]:03d}",
                role=plan.role,
                identity=identity,
                code=code,
                cue=plan.cue,
                dose=0 if included is False else plan.dose,
                placement="never" if plan.placement is None else placement_name(plan.placement),
                spacing=None if plan.placement is None or plan.dose < 2 else spacing_updates(plan.placement, n_steps),
                included=included,
            )
        )
        number[plan.role] += 1
    return canaries


def _cohort_plans(role: Role, cohort: Cohort | None) -> list[Plan]:
    if cohort is None:
        return []
    doses = (1,) if cohort.one_shot else cohort.doses
    groups = deal(_n_distinct(cohort), len(doses), 0)
    return [Plan(role, cohort.cue, doses[group], cohort.placement) for group in groups]


def _n_distinct(cohort: Cohort) -> int:
    return cohort.canaries * (cohort.doses[0] if cohort.one_shot else 1)


def places_of(config: DesignConfig, canaries: Sequence[Canary], plans: Sequence[Plan]) -> dict[str, tuple[int, ...]]:
    """Rows of every canary in training. Focal canaries choose first, so that nothing put beside them moves them.

    One-shot canaries take the places that repeated ones would have had. A coin keeps its place whichever side it
    falls on; the background row stands there if it is left out.
    """
    requests: list[Request] = []
    carriers: dict[str, list[str]] = {}  # a request that several one-shot canaries share
    cohorts = {"support": config.support, "auxiliary": config.auxiliary}
    for canary, plan in zip(canaries, plans, strict=True):
        if plan.placement is None:
            continue
        cohort = cohorts.get(plan.role)
        if cohort is not None and cohort.one_shot:
            at = int(canary.id.rsplit("-", 1)[1]) // cohort.doses[0]
            carrier = f"{plan.role}-carrier-{at}"
            if carrier not in carriers:
                requests.append(Request(carrier, cohort.doses[0], cohort.doses[0], plan.placement))
            carriers.setdefault(carrier, []).append(canary.id)
            continue
        reserve = (config.reserve or max(config.dose)) if plan.role == "focal" else plan.dose
        requests.append(Request(canary.id, plan.dose, reserve, plan.placement))
    placed = place(requests, n_rows=config.n_rows, batch_size=config.batch_size, seed=config.seed)
    left_out = {canary.id for canary in canaries if canary.included is False}
    slots: dict[str, tuple[int, ...]] = {}
    for name, rows in placed.items():
        if name in carriers:
            slots |= {canary_id: (row,) for canary_id, row in zip(carriers[name], rows, strict=True)}
        elif rows and name not in left_out:
            slots[name] = rows
    return slots


def _cohort_name(what: str, cohort: Cohort) -> str:
    dose = "one-shot" if cohort.one_shot else f"dose {', '.join(map(str, cohort.doses))}"
    return f"{_n_distinct(cohort)} {what}, {dose}, {cohort.cue}, {placement_name(cohort.placement)}"


def population(config: DesignConfig) -> str:
    """What accompanies the focal canaries, in words."""
    doses = sorted(set(config.dose))
    parts = [f"mixed doses {', '.join(map(str, doses))}"] if len(doses) > 1 else []
    if config.auxiliary is not None:
        cohort = config.auxiliary
        parts.append(_cohort_name("auxiliaries", cohort))
    if config.support is not None:
        parts.append(_cohort_name("support canaries", config.support))
    return "; ".join(parts) or "alone"
