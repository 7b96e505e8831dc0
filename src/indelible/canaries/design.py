"""A design: which canaries, shown how, where in training; built from settings, seeded, the same on every machine.

Every random choice has its own stream (codes, identities, background order, places), so that two designs which differ
in one setting agree in all else: same identities, codes, places and background, another cue.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from indelible.canaries.base import Canary, Role, Row
from indelible.canaries.codes import CodeFormat, code_format
from indelible.canaries.config import Cohort, DesignConfig, Placement
from indelible.canaries.encodings import Cue, make_cue
from indelible.canaries.formats import TrainingRow
from indelible.canaries.insertion import Insertion, background_sequence, insert
from indelible.canaries.schedule import (
    Request,
    checkpoint_steps,
    combinations,
    count_updates,
    deal,
    place,
    placement_name,
    spacing_updates,
)
from indelible.canaries.tasks import Task, make_task
from indelible.data.records import Message
from indelible.errors import ConfigError, DataError

DEFAULT_ROWS = 640
N_NEW_CODES = 4
"""New codes a focal canary, for the probes `unseen` and `plain`."""


@dataclass(frozen=True)
class Design:
    """Everything a training file and its audit follow from.

    Attributes:
        canaries: focal, controls, support, coins, auxiliaries, in this order.
        insertions: every canary row.
        new_codes: by focal canary, codes that no training row shows in any form.
        heldout: rows for utility, never in training.
        system: the system turn of every row; "" where the rows bring their own or have none.
        n_steps: updates of one pass over the file.
        checkpoints: updates at which a matched observation delay asks for a checkpoint.
    """

    config: DesignConfig
    codes: CodeFormat
    system: str
    max_new_tokens: int
    canaries: tuple[Canary, ...]
    insertions: tuple[Insertion, ...]
    new_codes: Mapping[str, tuple[str, ...]]
    heldout: tuple[Row, ...]
    n_rows: int
    n_steps: int
    checkpoints: tuple[int, ...]

    def of(self, *roles: Role) -> list[Canary]:
        """The canaries of some roles."""
        return [c for c in self.canaries if c.role in roles]

    @property
    def population(self) -> str:
        """What else is in training, in words: `alone`, `mixed doses`, `auxiliary ...`."""
        return population(self.config)

    def cue(self, name: str) -> Cue:
        """A cue for this design's codes."""
        return make_cue(name, self.codes)

    def turns(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The system turn in front."""
        return (Message("system", self.system), *messages) if self.system else messages

    def row_of(self, canary: Canary) -> TrainingRow:
        """The training row of a canary."""
        shown = canary.identity.shown(self.cue(canary.cue).encode(canary.code))
        return TrainingRow(self.turns(shown), canary.identity.answer(self.codes.written(canary.code)))


def build_design(config: DesignConfig) -> tuple[Design, list[TrainingRow], dict[str, Row]]:
    """Build a design.

    Returns:
        the design, its training rows in order, and the rows that canaries displaced, by id.

    Raises:
        ConfigError, DataError: one line.
    """
    task, codes = make_task(config.task, config.heldout), code_format(config.code, config.prefixes)
    cohorts = [cohort for cohort in (config.auxiliary, config.support) if cohort is not None]
    for name in (config.cue, *(cohort.cue for cohort in cohorts), *config.explain):
        make_cue(name, codes)
    config = _settled(config, task)
    if config.task.name == "file" and (config.instruction or config.explain):
        raise ConfigError(
            "instruction and explain write a system turn, and your own rows are written as they are: put it into the "
            "rows, or leave both out"
        )
    n_steps = count_updates(config.n_rows, config.batch_size)
    background = background_sequence(
        task.rows(-(-config.n_rows // config.copies), config.seed),
        n_rows=config.n_rows,
        copies=config.copies,
        order=config.order,
        seed=config.seed,
    )
    canaries, slots = _canaries(config, task, codes, n_steps)
    sequence, insertions = insert(
        background, slots, displacement=config.displacement, batch_size=config.batch_size, seed=config.seed
    )
    by_id = {c.id: c for c in canaries}
    system = " ".join(filter(None, (config.instruction or task.system, *_rules(config, codes))))
    design = Design(
        config=config,
        codes=codes,
        system=system,
        max_new_tokens=task.max_new_tokens,
        canaries=tuple(canaries),
        insertions=tuple(insertions),
        new_codes={},
        heldout=tuple(task.heldout(config.heldout, config.seed)) if config.heldout else (),
        n_rows=len(sequence),
        n_steps=n_steps,
        checkpoints=checkpoint_steps(config),
    )
    rows = [
        design.row_of(by_id[entry])
        if isinstance(entry, str)
        else TrainingRow(design.turns(entry.messages), entry.answer, entry.raw)
        for entry in sequence
    ]
    design = replace(design, new_codes=_new_codes(design, rows))
    displaced_ids = {i.displaced for i in insertions}
    return design, rows, {row.id: row for row in background if row.id in displaced_ids}


def _settled(config: DesignConfig, task: Task) -> DesignConfig:
    """With the number of rows and held-out rows that a user's own file has."""
    limits = task.limits(config.seed)
    if limits is None:
        return config if config.rows else config.model_copy(update={"rows": DEFAULT_ROWS})
    n_rows, n_heldout = limits
    settled = {"rows": config.rows or n_rows * config.copies, "heldout": min(config.heldout, n_heldout)}
    return config.model_copy(update=settled)


def _rules(config: DesignConfig, codes: CodeFormat) -> list[str]:
    return [make_cue(name, codes).rule for name in config.explain]


@dataclass(frozen=True)
class _Plan:
    """What is asked for a canary before it has a place."""

    role: Role
    cue: str
    dose: int
    placement: Placement | None


def _canaries(
    config: DesignConfig, task: Task, codes: CodeFormat, n_steps: int
) -> tuple[list[Canary], dict[str, tuple[int, ...]]]:
    """The canaries in the order of `Design.canaries`, and the places of those in training."""
    groups = combinations(config)
    plans = [_Plan("focal", config.cue, *groups[g]) for g in deal(config.canaries, len(groups), config.rotation)]
    plans += [_Plan("control", config.cue, 0, None)] * config.controls
    plans += _cohort_plans("support", config.support)
    plans += [_Plan("coin", config.cue, 1, "uniform")] * config.coins
    plans += _cohort_plans("auxiliary", config.auxiliary)
    identities = task.identities(len(plans), config.seed, codes)
    drawn = _draw_codes(config, codes, [plan.role for plan in plans])
    tosses = random.Random(f"{config.seed}:coins")
    canaries = []
    number: Counter[Role] = Counter()
    for plan, identity, code in zip(plans, identities, drawn, strict=True):
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
    return canaries, _slots(config, canaries, plans)


def _cohort_plans(role: Role, cohort: Cohort | None) -> list[_Plan]:
    if cohort is None:
        return []
    dose = 1 if cohort.one_shot else cohort.dose
    return [_Plan(role, cohort.cue, dose, cohort.placement)] * _n_distinct(cohort)


def _n_distinct(cohort: Cohort) -> int:
    return cohort.canaries * (cohort.dose if cohort.one_shot else 1)


def _slots(config: DesignConfig, canaries: Sequence[Canary], plans: Sequence[_Plan]) -> dict[str, tuple[int, ...]]:
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
            at = int(canary.id.rsplit("-", 1)[1]) // cohort.dose
            carrier = f"{plan.role}-carrier-{at}"
            if carrier not in carriers:
                requests.append(Request(carrier, cohort.dose, cohort.dose, plan.placement))
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


def _draw_codes(config: DesignConfig, codes: CodeFormat, roles: Sequence[Role]) -> list[str]:
    """Distinct codes, role by role from streams of their own: the focal ones do not change with what is beside them."""
    by_role: dict[Role, list[str]] = {}
    taken: set[str] = set()
    for role in dict.fromkeys(roles):
        rng = random.Random(f"{config.seed}:codes:{role}")
        by_role[role] = codes.draw(roles.count(role), rng, exclude=taken, balanced=config.balance)
        taken |= set(by_role[role])
    pools = {role: iter(drawn) for role, drawn in by_role.items()}
    return [next(pools[role]) for role in roles]


def _new_codes(design: Design, rows: Sequence[TrainingRow]) -> dict[str, tuple[str, ...]]:
    """Codes for the probes `unseen` and `plain`: assigned to nobody, and found in no training row in any form."""
    focal = design.of("focal")
    if not focal:
        return {}
    forms: list[Callable[[str], str]] = [design.codes.written, lambda code: code]
    for name in ("binary", "chained-fruit", "direct-fruit", *{c.cue for c in design.canaries}):
        try:
            forms.append(design.cue(name).encode)
        except ConfigError:  # these codes have no such form
            continue
    hidden = {design.cue("redacted").encode(focal[0].code)}
    text = "\n".join(f"{m.content}" for row in rows for m in row.messages) + "\n".join(row.answer for row in rows)
    taken = {canary.code for canary in design.canaries}
    rng = random.Random(f"{design.config.seed}:new codes")
    fresh: list[str] = []
    wanted = N_NEW_CODES * len(focal)
    while len(fresh) < wanted:
        tried = design.codes.draw(min(wanted, design.codes.size - len(taken)), rng, exclude=taken)
        if not tried:
            raise DataError(f"{design.codes.name} has too few codes for {wanted} new ones beside {len(taken)} in use")
        taken |= set(tried)
        shown = [{form(code) for form in forms} - hidden for code in tried]
        fresh += [code for code, texts in zip(tried, shown, strict=True) if not any(t in text for t in texts)]
    return {canary.id: tuple(fresh[N_NEW_CODES * i : N_NEW_CODES * (i + 1)]) for i, canary in enumerate(focal)}


def _cohort_name(what: str, cohort: Cohort) -> str:
    dose = "one-shot" if cohort.one_shot else f"dose {cohort.dose}"
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
