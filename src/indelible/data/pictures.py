"""Images as values: PNG bytes with their SHA-256.

A question about an image must be hashable and cheap to compare, and the picture that is scored must be, byte for byte,
the one that was checked. So an image is encoded once, without loss, and only then asked about.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from indelible.errors import DataError

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class Picture:
    """An image as its PNG bytes; equal and hashed by their SHA-256, so that equal questions are asked once.

    Attributes:
        png: the encoded image, RGB. Make one with `picture` or `read_picture`.
        sha256: of `png`, 64 hexadecimal digits.
        width, height: in pixels.
    """

    png: bytes = field(repr=False, compare=False)
    sha256: str
    width: int
    height: int


def picture(image: Image.Image) -> Picture:
    """An image as a Picture. Equal pixels give equal bytes under one version of Pillow.

    Transparent places become white, as a page behind them would be; text chunks, colour profiles and the like are left
    out.
    """
    rgb = _rgb(image)
    buffer = io.BytesIO()
    # Level 6 is zlib's usual trade-off. `optimize` would try several filters for a few per cent at ten times the cost.
    rgb.save(buffer, format="PNG", compress_level=6)
    png = buffer.getvalue()
    return Picture(png, hashlib.sha256(png).hexdigest(), rgb.width, rgb.height)


def read_picture(path: str | Path) -> Picture:
    """The picture of a PNG, JPEG or other image file that Pillow reads, turned upright where its EXIF says so.

    Errors:
        DataError: the file is missing, is no image, or is cut off.
    """
    from PIL import Image, ImageOps

    file = Path(path)
    if not file.is_file():
        raise DataError(f"image '{file}': no such file; expected a PNG or JPEG image. Check the path.")
    try:
        with Image.open(file) as opened:
            return picture(ImageOps.exif_transpose(opened))
    # Pillow tells a broken file by any of these, depending on where the reading stops.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"image '{file}': {str(error).splitlines()[0] if str(error) else type(error).__name__}; expected a whole "
            "PNG or JPEG image. Save it again."
        ) from error


def pixels(shown: Picture) -> Image.Image:
    """The picture decoded, in mode RGB; a new image each time, so it may be drawn on."""
    from PIL import Image

    with Image.open(io.BytesIO(shown.png)) as opened:
        return opened.convert("RGB")


def _rgb(image: Image.Image) -> Image.Image:
    """`image` in mode RGB without its metadata, which would otherwise go into the file."""
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        above = image.convert("RGBA")
        behind = Image.new("RGBA", above.size, "white")
        image = Image.alpha_composite(behind, above)
    plain = Image.new("RGB", image.size)
    plain.paste(image.convert("RGB"))
    return plain
