"""`indelible canary run FILE --plan`: what a run would do, without data, model or training."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from indelible.canaries.allotment import canaries_of, places_of, plan_canaries, population
from indelible.canaries.base import Canary, Identity
from indelible.canaries.codes import code_format
from indelible.canaries.config import DEFAULT_ROWS, CanaryRunConfig, DesignConfig
from indelible.canaries.encodings import make_cue
from indelible.canaries.model_cost import Cost, model_cost
from indelible.canaries.plan import Trial, clean_trial, digest, plan_trials, sparse_groups
from indelible.canaries.schedule import checkpoint_steps, count_updates, update_of
from indelible.canaries.screen_config import ScreenOptions
from indelible.canaries.screen_task import check_explained, instruction_of, pool, rules_of
from indelible.data.grounding import Size, grounding_format
from indelible.data.screen_themes import SIZES
from indelible.data.screens import check_size
from indelible.errors import ConfigError

ASSUMED_SIZE = (1920, 1080)
"""Of the user's screenshots, which are not read here."""
CHARACTERS_A_TOKEN = 3.5
"""Of instructions, about, where there is no tokenizer to count with."""
CODE_TOKENS, ANSWER_TOKENS, TEMPLATE_TOKENS = 16, 16, 24
TRAINED_BYTES, FROZEN_BYTES = 16, 4
"""A parameter in training: float32 weight, gradient and two moments of AdamW; a frozen one: its weight."""


def outlook(config: CanaryRunConfig) -> str:
    """What a run would do, in lines: for each arm rows, updates, canary rows, places and checkpoints; then tokens and
    memory, as far as they can be said beforehand. A model's folder and the user's own screens are read where they are
    on this machine, and nothing else.

    Raises:
        ConfigError: the settings are wrong, or rows are not given where only the data would say how many.
    """
    trials = plan_trials(config)
    first = [trial for trial in trials if trial.seed == config.seeds[0]]
    cleans = {(clean.name, clean.seed) for clean in map(clean_trial, trials)} if config.clean else set()
    lines = [
        (
            f"{config.name or 'run'}: {len(trials)} trainings of {config.model} ({len(first)} arms, "
            f"{len(config.seeds)} seeds), {len(cleans)} without canaries"
        )
    ]
    for trial in first:
        _check(trial.design)
    n_arm_tokens: list[int] = []
    cost = model_cost(config, on_screens=first[0].design.task.name == "screens")
    for trial in first:
        lines += _arm([other for other in trials if other.condition == trial.condition])
        if cost is not None and trial.design.task.name == "screens":
            n_arm_tokens.append(_tokens(trial.design, cost))
    lines += _totals(config, first, cost, n_arm_tokens, len(trials) + len(cleans))
    sparse = sparse_groups(trials)
    if sparse:
        lines.append(f"note: {sparse}")
    return "\n".join(lines)


def placed(config: DesignConfig) -> tuple[list[Canary], dict[str, tuple[int, ...]]]:
    """A design's canaries, without identity or code, and the rows of those in training."""
    plans = plan_canaries(config)
    blank = Identity("", (), "", "")
    n_steps = count_updates(config.n_rows, config.batch_size)
    canaries = canaries_of(config, plans, [blank] * len(plans), [""] * len(plans), n_steps)
    return canaries, places_of(config, canaries, plans)


def _settled(config: DesignConfig) -> DesignConfig:
    reads_rows = config.task.name == "file" or bool((config.task.screens or ScreenOptions()).rows_from)
    if config.rows is None and reads_rows:
        raise ConfigError("how many rows there are is in the data, which a plan does not read: give design.rows")
    return config if config.rows else config.model_copy(update={"rows": DEFAULT_ROWS})


def _arm(trials: Sequence[Trial]) -> list[str]:
    """One arm: its first seed, and where the focal canaries of the others stand, as a digest."""
    trial = trials[0]
    config = _settled(trial.design)
    canaries, slots = placed(config)
    rows = sorted(row for some in slots.values() for row in some)
    n_steps = count_updates(config.n_rows, config.batch_size)
    steps = sorted({*checkpoint_steps(config), *trial.training.save_at, n_steps})
    doses = Counter(canary.dose for canary in canaries if canary.role == "focal")
    counts = Counter(canary.role for canary in canaries)
    by_dose = ", ".join(f"{n} at dose {dose}" for dose, n in sorted(doses.items()))
    others = "".join(f", {n} {role}" for role, n in counts.items() if role != "focal")
    training = trial.training
    updates = [update_of(row, config.batch_size) for row in rows]
    where = f"updates {updates[0]} to {updates[-1]}" if updates else "none in training"
    same = ", ".join(focal_places(_settled(one.design)) for one in trials)
    panel = "" if config.panel is None else f", panel {config.panel}"
    return [
        (
            f"  {trial.condition}: {config.n_rows:,} rows, {n_steps} updates of {config.batch_size}; {len(rows)} "
            f"canary rows ({100 * len(rows) / config.n_rows:.2f}%), {config.cue}{panel}, focal {by_dose}{others}"
        ),
        (
            f"    {where}; focal places {same}; beside them: {population(config)}; {training.schedule} from "
            f"{training.learning_rate:g} after {training.warmup_steps} updates; read at {', '.join(map(str, steps))}"
        ),
        *_groups(canaries, slots, config.batch_size),
    ]


def focal_places(config: DesignConfig) -> str:
    """A digest of the rows of a design's focal canaries: designs of one digest are matched."""
    canaries, slots = placed(config)
    return digest(sorted((c.id, list(slots[c.id])) for c in canaries if c.role == "focal" and c.id in slots))


def _groups(canaries: Sequence[Canary], slots: Mapping[str, Sequence[int]], batch_size: int) -> list[str]:
    """Where each group of focal canaries stands, a group being those of one dose, placement and spacing: the updates of
    first and of last appearances. Nothing for a single group, whose ends are those of the arm."""
    groups: dict[tuple[int, str, float | None], list[Sequence[int]]] = defaultdict(list)
    for canary in canaries:
        if canary.role == "focal" and canary.id in slots:
            groups[canary.dose, canary.placement, canary.spacing].append(slots[canary.id])
    lines = []
    for (dose, placement, spacing), own in groups.items():
        ends = [sorted(update_of(end(some), batch_size) for some in own) for end in (min, max)]
        firsts, lasts = (f"{several[0]} to {several[-1]}" for several in ends)
        gap = "" if spacing is None else f", {spacing:g} updates apart"
        lines.append(f"      {len(own)} at dose {dose}, {placement}{gap}: first in updates {firsts}, last in {lasts}")
    return lines if len(lines) > 1 else []


def _check(config: DesignConfig) -> None:
    """What is wrong with a design and needs no model to be seen.

    Raises:
        ConfigError: an unknown cue or format, a cue that the instruction does not explain, too small a pool. DataError:
            the user's own screens are there and wrong.
    """
    codes = code_format(config.code, config.prefixes)
    for name in (config.cue, *config.explain):
        make_cue(name, codes)
    if config.task.name == "screens":
        _check_pool(config)
        cohorts = [cohort for cohort in (config.auxiliary, config.support) if cohort is not None]
        check_explained([config.cue, *(cohort.cue for cohort in cohorts)], config.explain)


def _check_pool(config: DesignConfig) -> None:
    """That the pool can be had, as far as it is on this machine, and has the canaries asked for.

    Raises:
        ConfigError: it has not. DataError: the user's own screens are there and wrong.
    """
    options = config.task.screens or ScreenOptions()
    grounding_format(options.format)
    for size in options.sizes:
        check_size(size)
    if config.task.path and Path(config.task.path).is_dir():
        pool(config.task.path, options)
    roles = Counter(plan.role for plan in plan_canaries(config))
    n_trained = sum(n for role, n in roles.items() if role != "control")
    had = options.trained if config.panel is None else options.trained // 2 + options.trained % 2 * (1 - config.panel)
    if n_trained > had or roles["control"] > options.controls:
        raise ConfigError(
            f"{n_trained} trained canaries and {roles['control']} controls asked for; the pool has {had} and "
            f"{options.controls}: ask for fewer, or give more to task.screens.trained or controls"
        )


def _tokens(given: DesignConfig, cost: Cost) -> int:
    """Tokens of one pass, about."""
    config = _settled(given)
    options = config.task.screens or ScreenOptions()
    form = grounding_format(options.format)
    rules = rules_of(config.explain, code_format(config.code, config.prefixes))
    _, slots = placed(config)
    n_canaries = sum(map(len, slots.values()))
    own = ASSUMED_SIZE if config.task.path else None
    screens = _mean_tokens(cost, [own] if own else options.sizes or SIZES)
    rows = _mean_tokens(cost, [ASSUMED_SIZE] if options.rows_from else options.sizes or SIZES)
    canary = screens + len(instruction_of(config.instruction, rules)) / CHARACTERS_A_TOKEN + CODE_TOKENS
    grounding = rows + len(form.instruction) / CHARACTERS_A_TOKEN + ANSWER_TOKENS
    n_others = config.n_rows - n_canaries
    return int(n_canaries * canary + n_others * grounding + config.n_rows * TEMPLATE_TOKENS)


def _mean_tokens(cost: Cost, sizes: Sequence[Size]) -> float:
    return sum(cost.image_tokens(size) for size in sizes) / len(sizes)


def _totals(
    config: CanaryRunConfig, first: Sequence[Trial], cost: Cost | None, n_tokens: Sequence[int], n_trainings: int
) -> list[str]:
    if cost is None:
        return [f"tokens and memory: not known before {config.model} is on this machine"]
    lines = []
    if n_tokens:
        options = first[0].design.task.screens or ScreenOptions()
        own = bool(options.rows_from or first[0].design.task.path)
        what = f"screenshots of {ASSUMED_SIZE[0]}x{ASSUMED_SIZE[1]} assumed" if own else "rendered screens"
        lines.append(
            f"tokens: about {_range(n_tokens)} a training, {sum(n_tokens) // len(n_tokens):,} x "
            f"{n_trainings} = {sum(n_tokens) // len(n_tokens) * n_trainings:,} in all ({what}; {cost.source})"
        )
    rank = first[0].training.lora_rank
    trained = 0.0 if rank else cost.n_parameters - cost.n_encoder
    n_bytes = TRAINED_BYTES * trained + FROZEN_BYTES * (cost.n_parameters - trained)
    adapter = f", and those of an adapter of rank {rank}" if rank else ""
    lines.append(
        f"memory: about {n_bytes / 2**30:,.1f} GiB for weights, gradients and AdamW's moments of "
        f"{cost.n_parameters / 1e9:.2f} billion parameters ({cost.n_encoder / 1e9:.2f} frozen){adapter}; activations "
        "come on top. `canary run` keeps a whole model on each device: a larger one is trained outside, on the file "
        "of `canary design`"
    )
    return lines


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
