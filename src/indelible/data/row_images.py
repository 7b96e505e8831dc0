"""Rows with pictures: paths in a column `images`, and a marker where each stands in the text.

    {"messages": [{"role": "user", "content": "<image>Find this: Save button"}, ...], "images": ["images/ab12.png"]}

Paths are relative to the folder of the file. The marker may also be a part {"type": "image"} of a turn's content, or be
left out. Pictures stand before the text of the first user turn; nothing else can be asked of a model here.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indelible.data.pictures import Picture, read_picture
from indelible.data.records import Message
from indelible.errors import DataError

IMAGES = "images"
MARKER = "<image>"


@dataclass
class PictureReader:
    """Pictures of one file, each read once.

    Attributes:
        folder: that paths are relative to.
    """

    folder: Path
    _known: dict[str, Picture] = field(default_factory=dict)

    def of_row(self, row: Mapping[str, Any], where: str) -> tuple[Picture, ...]:
        """The pictures of a row; none where it has no `images`, or an empty one.

        Raises:
            DataError: `images` is no list of paths, or a picture is missing or unreadable.
        """
        paths = row.get(IMAGES)
        if paths is None or paths != paths or (isinstance(paths, str) and not paths.strip()):
            return ()
        listed = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str | Mapping) else [paths]
        if not all(isinstance(path, str) and path for path in listed):
            raise DataError(f"{where}: column '{IMAGES}' holds something else than paths; expected a list of paths.")
        return tuple(self._read(path, where) for path in listed)

    def _read(self, path: str, where: str) -> Picture:
        if path not in self._known:
            try:
                self._known[path] = hashed_picture(self.folder / path) or read_picture(self.folder / path)
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
        return self._known[path]


def hashed_picture(file: Path) -> Picture | None:
    """The picture of a file that is named by the SHA-256 of its bytes, as designs write them, without decoding it; None
    for any other file."""
    from PIL import Image

    if file.suffix != ".png" or not file.is_file():
        return None
    png = file.read_bytes()
    sha256 = hashlib.sha256(png).hexdigest()
    if sha256 != file.stem:
        return None
    with Image.open(io.BytesIO(png)) as opened:
        return Picture(png, sha256, opened.width, opened.height)


def without_markers(messages: tuple[Message, ...], n_images: int, where: str) -> tuple[Message, ...]:
    """The turns without the markers of their pictures.

    Raises:
        DataError: another number of markers than pictures, or a marker elsewhere than before the text of the first user
            turn.
    """
    n_markers = sum(m.content.count(MARKER) for m in messages)
    if n_markers == 0:
        return messages
    if n_markers != n_images:
        raise DataError(f"{where}: {n_markers} times '{MARKER}' for {n_images} pictures; expected as many, or none.")
    out, left = [], n_images
    for message in messages:
        content = message.content
        if message.role == "user":
            while left and content.lstrip().startswith(MARKER):
                content, left = content.lstrip().removeprefix(MARKER), left - 1
            content = content.removeprefix("\n") if content != message.content else content
        if MARKER in content:
            break
        out.append(replace(message, content=content))
    if left or len(out) < len(messages):
        raise DataError(
            f"{where}: '{MARKER}' stands elsewhere than before the text of the first user turn; expected it there."
        )
    return tuple(out)
