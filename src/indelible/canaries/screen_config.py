"""Settings of the task `screens`: the pool of screens that canaries stand on, and the grounding rows around them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from indelible.config import Seed, Settings


class GroundingFiles(Settings):
    """Grounding rows of the user's: `screens` is a folder of `data/screen_files.py`, the others as in
    `data/grounding_files.py` (`path` is the annotation file of os-atlas, `images` its folder; else a folder).

    `rows`: at most so many, drawn by the pool's seed; in training four a screenshot and one a description.
    """

    kind: Literal["screens", "os-atlas", "osworld-g", "screenspot-pro"] = "screens"
    path: str
    images: str | None = None
    rows: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _whole(self) -> GroundingFiles:
        if (self.kind == "os-atlas") != (self.images is not None):
            raise ValueError("images is the folder of os-atlas's pictures: needed there, and for no other kind")
        return self


class Processed(Settings):
    """How Qwen2-VL and its successors resize a picture: to multiples of `factor` pixels, within bounds of its area."""

    factor: int = Field(default=28, ge=1)
    min_pixels: int = Field(default=3_136, ge=1)
    max_pixels: int = Field(default=12_845_056, ge=1)


class ScreenOptions(Settings):
    """Task `screens`: the pool of screens that canaries stand on, and the grounding rows around them.

    `trained`, `controls`, `reserve`: how a fixed permutation of the pool by `seed` is dealt out (C-A3); codes are fixed
    with it, so that training seeds, models and experiments share both. `sizes`: of rendered screens.
    `format`: of grounding answers, by model family. `processed`: for formats that count pixels of the resized picture.
    `rows_from`, `utility_from`: the user's grounding rows, for training and for utility; rendered where empty.
    `must_read`: a code that OCR cannot read, before or after the model's resizing, is an error; else it is reported.
    """

    trained: int = Field(default=72, ge=1)
    controls: int = Field(default=10, ge=0)
    reserve: int = Field(default=13, ge=0)
    seed: Seed = 0
    sizes: tuple[tuple[int, int], ...] = ()
    format: str = "point-per-mille"
    processed: Processed | None = None
    rows_from: tuple[GroundingFiles, ...] = ()
    utility_from: tuple[GroundingFiles, ...] = ()
    must_read: bool = True
