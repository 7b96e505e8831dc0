"""Thumbnails of a few canary screens for a report: what training shows of a code, and what probes hide."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

from indelible.canaries.design import Design
from indelible.canaries.encodings import REDACTED
from indelible.report.canary_wording import SCREENS
from indelible.runs import RunDir

N_SCREENS = 3
WIDTH = 320
"""Of a thumbnail, in pixels."""


def write_sheet(run: RunDir, designs: Sequence[Design], *, with_text: bool) -> None:
    """`screens.png` in the run: a line for each of a few screens, with a made-up code in every form that training
    shows, masked, and without the pane. The user's own screens only `with_text`: they may show more than a code.
    """
    first = designs[0]
    if not first.on_screens or (first.config.task.path is not None and not with_text):
        return
    from PIL import Image

    from indelible.data.pictures import pixels

    shown = [canary for canary in first.of("focal", "control") if canary.identity.screen is not None][:N_SCREENS]
    if not shown:
        return
    forms = dict.fromkeys(("visible", *(design.config.cue for design in designs)))
    taken = {canary.code for canary in first.canaries} | {code for codes in first.new_codes.values() for code in codes}
    codes = first.codes.draw(len(shown), random.Random("thumbnails"), exclude=taken)
    lines = []
    for canary, code in zip(shown, codes, strict=True):
        cues: list[str | None] = [first.cue(form).encode(code) for form in forms if form != "redacted"]
        pictures = [canary.identity.pictures(cue)[0] for cue in (*cues, REDACTED, None)]
        images = [pixels(picture) for picture in pictures]
        lines.append([image.resize((WIDTH, round(image.height * WIDTH / image.width))) for image in images])
    gap = 8
    height = sum(line[0].height + gap for line in lines) - gap
    sheet = Image.new("RGB", (len(lines[0]) * (WIDTH + gap) - gap, height), "white")
    top = 0
    for line in lines:
        for column, image in enumerate(line):
            sheet.paste(image, (column * (WIDTH + gap), top))
        top += line[0].height + gap
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    run.write_bytes(SCREENS, buffer.getvalue())
