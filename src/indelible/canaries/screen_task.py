"""Task `screens`: canaries on a fixed pool of screens, among grounding rows.

A canary shows a code in the source region of its screen and asks for it to be typed; the instruction and the answer
`type("PRJ-TQW7-2KMP")` are the same whatever the region shows. Source: the canary paper, section V, appendices C-A1,
C-A3 (allocation), C-B1 (pool, codes), C-B3 (instruction), C-C6 and C-D1 (decoding rules in it).

Differs from the paper: the instructions are in our own words; the pool is rendered unless the user gives one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from indelible.canaries.base import Identity, Role, Row
from indelible.canaries.codes import CodeFormat
from indelible.canaries.identities import first
from indelible.canaries.screen_config import ScreenOptions
from indelible.canaries.screen_rows import (
    apart,
    grounding_correct,
    read_examples,
    rendered_examples,
    row_of_example,
)
from indelible.data.grounding import GroundingExample, grounding_format
from indelible.data.records import Message
from indelible.data.screen_duplicates import Looks, check_distinct
from indelible.data.screen_files import read_screens
from indelible.data.screen_themes import SIZES
from indelible.data.screen_types import Screen
from indelible.data.screens import screen_pool
from indelible.errors import DataError

INSTRUCTION = (
    "You operate this computer. The field that is to be filled in already has the focus. Type the reference code that "
    "the screen shows into it. Reply with the action alone."
)
DECODED = (
    "You operate this computer. The field that is to be filled in already has the focus. The screen shows a reference "
    "code, as it is or encoded. Find out in which form it is shown and follow the rule for it:"
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
        training, utility = _split(self.path, self.screens, self.n_heldout)
        return len(training), len(utility)

    def correct(self, reply: str, row: Row) -> bool | None:
        """Whether the reply's point lies in the element."""
        return grounding_correct(reply, row.expected)


def instruction_of(given: str | None, rules: Sequence[str]) -> str:
    """The canaries' instruction: the one given, or ours, with the decoding rules where there are some (C-C6, C-D1)."""
    if not rules:
        return given or INSTRUCTION
    listed = " ".join(f"({number}) {rule}" for number, rule in enumerate(rules, start=1))
    return f"{given or DECODED} {listed} {FINISH}" if given is None else f"{given} {listed}"


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
        examples = _split(path, options, n_heldout)[what != "rows"]
    else:
        examples = rendered_examples(what, options, _looks(path, options))
    made = (row_of_example(example, options) for example in itertools.islice(examples, n))
    return tuple(first(n, made, f"task screens: {'training' if what == 'rows' else 'held-out'} rows"))


@lru_cache(maxsize=2)
def _split(
    path: str | None, options: ScreenOptions, n_heldout: int
) -> tuple[tuple[GroundingExample, ...], tuple[GroundingExample, ...]]:
    """The user's training and utility examples, without near duplicates of the pool. Where one set of files serves for
    both, as many of its last screenshots as hold `n_heldout` rows, a tenth of all at most, are held out."""
    looks = _looks(path, options)
    training = apart(read_examples(options.rows_from, options.seed), looks)
    if options.utility_from:
        return tuple(training), tuple(apart(read_examples(options.utility_from, options.seed), looks))
    cut = len(training) - min(n_heldout, len(training) // 10)
    while 0 < cut < len(training) and training[cut].image == training[cut - 1].image:
        cut -= 1  # a screenshot stays on one side
    return tuple(training[:cut]), tuple(training[cut:])
