"""Reading text off pictures with RapidOCR, an OCR library whose models come inside its wheel; nothing is downloaded.

It judges whether a code can be read at all, and whether something of it is left where it should not be. It is no part
of any model that is audited.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from indelible.data.screen_types import Box
from indelible.errors import MissingExtra

if TYPE_CHECKING:
    from PIL import Image

_LINE_PX = 48
"""Height of a line as the recogniser was trained; smaller lines are enlarged to it smoothly beforehand."""


def read_line(image: Image.Image, box: Box, *, stretch: float = 1.0) -> str:
    """The one line of a few words in a box, without spaces, or "" where none is seen.

    The library puts spaces where there are none, so they are left out. It also takes equal neighbours for one (JJ for
    J) where they are narrow; `stretch` widens the line, which mostly parts them.

    Errors:
        MissingExtra: the OCR library is not installed.
    """
    from PIL import Image as Images
    from PIL import ImageOps

    above = max(2, box.height // 4)
    top, bottom = max(box.top - above, 0), min(box.bottom + above, image.height)
    piece = image.convert("RGB").crop((max(box.left - 1, 0), top, min(box.right, image.width), bottom))
    # Room at the sides helps the recogniser, but must not let a neighbour in, so it is made of the ground's colour.
    colours, counts = np.unique(np.asarray(piece).reshape(-1, 3), axis=0, return_counts=True)
    ground = tuple(int(level) for level in colours[counts.argmax()])
    piece = ImageOps.expand(piece, (2 * above, 0), fill=ground)
    height = max(piece.height, _LINE_PX)
    width = max(1, round(stretch * piece.width * height / piece.height))
    if (width, height) != piece.size:
        piece = piece.resize((width, height), Images.Resampling.BICUBIC)
    found, _ = _engine()(_array(piece), use_det=False, use_cls=False, use_rec=True)
    return "".join("".join(str(text) for text, _ in found or []).split())


def read_page(image: Image.Image) -> list[tuple[str, Box]]:
    """Every piece of text that is found on a picture and where, from top to bottom, without spaces.

    Takes a second or more. Small letters are seen because the library enlarges small pictures itself.

    Errors:
        MissingExtra: the OCR library is not installed.
    """
    found, _ = _engine()(_array(image), use_det=True, use_cls=False, use_rec=True)
    pieces = []
    for corners, text, _ in found or []:
        across, down = zip(*corners, strict=True)
        box = Box(round(min(across)), round(min(down)), round(max(across)), round(max(down)))
        pieces.append(("".join(str(text).split()), box))
    return pieces


def _array(image: Image.Image) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])  # blue first, as OpenCV has it


@cache
def _engine() -> Any:
    try:
        from rapidocr_onnxruntime import RapidOCR
    except ImportError as error:
        raise MissingExtra(
            "checking what can be read on screens needs RapidOCR, which is not installed (it comes for Python 3.11 and "
            f"3.12): {error}. Install it with: pip install 'indelible[vision]'"
        ) from error
    # One thread: checks run beside training, and lines are too small to share out.
    return RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)
