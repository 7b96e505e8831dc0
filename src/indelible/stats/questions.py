"""The questions that a canary run can answer, each asked in every setting where it makes sense."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .answers import Answer, Call, Numbers, SeedAnswer, between_cells, compared, recalls
from .cells import AXES, AXIS_WORDS, HIDDEN, Cell, in_words, later, matched_delay, pairs
from .contrasts import differences
from .protocol_contrasts import against_of, keys_of, supplied_gaps
from .question_words import PROBE_WORDS, direction_words


@dataclass(frozen=True, eq=False)
class Question:
    """One line of the verdict.

    Attributes:
        asks: an indirect question, "whether ...". yes, opposite, flat: what an answer means, as a sentence without
            its end, to which the settings are added.
        flips_on: axes on which answers are compared; all unless the line is about one.
    """

    id: str
    axis: str
    asks: str
    yes: str
    opposite: str
    flat: str
    answers: tuple[Answer, ...]
    flips_on: tuple[str, ...] = AXES


def questions(found: Sequence[Cell], numbers: Numbers, *, alpha: float) -> list[Question]:
    """All of them, those without any answer left out."""
    varying = [axis for axis in AXES if len({cell.setting.place(axis) for cell in found}) > 1]
    wheres = [_where(cell, found, varying) for cell in found]
    recall = recalls(numbers, found, wheres, alpha=alpha)
    made = [
        *_recall(found, recall),
        *_directions(found, numbers, varying, alpha),
        *_between(found, numbers, varying, alpha),
    ]
    made += [*_placement(found, numbers, varying, alpha), *_probes(found, numbers, wheres, alpha)]
    made.append(_recovery(found, numbers, recall))
    return [question for question in made if question.answers]


def _where(cell: Cell, found: Sequence[Cell], varying: Sequence[str]) -> str:
    """The places that vary, and the condition's name where another cell has the same."""
    label = in_words([cell.setting], varying) or "the one setting tried"
    twins = sum(not other.setting.differing(cell.setting) for other in found) > 1
    return f"{label} ({cell.name})" if twins else label


def _difference(one: Cell, two: Cell, axis: str, varying: Sequence[str]) -> str:
    """Both places on the axis, and those on the other axes that vary: "dose 8 minus dose 2, redacted"."""
    sides = " minus ".join(in_words([cell.setting], [axis]) or cell.setting.place(axis) for cell in (one, two))
    label = in_words([one.setting], varying, without=[axis])
    return f"{sides}, {label}" if label else sides


def _recall(found: Sequence[Cell], recall: Sequence[Answer]) -> Iterator[Question]:
    words = (
        "whether trained codes rank above chance when the cue is hidden",
        "With the cue hidden, trained codes ranked above chance",
        "",
        "With the cue hidden, trained codes ranked as chance would have it",
    )
    compared_on = [(axis, one, two) for axis, one, two in pairs(found)]
    for axis in AXES:
        members = {id(cell) for on, *both in compared_on if on == axis for cell in both}
        own = tuple(answer for cell, answer in zip(found, recall, strict=True) if id(cell) in members)
        yield Question(f"recall-by-{AXIS_WORDS[axis]}", AXIS_WORDS[axis], *words, own, (axis,))
    if not compared_on:
        yield Question("recall", "cue", *words, tuple(recall))


def _directions(found: Sequence[Cell], numbers: Numbers, varying: Sequence[str], alpha: float) -> Iterator[Question]:
    """Redacted against visible, dose, spacing, schedule, population."""
    chosen: dict[tuple[str, str, str], list[Answer]] = defaultdict(list)
    for axis, one, two in pairs(found):
        first, second = one.setting.place(axis), two.setting.place(axis)
        if axis == "placement" or (axis == "arm" and (first, second) != (HIDDEN, "visible")):
            continue
        line = [one, two]
        if axis in ("dose", "spacing"):
            # The widest comparison that these two belong to; those between stand in the metrics.
            line = [c for c in found if c.setting.without(axis) == one.setting.without(axis)]
            ends = [getattr(c.setting, axis) for c in line if getattr(c.setting, axis) is not None]
            if (getattr(one.setting, axis), getattr(two.setting, axis)) != (max(ends), min(ends)):
                continue
        where = _difference(one, two, axis, varying)
        steps = (one.final_step, two.final_step)
        made = between_cells(numbers, axis, one, two, steps=steps, alpha=alpha, where=where)
        if axis == "dose":
            made = replace(made, why=f"{made.why}; {_medians(line, numbers)}")
        key = (axis, "", "") if axis in ("arm", "dose", "spacing") else (axis, first, second)
        chosen[key].append(made)
    for (axis, first, second), answers in chosen.items():
        yield Question(*direction_words(axis, first, second), tuple(answers))


def _medians(line: Sequence[Cell], numbers: Numbers) -> str:
    """Median exposure of every dose, so that a response that isn't monotonic shows."""
    said = []
    for cell in sorted(line, key=lambda cell: cell.setting.dose):
        median = numbers.row(keys_of(cell, None, cell.final_step, HIDDEN), "exposure_median")["value"]
        said.append(f"dose {cell.setting.dose} {'none' if median is None else f'{median:.2f}'}")
    return f"medians: {', '.join(said)}"


def _placement(found: Sequence[Cell], numbers: Numbers, varying: Sequence[str], alpha: float) -> Iterator[Question]:
    """The latest against the earliest placement, for each schedule, at the end and equally long after."""
    lines: dict[Any, list[Cell]] = defaultdict(list)
    for cell in found:
        lines[cell.setting.without("placement")].append(cell)
    ended: dict[str, list[Answer]] = defaultdict(list)
    delayed: dict[str, list[Answer]] = defaultdict(list)
    for line in lines.values():
        placed = [cell for cell in line if cell.centre == cell.centre]  # no appearance, no centre
        if len({cell.setting.placement for cell in placed}) < 2:
            continue
        one, two = max(placed, key=lambda c: c.centre), min(placed, key=lambda c: c.centre)
        if not later(one, two):
            continue
        where = _difference(one, two, "placement", varying)
        for kept, steps in ((ended, (one.final_step, two.final_step)), (delayed, matched_delay(one, two))):
            if steps is not None:
                at = where if kept is ended else f"{where}, at update {steps[0]} against {steps[1]}"
                made = between_cells(numbers, "placement", one, two, steps=steps, alpha=alpha, where=at)
                kept[one.setting.schedule].append(made)
    words = (
        "later appearances went with a higher exposure",
        "later appearances went with a lower exposure",
        "late and early appearances differed in exposure by less than 1 bit",
    )
    for kept, when, suffix in (
        (ended, "at the end of training", ""),
        (delayed, "equally long after the last appearance", "-matched-delay"),
    ):
        asks = f"whether later appearances give a higher exposure than earlier ones {when}"
        for schedule, answers in kept.items():
            start = f"Under the learning-rate schedule '{schedule}', {when}, "
            yes, opposite, flat = (start + text for text in words)
            yield Question(
                f"late-above-early-{schedule}{suffix}", "placement", asks, yes, opposite, flat, tuple(answers)
            )
        if len(kept) > 1:
            yes, opposite, flat = (f"{when[0].upper()}{when[1:]}, {text}" for text in words)
            every = tuple(answer for answers in kept.values() for answer in answers)
            yield Question(
                f"late-above-early-by-schedule{suffix}", "schedule", asks, yes, opposite, flat, every, ("schedule",)
            )


def _between(found: Sequence[Cell], numbers: Numbers, varying: Sequence[str], alpha: float) -> Iterator[Question]:
    """Encoded cues: above visible, and below redacted."""
    lines: dict[Any, dict[str, Cell]] = defaultdict(dict)
    for cell in found:
        lines[cell.setting.without("arm")][cell.setting.arm] = cell
    answers: dict[str, list[Answer]] = defaultdict(list)
    for line in lines.values():
        if not {"visible", HIDDEN} <= set(line):
            continue
        for arm in sorted(set(line) - {"visible", HIDDEN}):
            encoded = line[arm]
            label = in_words([encoded.setting], varying, without=["arm"])
            where = f"{arm} between visible and redacted" + (f", {label}" if label else "")
            sides = [
                between_cells(
                    numbers, "arm", one, two, steps=(one.final_step, two.final_step), alpha=alpha,
                    where=_difference(one, two, "arm", varying),
                )
                for one, two in ((encoded, line["visible"]), (line[HIDDEN], encoded))
            ]  # fmt: skip
            by_seed = tuple(answer for side in sides for answer in side.by_seed)
            why = "; and ".join(side.why for side in sides)
            answers[arm].append(Answer(where, encoded.setting, ("arm",), by_seed, _joint([s.call for s in sides]), why))
    for arm, own in answers.items():
        yield Question(
            f"between-{arm}", "cue", f"whether '{arm}' cues lie between visible and redacted ones in exposure",
            f"Exposure after training with '{arm}' cues lay above that of visible and below that of redacted ones",
            f"Exposure after training with '{arm}' cues lay outside the range from visible to redacted ones",
            f"Exposure after training with '{arm}' cues was within 1 bit of that of visible or of redacted ones",
            tuple(own),
        )  # fmt: skip


def _joint(calls: Sequence[Call]) -> Call:
    order: tuple[Call, ...] = ("untested", "opposite", "unclear", "saturated", "flat", "yes")
    return next(call for call in order if call in calls)


def _probes(found: Sequence[Cell], numbers: Numbers, wheres: Sequence[str], alpha: float) -> Iterator[Question]:
    """What the model does with a cue that it is shown."""
    kinds: tuple[tuple[str, str, str, str], ...] = (
        ("supplied_minus_assigned", "substituted", "assigned code", " bits"),
        ("recovered_minus_hidden", "as-trained", HIDDEN, ""),
        ("trained_minus_unseen", "as-trained", "unseen", ""),
    )
    for kind, probe, against, unit in kinds:
        answers = []
        for cell, where in zip(found, wheres, strict=True):
            keys = keys_of(cell, None, cell.final_step, probe)
            keys |= against_of("probe", against, cell.name, cell.final_step)
            if numbers.row(keys, kind)["reason"] == "not in the metrics":
                continue
            if kind == "supplied_minus_assigned":
                values = supplied_gaps(cell)
            elif kind == "recovered_minus_hidden":
                values = differences(cell.values("recovered", probe), cell.values("recovered", HIDDEN))
            else:
                values = differences(cell.values("recovered", probe), cell.values("copied", "unseen"))
            if kind != "supplied_minus_assigned" and not _anything_came_out(cell, probe, against):
                why = f"{where}: no code came out in either probe, so there is nothing to compare"
                answers.append(Answer(where, cell.setting, (), (), "untested", why))
                continue
            answers.append(
                compared(
                    numbers, kind, keys, cell.seeds, alpha=alpha, where=where, setting=cell.setting, free=(),
                    unit=unit, values=values,
                )
            )  # fmt: skip
        yield Question(*PROBE_WORDS[kind], tuple(answers))


def _anything_came_out(cell: Cell, probe: str, against: str) -> bool:
    """Whether any code at all came out, in either of two probes."""
    columns = ("recovered", probe), ("recovered" if against == HIDDEN else "copied", against)
    return any(bool((cell.values(column, name) > 0).any()) for column, name in columns)


def _recovery(found: Sequence[Cell], numbers: Numbers, recall: Sequence[Answer]) -> Question:
    """Whether greedy decoding and exposure, both with the cue hidden, say the same.

    yes: above chance and at least half recovered in every seed, or at chance and none recovered. opposite: above chance
    and fewer than half recovered in every seed. Where every setting says the latter, that is a finding which holds; it
    changes with the protocol only where settings differ in it.
    """
    answers = []
    for cell, beside in zip(found, recall, strict=True):
        by_seed = []
        for seed in cell.seeds:
            value = numbers.row(keys_of(cell, seed, cell.final_step, HIDDEN), "recovery")["value"]
            by_seed.append(SeedAnswer(beside.where, seed, value, int(value is not None and value >= 0.5), None))
        pooled = numbers.row(keys_of(cell, None, cell.final_step, HIDDEN), "recovery")
        call: Call = "unclear"
        most, some = {one.sign for one in by_seed}, any(one.value for one in by_seed)
        if beside.call == "untested" or pooled["value"] is None:
            call = "untested"
        elif (beside.call == "yes" and most == {1}) or (beside.call == "flat" and not some):
            call = "yes"
        elif beside.call == "yes" and most == {0}:
            call = "opposite"
        share = "nothing generated" if pooled["value"] is None else f"{pooled['value']:.0%} of {pooled['n']}"
        why = f"{beside.where}: recovered {share}; {beside.why.removeprefix(beside.where + ': ')}"
        answers.append(Answer(beside.where, cell.setting, (), tuple(by_seed), call, why))
    return Question(
        "recovery-beside-exposure", "probe",
        "whether exact recovery by greedy decoding says the same as exposure, both with the cue hidden",
        "Exposure and exact recovery agreed: where codes ranked above chance most came out word for word, else none",
        "Exposure finds what exact recovery does not: trained codes ranked above chance, and fewer than half came out "
        "word for word under greedy decoding",
        "", tuple(answers),
    )  # fmt: skip
