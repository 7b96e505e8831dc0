"""Near duplicates among screens, by pixels: the canary paper's rule (appendix C-B1).

Two images are near duplicates if at least 95% of pixels differ by at most three levels in every channel, or if the mean
absolute difference is at most three on the scale of 0 to 255. Both are taken at full resolution, with nearest-neighbour
resizing where sizes differ. Within a pool every pair of masked screens is compared; across sets, screens with and
without their source region masked are.

Ours: the image with fewer pixels is resized to the size of the other (the second one where they have as many). The
paper shortlists at two thumbnail resolutions without saying how; we take means over 8x8 and 32x32 cells and leave out
only pairs that cannot pass: cell means are no further apart than the images, and in a cell whose means differ by d at
least (d - 3) / 252 of the pixels are not close. So nothing of one size is missed; images of different sizes get two
levels more for what resizing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from indelible.data.pictures import Picture, pixels
from indelible.data.screen_types import Screen
from indelible.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

MAX_LEVELS = 3
MIN_SHARE = 0.95
_SLACK = 2.0
_THUMBNAILS = (8, 32)

Pixels = np.ndarray
"""uint8, (height, width, 3)."""


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """Two images that are near duplicates.

    Attributes:
        first, second: their names.
        close_share: of pixels that differ by at most three levels in every channel.
        mean_difference: absolute, over pixels and channels, in levels.
    """

    first: str
    second: str
    close_share: float
    mean_difference: float


def duplicates_in_pool(screens: Sequence[Screen]) -> list[NearDuplicate]:
    """Near duplicates among all pairs of the screens, each with its source region masked."""
    looks = [Looks(screen.id, (_masked_view(screen),)) for screen in screens]
    return [hit for i, a in enumerate(looks) for b in looks[i + 1 :] if (hit := a.near(b))]


def check_distinct(screens: Sequence[Screen]) -> None:
    """Does nothing for a pool without near duplicates.

    Errors:
        DataError: there are some; one line with the first of them.
    """
    found = duplicates_in_pool(screens)
    if found:
        one = found[0]
        others = f", with {len(found) - 1} more such pairs" if len(found) > 1 else ""
        raise DataError(
            f"'{one.first}' and '{one.second}' are near duplicates ({one.close_share:.1%} of pixels within 3 levels, "
            f"mean difference {one.mean_difference:.2f}){others}; expected none: leave one of them out."
        )


@dataclass(frozen=True)
class _View:
    """One image that is decoded only when its thumbnails leave no doubt that it must be."""

    load: Callable[[], Image.Image]
    thumbnails: tuple[Pixels, ...]


@dataclass(frozen=True)
class Looks:
    """How a screen or picture looks, its source region shown and masked, ready to be compared many times."""

    name: str
    views: tuple[_View, ...]

    @staticmethod
    def of(shown: Screen | tuple[str, Picture]) -> Looks:
        """The looks of a screen or of a named picture."""
        if isinstance(shown, Screen):
            return Looks(shown.id, (_view(partial(pixels, shown.picture)), _masked_view(shown)))
        return Looks(shown[0], (_view(partial(pixels, shown[1])),))

    def near(self, other: Looks) -> NearDuplicate | None:
        """The first two views that are near duplicates, or None."""
        for a in self.views:
            for b in other.views:
                if all(_may_pass(x, y) for x, y in zip(a.thumbnails, b.thumbnails, strict=True)):
                    share, mean = compare(a.load(), b.load())
                    if share >= MIN_SHARE or mean <= MAX_LEVELS:
                        return NearDuplicate(self.name, other.name, share, mean)
        return None


def _view(load: Callable[[], Image.Image]) -> _View:
    from PIL import Image

    image = load()
    small = (image.resize((side, side), Image.Resampling.BOX) for side in _THUMBNAILS)
    return _View(load, tuple(np.asarray(thumbnail, dtype=np.int16) for thumbnail in small))  # (side, side, 3)


def _masked_view(screen: Screen) -> _View:
    return _view(partial(_masked, screen))


def _masked(screen: Screen) -> Image.Image:
    image = pixels(screen.picture)
    image.paste(screen.style.mask, screen.source)
    return image


def _may_pass(a: Pixels, b: Pixels) -> bool:
    """Whether two images with these cell means may be near duplicates."""
    apart = np.abs(a - b).astype(np.float64)  # (side, side, 3)
    far = np.clip(apart.max(axis=2) - MAX_LEVELS - _SLACK, 0, None) / (255 - MAX_LEVELS)
    return bool(far.mean() <= 1 - MIN_SHARE or apart.mean() <= MAX_LEVELS + _SLACK)


def compare(a: Image.Image, b: Image.Image) -> tuple[float, float]:
    """Share of close pixels and mean absolute difference of two images in mode RGB, as the rule takes them."""
    from PIL import Image

    if a.size != b.size:
        if a.width * a.height >= b.width * b.height:
            b = b.resize(a.size, Image.Resampling.NEAREST)
        else:
            a = a.resize(b.size, Image.Resampling.NEAREST)
    difference = np.abs(np.asarray(a, dtype=np.int16) - np.asarray(b, dtype=np.int16))  # (H, W, 3)
    return float((difference.max(axis=2) <= MAX_LEVELS).mean()), float(difference.mean())
