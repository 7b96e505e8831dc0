"""What is checked of screens before training: the very pictures that are trained on and asked about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vision_fakes
from PIL import Image

from indelible.canaries import base, screen_preflight
from indelible.canaries.config import SCREEN_PROBES, DesignConfig
from indelible.canaries.design import Design, build_design
from indelible.canaries.folder import read_design, restore, write_design
from indelible.canaries.preflight import load_renderer
from indelible.canaries.probes import probes
from indelible.canaries.screen_preflight import Eyes, check_screens, eyes_of
from indelible.data.pictures import Picture, picture, pixels
from indelible.data.screen_types import Screen
from indelible.errors import DataError, ModelError
from indelible.models.sight import Sight
from indelible.report.canary_wording import said_of_screens
from indelible.runs import RunDir

POOL: dict[str, Any] = {"trained": 3, "controls": 1, "reserve": 0, "sizes": [[448, 336]], "must_read": False}


def made(*, screens: dict[str, Any] | None = None, **changes: Any) -> tuple[Design, Any, Any]:
    task = {"name": "screens", "screens": {**POOL, **(screens or {})}}
    given = {"task": task, "rows": 12, "batch_size": 4, "canaries": 2, "dose": 1, "controls": 1, "heldout": 1}
    return build_design(DesignConfig.model_validate({**given, **changes}))


def on_own_screens(design: Design) -> Design:
    """As if its screens were the user's: then what is hidden is read, too."""
    task = design.config.task.model_copy(update={"path": "own"})
    return replace(design, config=design.config.model_copy(update={"task": task}))


def not_asked(_: Any) -> Any:
    raise AssertionError("tokens follow from the size: there is nothing to compare")


def sharp() -> Eyes:
    """Sees every picture as it is."""
    return Eyes(vision_fakes.model("internvl").chat, not_asked, pixels)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Instead of OCR: why a picture of a mode is refused; one that is not named passes."""
    refused: dict[str, str] = {}

    def read(screen: Screen, shown: Picture, mode: str, lines: Any, **_: Any) -> tuple[str, ...]:
        if mode in refused:
            raise DataError(refused[mode])
        return ()

    monkeypatch.setattr(screen_preflight, "read_variant", read)
    return refused


def test_the_pictures_of_rows_and_probes_are_checked(monkeypatch: pytest.MonkeyPatch, readings: dict[str, str]) -> None:
    checked: list[tuple[Picture, str]] = []
    check = screen_preflight.check_variant

    def noted(screen: Screen, shown: Picture, mode: Any, lines: Any, **options: Any) -> Any:
        checked.append((shown, str(lines)))
        return check(screen, shown, mode, lines, **options)

    monkeypatch.setattr(screen_preflight, "check_variant", noted)
    design = made(cue="binary", auxiliary={"canaries": 1, "dose": 2, "cue": "redacted"}, heldout=0)[0]
    facts = check_screens(design, sharp())
    wanted = {image for canary in design.canaries if canary.dose for image in design.row_of(canary).images}
    wanted |= {image for probe in probes(design, SCREEN_PROBES[:5]) for image in probe.images}
    assert {shown for shown, _ in checked} == wanted
    assert len(checked) == facts["screen_pictures"] == len(wanted), "each once"
    replacement = design.new_codes["focal-000"][-1]
    assert design.cue("binary").encode(replacement) in {text for _, text in checked}
    assert facts["read"] == 2 * 3 + 1


def test_what_is_read_where_it_should_be_hidden_is_always_refused(readings: dict[str, str]) -> None:
    design = on_own_screens(made()[0])
    readings["redacted"] = "screen 'pool-0': 'XAHP' of the code is read on a variant that hides it"
    with pytest.raises(DataError, match="read on a variant that hides it"):
        check_screens(design, sharp())


def test_what_cannot_be_read_is_counted_and_not_quoted(readings: dict[str, str]) -> None:
    readings["visible"] = "screen 'x': the source region shows 'SECRET' but is read as 'SECRFT'"
    facts = check_screens(on_own_screens(made()[0]), sharp())
    assert (facts["read"], facts["unread"]) == (0, 2 * 2 + 1)
    assert "SECR" not in str(facts)
    said = said_of_screens(facts)
    assert f"5 not legible, first of screen {facts['first_unread']}" in said
    assert "trainer" not in said
    with pytest.raises(DataError, match="SECRFT"):
        check_screens(made(screens={"must_read": True})[0], sharp())


def test_a_picture_with_other_tokens_than_counted_is_refused(readings: dict[str, str]) -> None:
    sight = vision_fakes.model("internvl").sight
    text, n = sight.written_at(448, 336)
    wrong = Sight(sight.family, sight.processor, sight.token_id, sight.first_id)
    wrong._written[448, 336] = text + sight.processor.image_token, n + 1
    with pytest.raises(ModelError, match="were foreseen"):
        check_screens(made()[0], Eyes(vision_fakes.model("internvl").chat, not_asked, wrong.seen))


def test_the_resizing_that_answers_count_in_is_that_of_the_model(readings: dict[str, str]) -> None:
    seen = vision_fakes.model("qwen2_5_vl").sight.seen
    eyes = Eyes(vision_fakes.model("qwen2_5_vl").chat, not_asked, seen)
    right = {"factor": 28, "min_pixels": 56 * 56, "max_pixels": 112 * 112}
    for processed, refused in ((right, False), ({}, True), ({**right, "factor": 32}, True)):
        design = made(screens={"format": "qwen2.5-vl-point", "processed": processed})[0]
        if not refused:
            check_screens(design, eyes)
            continue
        with pytest.raises(DataError, match=r"resizes a picture of 448x336 .* take factor, min_pixels") as caught:
            check_screens(design, eyes)
        assert "\n" not in str(caught.value)
    check_screens(made(screens={"processed": {}})[0], eyes)  # answers that count otherwise


def test_a_report_says_where_the_image_tokens_of_training_are_unknown(readings: dict[str, str], tmp_path: Path) -> None:
    design = made()[0]
    model = vision_fakes.model("internvl")
    assert eyes_of(model).trained == {}, "as after another trainer"
    facts = check_screens(design, replace(eyes_of(model), seen=pixels))
    assert "is taken on trust" in said_of_screens(facts)
    before, _ = load_renderer(str(vision_fakes.write("internvl", tmp_path)), on_screens=True, template=None)
    assert isinstance(before, Eyes)
    assert before.trained is None
    facts = check_screens(design, replace(eyes_of(model), seen=pixels, trained={"448x336": 12}))
    assert "trust" not in said_of_screens(facts)


def test_a_design_that_is_drawn_otherwise_here_is_not_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    design, rows, displaced = made()
    facts = {"kind": "canary-design", "config": {"resolved": design.config.model_dump(mode="json")}}
    write_design(RunDir.open(tmp_path / "design"), design, rows, displaced, facts)
    draw = base._picture

    def repacked(screen: Screen, cue: str | None) -> Picture:
        shown = draw(screen, cue)
        return replace(shown, png=shown.png + b"another compression", sha256=f"other {shown.sha256}")

    monkeypatch.setattr(base, "_picture", repacked)
    assert read_design(tmp_path / "design") == design, "equal pixels in other bytes are the same picture"

    def otherwise(screen: Screen, cue: str | None) -> Picture:
        return picture(pixels(draw(screen, cue)).transpose(Image.Transpose.FLIP_LEFT_RIGHT))

    monkeypatch.setattr(base, "_picture", otherwise)
    with pytest.raises(
        DataError, match=r"focal-000 for the probe 'redacted' is drawn otherwise here \(indelible"
    ) as no:
        read_design(tmp_path / "design")
    assert "\n" not in str(no.value)
    assert restore(tmp_path / "design", tmp_path / "restored.jsonl") == 2, "which needs no drawing"
