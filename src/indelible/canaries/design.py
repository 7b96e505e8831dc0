"""A design: which canaries, shown how, where in training; built from settings, seeded, the same on every machine.

Every random choice has its own stream (codes, identities, background order, places), so that two designs which differ
in one setting agree in all else: same identities, codes, places and background, another cue.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from indelible.canaries.allotment import canaries_of, places_of, plan_canaries, population
from indelible.canaries.base import Canary, Role, Row
from indelible.canaries.codes import CodeFormat, code_format
from indelible.canaries.config import DEFAULT_ROWS, DesignConfig
from indelible.canaries.encodings import Cue, make_cue
from indelible.canaries.formats import TrainingRow
from indelible.canaries.insertion import Insertion, background_sequence, insert
from indelible.canaries.schedule import checkpoint_steps, count_updates
from indelible.canaries.screen_config import ScreenOptions
from indelible.canaries.screen_task import ScreenTask, check_explained, labelled, rules_of
from indelible.canaries.tasks import Task, make_task
from indelible.data.records import Message
from indelible.errors import ConfigError, DataError

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
        left_out: why rows of the user's grounding files were left out, and how many.
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
    left_out: Mapping[str, int] = field(default_factory=dict)

    def of(self, *roles: Role) -> list[Canary]:
        """The canaries of some roles."""
        return [c for c in self.canaries if c.role in roles]

    @property
    def on_screens(self) -> bool:
        """Whether the canaries stand on screens."""
        return self.config.task.name == "screens"

    @property
    def codes_seed(self) -> int:
        """Seed of what codes are ranked among and replaced by: on screens the pool's, as of the codes themselves."""
        return (self.config.task.screens or ScreenOptions()).seed if self.on_screens else self.config.seed

    @property
    def population(self) -> str:
        """What else is in training, in words: `alone`, `mixed doses`, `auxiliary ...`."""
        return population(self.config)

    def cue(self, name: str) -> Cue:
        """A cue for this design's codes; on screens under its name where the instruction has rules for several."""
        made = make_cue(name, self.codes)
        return labelled(made) if self.on_screens and len(self.config.explain) > 1 else made

    def turns(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The system turn in front."""
        return (Message("system", self.system), *messages) if self.system else messages

    def row_of(self, canary: Canary) -> TrainingRow:
        """The training row of a canary."""
        cue, identity = self.cue(canary.cue).encode(canary.code), canary.identity
        answer = identity.answer(self.codes.written(canary.code))
        return TrainingRow(self.turns(identity.shown(cue)), answer, images=identity.pictures(cue))


def build_design(config: DesignConfig) -> tuple[Design, list[TrainingRow], dict[str, Row]]:
    """Build a design.

    Returns:
        the design, its training rows in order, and the rows that canaries displaced, by id.

    Raises:
        ConfigError, DataError: one line.
    """
    codes = code_format(config.code, config.prefixes)
    task = make_task(config.task, config.heldout, config.instruction, _rules(config, codes))
    cohorts = [cohort for cohort in (config.auxiliary, config.support) if cohort is not None]
    for name in (config.cue, *(cohort.cue for cohort in cohorts), *config.explain):
        make_cue(name, codes)
    if config.task.name == "screens":
        check_explained([config.cue, *(cohort.cue for cohort in cohorts)], config.explain)
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
    if isinstance(task, ScreenTask):  # there the canaries' own turns say it, and grounding rows do not
        system = ""
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
        left_out=task.left_out if isinstance(task, ScreenTask) else {},
    )
    made = {name: design.row_of(by_id[name]) for name in slots}
    rows = [
        made[entry]
        if isinstance(entry, str)
        else TrainingRow(design.turns(entry.messages), entry.answer, entry.raw, entry.images)
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
    if config.task.name == "screens":
        return rules_of(config.explain, codes)
    return [make_cue(name, codes).rule for name in config.explain]


def _canaries(
    config: DesignConfig, task: Task, codes: CodeFormat, n_steps: int
) -> tuple[list[Canary], dict[str, tuple[int, ...]]]:
    """The canaries in the order of `Design.canaries`, and the places of those in training."""
    plans = plan_canaries(config)
    roles = [plan.role for plan in plans]
    if isinstance(task, ScreenTask):
        identities, drawn = task.allocate(roles, codes, config.panel, balance=config.balance)
    else:
        identities = task.identities(len(plans), config.seed, codes)
        drawn = _draw_codes(config, codes, roles)
    canaries = canaries_of(config, plans, identities, drawn, n_steps)
    return canaries, places_of(config, canaries, plans)


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
    """Codes for the probes `unseen` and `plain`: assigned to nobody, and found in no training row in any form.

    On screens one more, behind the others: the separately drawn one that `substituted` shows (C-B1).
    """
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
    n_each = N_NEW_CODES
    if design.on_screens:
        n_each += 1
        text += "\n".join(design.cue(canary.cue).encode(canary.code) for canary in design.canaries)
    taken = {canary.code for canary in design.canaries}
    panel = "" if design.config.panel is None else f" of panel {design.config.panel}"  # no code twice in a pool (C-B1)
    rng = random.Random(f"{design.codes_seed}:new codes{panel}")
    fresh: list[str] = []
    wanted = n_each * len(focal)
    while len(fresh) < wanted:
        tried = design.codes.draw(min(wanted, design.codes.size - len(taken)), rng, exclude=taken)
        if not tried:
            raise DataError(f"{design.codes.name} has too few codes for {wanted} new ones beside {len(taken)} in use")
        taken |= set(tried)
        shown = [{form(code) for form in forms} - hidden for code in tried]
        fresh += [code for code, texts in zip(tried, shown, strict=True) if not any(t in text for t in texts)]
    return {canary.id: tuple(fresh[n_each * i : n_each * (i + 1)]) for i, canary in enumerate(focal)}
