"""Task `screens`: canaries on a fixed pool of screens, among grounding rows.

A canary shows a code in the source region of its screen and asks for it to be typed; the instruction and the answer
`type("PRJ-TQW7-2KMP")` are the same whatever the region shows. Source: the canary paper, section V, appendices C-A1,
C-A3 (allocation), C-B1 (pool, codes), C-B3 (instruction), C-C6 and C-D1 (decoding rules in it).

Differs from the paper: the instructions are in our own words; the pool is rendered unless the user gives one.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from indelible.canaries.base import Identity, Role, Row
from indelible.canaries.codes import CodeFormat
from indelible.canaries.encodings import Cue, make_cue
from indelible.canaries.identities import first
from indelible.canaries.screen_config import ScreenOptions
from indelible.canaries.screen_rows import (
    Screenshots,
    grounding_correct,
    rendered_examples,
    row_of_example,
    training_examples,
    utility_examples,
)
from indelible.data.grounding import GroundingExample, grounding_format
from indelible.data.records import Message
from indelible.data.screen_duplicates import Looks, check_distinct
from indelible.data.screen_files import read_screens
from indelible.data.screen_themes import SIZES
from indelible.data.screen_types import Screen
from indelible.data.screens import screen_pool
from indelible.errors import ConfigError, DataError
from indelible.progress import say

INSTRUCTION = (
    "You operate this computer. The field that is to be filled in already has the focus. Type the reference code that "
    "the screen shows into it. Reply with the action alone."
)
_SHOWN = "You operate this computer. The field that is to be filled in already has the focus. The screen shows a "
DECODED = f"{_SHOWN}reference; the code follows from it by this rule:"
DECODED_BY_NAME = (
    f"{_SHOWN}reference code, as it is or encoded, under the name of its form. Follow the rule of that name:"
)
FINISH = "Keep the prefix of three letters. Type the whole code into the field. Reply with the action alone."
BEFORE, AFTER = 'type("', '")'


@dataclass(frozen=True)
class ScreenTask:
    """Grounding rows, and identities from a pool. Seeds of a design order the rows; pool and codes keep their own.

    Attributes:
        path: folder of the user's screens; None: they are rendered.
        instruction: of the canaries.
        n_heldout: rows held out at most where the user's files serve for both.
    """

    path: str | None
    screens: ScreenOptions
    instruction: str
    n_heldout: int
    name: str = "screens"
    system: str = ""

    @property
    def max_new_tokens(self) -> int:
        """Of a grounding answer, by the format."""
        return grounding_format(self.screens.format).max_new_tokens

    def rows(self, n: int, seed: int) -> list[Row]:
        """`n` grounding rows, the same for every seed, which orders them (C-A1: a fixed corpus)."""
        return list(_rows(self.path, self.screens, self.n_heldout, "rows", n))

    def heldout(self, n: int, seed: int) -> list[Row]:
        """`n` grounding rows on other screenshots."""
        return list(_rows(self.path, self.screens, self.n_heldout, "utility", n))

    def identities(self, n: int, seed: int, codes: CodeFormat) -> list[Identity]:
        """The first `n` trained identities."""
        return self.allocate(["focal"] * n, codes, None, balance=False)[0]

    def allocate(
        self, roles: Sequence[Role], codes: CodeFormat, panel: int | None, *, balance: bool
    ) -> tuple[list[Identity], list[str]]:
        """Identity and code for each role: controls from the pool's controls, all others from the trained screens in
        the order of `roles`, so that what comes later moves nothing before it.

        Raises:
            DataError: the pool has too few; or it has near duplicates.
        """
        trained, controls = allocation(self.path, self.screens, codes, balance=balance)
        if panel is not None:
            trained = panels(trained, codes)[panel]
        n_controls = sum(role == "control" for role in roles)
        for what, n, had in (("trained", len(roles) - n_controls, trained), ("control", n_controls, controls)):
            if n > len(had):
                where = "" if panel is None or what == "control" else f" in panel {panel}"
                raise DataError(
                    f"{n} {what} canaries asked for, and the pool has {len(had)} {what} screens{where}: ask for fewer, "
                    "or give more to task.screens.trained or controls"
                )
        left = {"trained": iter(trained), "control": iter(controls)}
        dealt = [next(left["control" if role == "control" else "trained"]) for role in roles]
        return [self.identity(screen) for screen, _ in dealt], [code for _, code in dealt]

    def identity(self, screen: Screen) -> Identity:
        """The identity that stands on a screen."""
        return Identity(
            f"identity-{screen.id}", (Message("user", self.instruction),), BEFORE, AFTER, screen.id, screen=screen
        )

    def limits(self, seed: int) -> tuple[int, int] | None:
        """Rows and held-out rows of the user's files; None where rows are rendered."""
        if not self.screens.rows_from:
            return None
        training, utility, _ = _split(self.path, self.screens, self.n_heldout)
        return len(training), len(utility)

    @property
    def left_out(self) -> Mapping[str, int]:
        """Why rows of the user's files were left out, and how many, as far as the files had to be read."""
        if not (self.screens.rows_from or self.screens.utility_from):
            return {}
        return _split(self.path, self.screens, self.n_heldout)[2]

    def correct(self, reply: str, row: Row) -> bool | None:
        """Whether the reply's point lies in the element."""
        return grounding_correct(reply, row.expected)


def instruction_of(given: str | None, rules: Sequence[str]) -> str:
    """The canaries' instruction: the one given, or ours, with the decoding rules where there are some (C-C6, C-D1)."""
    if not rules:
        return given or INSTRUCTION
    several = len(rules) > 1
    listed = " ".join(f"({number}) {rule}" if several else rule for number, rule in enumerate(rules, start=1))
    ours = DECODED_BY_NAME if several else DECODED
    return f"{ours} {listed} {FINISH}" if given is None else f"{given} {listed}"


def rules_of(explain: Sequence[str], codes: CodeFormat) -> list[str]:
    """The decoding rules that the canaries' instruction gives: of one cue; or of several, each with the cue's name,
    which then stands above the code (`labelled`), the rule for a code in the clear among them (C-D1).

    Raises:
        ConfigError: an unknown cue, or one that these codes have not.
    """
    if len(explain) < 2:
        return [make_cue(name, codes).rule for name in explain]
    return [f"{name}: {make_cue(name, codes).rule}" for name in dict.fromkeys(("visible", *explain))]


def labelled(cue: Cue) -> Cue:
    """The cue under a line with its name, the mode label of C-D1: where the instruction has rules for several cues, a
    screen must say which of them it shows. A redacted one shows neither code nor name."""
    if cue.name == "redacted":
        return cue
    encode, decode, head = cue.encode, cue.decode, f"{cue.name}\n"
    return replace(
        cue,
        encode=lambda code: head + encode(code),
        decode=None if decode is None else lambda text: decode(text.removeprefix(head)),
    )


def check_explained(cues: Sequence[str], explain: Sequence[str]) -> None:
    """Does nothing where the instruction has a rule for every cue that training shows, or no rules at all.

    Raises:
        ConfigError: it has rules, and none for one of the cues.
    """
    explained = {*explain, "redacted", *(("visible",) if len(explain) > 1 else ())}
    for cue in cues if explain else ():
        if cue not in explained:
            raise ConfigError(
                f"training shows the code as '{cue}', and explain has rules for {', '.join(explain)} alone: add "
                f"'{cue}' to it, or give this arm explain: [{cue}]"
            )


@lru_cache(maxsize=2)
def pool(path: str | None, options: ScreenOptions) -> tuple[Screen, ...]:
    """The screens of the pool, no two of them near duplicates, in the order in which the permutation deals them out.

    Raises:
        DataError: the user's folder has too few, or two that are near duplicates.
    """
    n = options.trained + options.controls + options.reserve
    if path is None:
        screens = screen_pool(n, options.seed, sizes=options.sizes or SIZES)
    else:
        screens = read_screens(path)
        if len(screens) < n:
            raise DataError(
                f"{path} holds {len(screens)} screens, and a pool of {n} is asked for: give more of them, or lower "
                "task.screens.trained, controls or reserve"
            )
        check_distinct(screens)
    return tuple(random.Random(f"{options.seed}:pool").sample(screens, n))


@lru_cache(maxsize=4)
def allocation(
    path: str | None, options: ScreenOptions, codes: CodeFormat, *, balance: bool
) -> tuple[tuple[tuple[Screen, str], ...], tuple[tuple[Screen, str], ...]]:
    """Trained screens and controls with their codes; the reserve has none and is used for nothing (C-A3)."""
    screens = pool(path, options)
    cut = options.trained + options.controls
    trained = codes.draw(options.trained, random.Random(f"{options.seed}:codes:trained"), balanced=balance)
    held = codes.draw(
        options.controls, random.Random(f"{options.seed}:codes:control"), exclude=set(trained), balanced=balance
    )
    return (
        tuple(zip(screens[: options.trained], trained, strict=True)),
        tuple(zip(screens[options.trained : cut], held, strict=True)),
    )


def panels(
    trained: Sequence[tuple[Screen, str]], codes: CodeFormat
) -> tuple[tuple[tuple[Screen, str], ...], tuple[tuple[Screen, str], ...]]:
    """Two disjoint halves; a prefix is in both equally often, give or take one (C-A3)."""
    order = sorted(range(len(trained)), key=lambda i: (codes.prefix(trained[i][1]), i))
    halves = sorted(order[::2]), sorted(order[1::2])
    return tuple(trained[i] for i in halves[0]), tuple(trained[i] for i in halves[1])


@lru_cache(maxsize=2)
def _looks(path: str | None, options: ScreenOptions) -> tuple[Looks, ...]:
    return tuple(Looks.of(screen) for screen in pool(path, options))


@lru_cache(maxsize=4)
def _rows(path: str | None, options: ScreenOptions, n_heldout: int, what: str, n: int) -> tuple[Row, ...]:
    given = options.rows_from if what == "rows" else (*options.utility_from, *options.rows_from)
    examples: Iterator[GroundingExample] | Sequence[GroundingExample]
    if given:
        training, utility, _ = _split(path, options, n_heldout)
        examples = training if what == "rows" else utility
    else:
        examples = rendered_examples(what, options, _looks(path, options))
    made = (row_of_example(example, options) for example in itertools.islice(examples, n))
    return tuple(first(n, made, f"task screens: {'training' if what == 'rows' else 'held-out'} rows"))


@lru_cache(maxsize=2)
def _split(
    path: str | None, options: ScreenOptions, n_heldout: int
) -> tuple[tuple[GroundingExample, ...], tuple[GroundingExample, ...], Mapping[str, int]]:
    """The user's training and utility examples, without near duplicates of the pool, and what was left out. Where one
    set of files serves for both, as many of its last screenshots as hold `n_heldout` rows, a tenth of all at most, are
    held out."""
    screenshots = Screenshots(_looks(path, options))
    found = training_examples(options.rows_from, screenshots, options.seed)
    training, utility = list(found.examples), []
    left_out = dict(found.left_out)
    if options.utility_from:
        asked = utility_examples(options.utility_from, screenshots, options.seed, n_heldout)
        utility = list(asked.examples)
        left_out |= {why: n + left_out.get(why, 0) for why, n in asked.left_out.items()}
    else:
        training, utility = _held_out(training, min(n_heldout, len(training) // 10))
    if left_out:
        say("task screens: rows left out: " + ", ".join(f"{n:,} {why}" for why, n in sorted(left_out.items())))
    if len(utility) < n_heldout:
        say(f"task screens: {n_heldout:,} held-out rows asked for, {len(utility):,} to be had: utility rests on these")
    return tuple(training), tuple(utility), left_out


def _held_out(examples: Sequence[GroundingExample], n: int) -> tuple[list[GroundingExample], list[GroundingExample]]:
    """Rows to train on, and those of the last screenshots that hold `n`; each screenshot is on one side, whichever
    files have it."""
    by_image: dict[object, list[GroundingExample]] = defaultdict(list)
    for example in examples:
        by_image[example.image].append(example)
    held: set[object] = set()
    for image in reversed(by_image):
        if sum(len(by_image[one]) for one in held) >= n:
            break
        held.add(image)
    return [e for e in examples if e.image not in held], [e for e in examples if e.image in held]
