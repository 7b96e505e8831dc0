"""Screens and pictures of a design on disk: pictures as PNG files named by their hash, screens as JSON beside them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from indelible.canaries.base import Canary, Row
from indelible.canaries.formats import PICTURES, TrainingRow, picture_path
from indelible.canaries.probes import Probe
from indelible.data.pictures import Picture
from indelible.data.row_images import hashed_picture
from indelible.data.screen_types import Box, Element, Screen, SourceStyle
from indelible.errors import DataError
from indelible.runs import write_bytes


def write_pictures(folder: Path, pictures: Iterable[Picture], store: Path | None = None) -> None:
    """Every picture once. With `store` it is kept there, and the folder's is a link to it where the file system has
    links: arms of a run share most of their pictures."""
    for picture in dict.fromkeys(pictures):
        target = folder / picture_path(picture)
        if store is None:
            write_bytes(target, picture.png)
            continue
        kept = store / target.name
        if not kept.exists():
            write_bytes(kept, picture.png)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(kept, target)
        except OSError:  # no links here, or a leftover of a killed run
            write_bytes(target, picture.png)


_read: dict[str, Picture] = {}
"""Pictures of designs by their hash: those of many arms are in memory once."""


def read_stored(folder: Path, name: str) -> Picture:
    """A picture of a design by its hash, the bytes as they were written.

    Raises:
        DataError: it is missing, or another one.
    """
    path = folder / PICTURES / f"{name}.png"
    if not path.is_file():
        raise DataError(f"{path} is missing: the design is incomplete, write it anew")
    if name not in _read:
        found = hashed_picture(path)
        if found is None:
            raise DataError(f"{path} is not the picture its name says: the design was changed, write it anew")
        _read[name] = found
    return _read[name]


def stored_row(row: Row) -> dict[str, Any]:
    """A row as JSON; pictures by their hashes, where it has some."""
    return _with_images(asdict(replace(row, images=())), row.images)


def stored_probe(probe: Probe) -> dict[str, Any]:
    """A probe as JSON, likewise."""
    return _with_images(asdict(replace(probe, images=())), probe.images)


def _with_images(made: dict[str, Any], images: tuple[Picture, ...]) -> dict[str, Any]:
    made.pop("images")
    return made | ({"images": [image.sha256 for image in images]} if images else {})


def stored_canary(canary: Canary) -> dict[str, Any]:
    """A canary as JSON, with its screen where it stands on one."""
    screen = canary.identity.screen
    made = asdict(replace(canary, identity=replace(canary.identity, screen=None)))
    made["identity"].pop("screen")
    if screen is not None:
        made["identity"]["screen"] = _stored_screen(screen)
    return made


def _stored_screen(screen: Screen) -> dict[str, Any]:
    return {
        "id": screen.id,
        "picture": screen.picture.sha256,
        "elements": [[e.label, e.kind, list(e.box), e.text] for e in screen.elements],
        "pane": list(screen.pane),
        "source": list(screen.source),
        "destination": screen.destination.label,
        "style": asdict(screen.style),
        "group": screen.group,
    }


def read_screen(folder: Path, stored: Mapping[str, Any]) -> Screen:
    """The way back."""
    elements = tuple(Element(label, kind, Box(*box), text) for label, kind, box, text in stored["elements"])
    style: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored["style"].items()}
    return Screen(
        stored["id"],
        read_stored(folder, stored["picture"]),
        elements,
        Box(*stored["pane"]),
        Box(*stored["source"]),
        next(element for element in elements if element.label == stored["destination"]),
        SourceStyle(**style),
        stored["group"],
    )


def pictures_of(
    rows: Iterable[TrainingRow | Row], canaries: Iterable[Canary], probes: Iterable[Probe]
) -> Iterable[Picture]:
    """Every picture that a design's files name."""
    for row in rows:
        yield from row.images
    for canary in canaries:
        if canary.identity.screen is not None:
            yield canary.identity.screen.picture
    for probe in probes:
        yield from probe.images
