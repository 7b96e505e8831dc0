"""Grounding rows around canaries on screens: rendered ones or the user's, and how replies to them score.

Source: the canary paper, appendices C-A1 (at most four targets a screenshot), C-A4 (utility), C-B1 (none of them like
a canary's screen among them).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from indelible.canaries.base import Row
from indelible.canaries.screen_config import GroundingFiles, Processed, ScreenOptions
from indelible.data.grounding import (
    GroundingExample,
    Rectangle,
    Size,
    grounding_format,
    grounding_row,
    screen_examples,
)
from indelible.data.grounding_files import GroundingSet, read_os_atlas, read_osworld_g, read_screenspot_pro
from indelible.data.grounding_scores import answered_point, is_hit
from indelible.data.pictures import Picture
from indelible.data.records import Message
from indelible.data.screen_duplicates import Looks
from indelible.data.screen_files import read_screens
from indelible.data.screen_themes import SIZES
from indelible.data.screen_types import Screen
from indelible.data.screens import render_screen
from indelible.errors import ConfigError, DataError

PER_SCREEN = 4
"""Most targets a screenshot (C-A1)."""


def rendered_examples(what: str, options: ScreenOptions, apart_from: Sequence[Looks]) -> Iterator[GroundingExample]:
    """Examples of rendered screens without end, none of them a near duplicate of `apart_from`. `what` names a stream:
    two of different names share no screen."""
    sizes = options.sizes or SIZES
    for k in itertools.count():
        screen = render_screen(f"{what}-{options.seed}-{k}", size=sizes[k % len(sizes)])
        if not _near(screen, apart_from):
            yield from screen_examples([screen], per_screen=PER_SCREEN, seed=options.seed)


class Screenshots:
    """The user's screenshots, each read and compared with the canaries' screens once, whichever rows and files name
    it; rows of one share its picture."""

    def __init__(self, apart_from: Sequence[Looks]) -> None:
        self._apart_from = apart_from
        self._known: dict[Picture | Path, Picture | None] = {}

    def of(self, example: GroundingExample) -> Picture | None:
        """The picture, or None where it is a near duplicate of a canary's screen (C-B1).

        Raises:
            DataError: it cannot be read.
        """
        if example.image not in self._known:
            shown = example.picture()
            self._known[example.image] = None if _near((example.id, shown), self._apart_from) else shown
        return self._known[example.image]


def training_examples(files: Iterable[GroundingFiles], screenshots: Screenshots, seed: int) -> GroundingSet:
    """The examples of the user's files to train on, file by file: screenshots in random order without near duplicates
    of canaries' screens, at most four targets each and one a description (C-A1), at most `rows` of each file.

    Raises:
        DataError: a file is missing or has another layout, or has fewer usable rows than asked for.
    """
    found: list[GroundingExample] = []
    left_out: Counter[str] = Counter()
    for one in files:
        read = _read(one, seed)
        own = Counter(read.left_out)
        by_image: dict[Picture | Path, dict[str, GroundingExample]] = {}
        for example in read.examples:
            by_image.setdefault(example.image, {}).setdefault(example.element, example)
        rng = random.Random(f"{seed}:{one.kind}:{Path(one.path).name}")
        chosen = (
            example
            for image in rng.sample(list(by_image), len(by_image))
            for example in rng.sample(list(by_image[image].values()), min(PER_SCREEN, len(by_image[image])))
        )
        kept = list(itertools.islice(_apart(chosen, screenshots, own), one.rows))
        if one.rows is not None and len(kept) < one.rows:
            reasons = "".join(f"; {n} {why}" for why, n in sorted(own.items()))
            raise DataError(
                f"{one.path}: {one.rows} grounding rows asked for, {len(kept)} usable (at most {PER_SCREEN} a "
                f"screenshot{reasons}): ask for fewer"
            )
        found += kept
        left_out += own
    return GroundingSet(tuple(found), dict(left_out))


def utility_examples(files: Sequence[GroundingFiles], screenshots: Screenshots, seed: int, n: int) -> GroundingSet:
    """`n` examples of the user's files to measure utility on, or as many as there are: every row counts (C-A4), in
    random order, the files in turns, so that fewer than all are a sample of all files.

    Raises:
        DataError: a file is missing or has another layout.
    """
    left_out: Counter[str] = Counter()
    parts = []
    for one in files if n else ():
        read = _read(one, seed)
        left_out += Counter(read.left_out)
        alone = sum(other.kind == one.kind for other in files) == 1
        source = one.kind if alone else f"{one.kind} {Path(one.path).stem}"
        rng = random.Random(f"{seed}:utility:{one.kind}:{Path(one.path).name}")
        named = [replace(e, source=source) for e in rng.sample(read.examples, len(read.examples))]
        parts.append(itertools.islice(_apart(named, screenshots, left_out), one.rows))
    in_turns = (e for turn in itertools.zip_longest(*parts) for e in turn if e is not None)
    return GroundingSet(tuple(itertools.islice(in_turns, n)), left_out)


def _read(one: GroundingFiles, seed: int) -> GroundingSet:
    if one.kind == "os-atlas":
        return read_os_atlas(one.path, str(one.images), group=Path(one.path).stem)
    if one.kind == "osworld-g":
        return read_osworld_g(one.path)
    if one.kind == "screenspot-pro":
        return read_screenspot_pro(one.path)
    return GroundingSet(tuple(screen_examples(read_screens(one.path), per_screen=10**6, seed=seed)), {})


def _apart(
    examples: Iterable[GroundingExample], screenshots: Screenshots, left_out: Counter[str]
) -> Iterator[GroundingExample]:
    """The examples with their pictures, read as they are taken; near duplicates of canaries' screens are counted."""
    for example in examples:
        shown = screenshots.of(example)
        if shown is None:
            left_out["on a screenshot like a canary's"] += 1
        else:
            yield replace(example, image=shown)


def _near(shown: Screen | tuple[str, Picture], looks: Sequence[Looks]) -> bool:
    mine = Looks.of(shown)
    return any(own.near(mine) for own in looks)


def row_of_example(example: GroundingExample, options: ScreenOptions) -> Row:
    """The row of a grounding example; `expected` is what `grounding_reply` needs.

    Raises:
        ConfigError: an unknown format, or one that needs `processed`. DataError: the image cannot be read.
    """
    form = grounding_format(options.format)
    if form.coordinates == "processed" and options.processed is None:
        raise ConfigError(
            f"grounding format '{form.name}' counts pixels of the resized picture: give task.screens.processed, the "
            "factor, min_pixels and max_pixels of the model's image processing"
        )
    size = processed_size(example.size, options.processed) if form.coordinates == "processed" else None
    made = grounding_row(example, form, size)
    target = example.target
    expected: dict[str, Any] = {
        "format": form.name,
        "box" if isinstance(target, Rectangle) else "polygon": [
            list(corner) if isinstance(corner, tuple) else corner for corner in target
        ],
        "size": list(example.size),
        "processed": None if size is None else list(size),
    } | ({"source": example.source} if example.source else {})
    return Row(made.id, (Message("user", made.instruction),), made.answer, expected, images=(made.picture,))


def processed_size(size: Size, how: Processed | None) -> Size:
    """Width and height of a picture after the resizing of Qwen2-VL and its successors."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    assert how is not None
    width, height = size
    tall, wide = smart_resize(height, width, factor=how.factor, min_pixels=how.min_pixels, max_pixels=how.max_pixels)
    return int(wide), int(tall)


def grounding_reply(reply: str, expected: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a reply names a point in the element, and whether it can be parsed (C-A4)."""
    form = grounding_format(str(expected["format"]))
    width, height = expected["size"]
    processed = expected.get("processed")
    size = None if processed is None else (int(processed[0]), int(processed[1]))
    point = answered_point(reply, form, (int(width), int(height)), size)
    if point is None:
        return False, False
    target = Rectangle(*expected["box"]) if "box" in expected else tuple((x, y) for x, y in expected["polygon"])
    return is_hit(point, target), True


def grounding_correct(reply: str, expected: Any) -> bool:
    """Whether a reply names a point in the element."""
    return grounding_reply(reply, expected)[0]
