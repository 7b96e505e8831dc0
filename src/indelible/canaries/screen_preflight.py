"""Before a model is trained on screens: can it see them, does it see the codes, and is nothing else changed?

Source: the canary paper, appendix C-B1 (visual checks, also after the models' image processing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from indelible.canaries.config import SCREEN_PROBES
from indelible.canaries.design import Design
from indelible.canaries.probes import probes
from indelible.canaries.screen_config import ScreenOptions
from indelible.canaries.screen_rows import processed_size
from indelible.data.chat import ChatFormat, Encoded
from indelible.data.grounding import grounding_format
from indelible.data.pictures import Picture
from indelible.data.records import Query
from indelible.data.screen_checks import Processing, VariantFacts, check_variant, read_variant
from indelible.data.screen_types import Screen
from indelible.data.screen_variants import Mode
from indelible.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from PIL import Image

    from indelible.models.causal import CausalModel


@dataclass(frozen=True)
class Eyes:
    """How a vision-language model renders a question and sees a picture; its weights are not needed for it.

    Attributes:
        chat: the format of its text.
        encode: tokens of a question, image tokens among them.
        seen: a picture as its image processing leaves it. ModelError where it has other image tokens than were counted.
        trained: image tokens by size of picture as training counted them, empty where its trainer did not say; None
            before training.
    """

    chat: ChatFormat
    encode: Callable[[Query], Encoded]
    seen: Callable[[Picture], Image.Image]
    trained: Mapping[str, int] | None = None
    # What was found on pictures: arms share theirs.
    _checked: dict[_Shown, VariantFacts] = field(default_factory=dict, repr=False, compare=False)
    _legible: dict[tuple[_Shown, bool], bool] = field(default_factory=dict, repr=False, compare=False)

    @property
    def tokenizer(self) -> Any:
        """Of the text."""
        return self.chat.tokenizer

    @property
    def name(self) -> str:
        """Of the chat template."""
        return self.chat.name


def eyes_of(model: CausalModel) -> Eyes:
    """Those of a loaded model.

    Raises:
        ModelError: a text model.
    """
    from indelible.errors import ModelError
    from indelible.models.vision import VisionModel

    if not isinstance(model, VisionModel):
        raise ModelError(f"{model.name} has no vision tower, and the canaries stand on screens")
    return Eyes(model.chat, model.encode, model.sight.seen, model.sight.trained)


def load_eyes(model: str, *, template: str | None, trust_remote_code: bool) -> tuple[Eyes, int]:
    """Those of a model by name, and the most tokens it takes.

    Raises:
        ModelError: no such model, or one without a vision tower; no usable tokenizer, template or image processing.
    """
    from transformers import AutoConfig

    from indelible.data.chat import chat_format
    from indelible.models.load import LoadOptions, context_length, load_model, load_tokenizer, quiet
    from indelible.models.sources import locate, trained_system
    from indelible.models.vision import VisionChat, encode_seen
    from indelible.models.vision_load import check_vision, load_sight, take_processor_template

    if model.startswith("builtin:"):  # small, and put together by this package
        loaded, _ = load_model(model, LoadOptions(template=template, chat_data=True, images=True))
        return replace(eyes_of(loaded), trained=None), loaded.context_length
    quiet()
    source = locate(model)
    under = locate(source.base) if source.kind == "adapter" and source.base else source
    check_vision(under)
    tokenizer = load_tokenizer(source, under, trust_remote_code=trust_remote_code)
    take_processor_template(tokenizer, source, under)
    config = AutoConfig.from_pretrained(under.folder, trust_remote_code=trust_remote_code)
    sight = load_sight(config, tokenizer, source, under)
    plain = chat_format(tokenizer, template=template, system=trained_system(source.folder), chat_data=True)
    chat = VisionChat(plain.tokenizer, plain.template, plain.name, plain.system, marker=sight.processor.image_token)
    eyes = Eyes(chat, lambda query: encode_seen(chat, sight, query), sight.seen)
    return eyes, context_length(config.get_text_config(), tokenizer)


def check_screens(design: Design, eyes: Eyes) -> dict[str, Any]:
    """Check the pictures that training shows of canaries and that an audit asks about, before and after the model's
    processing: the very pictures of the rows and of the probes, those of `unseen` and `plain` aside.

    Pixels: every one leaves what surrounds the region untouched, and covers the region (`data/screen_checks.py`).
    Reading, by OCR: codes and cues that are shown are read; on the user's own screens, nothing of a code is read where
    it is hidden (a rendered screen is drawn before its code is). Tokens: the processing makes as many image tokens of
    each as were counted from its size, which is that of the screen. Coordinates: where grounding answers count pixels
    of the resized picture, its size is the one they were made for.

    Returns:
        counts for the report, and the smallest letters in pixels an em, before and after processing.

    Raises:
        DataError: a check fails; one line. A text that cannot be read is counted where `must_read` is off; what is read
        where it should be hidden is always refused. ModelError: other image tokens than counted.
    """
    options = design.config.task.screens or ScreenOptions()
    is_own = design.config.task.path is not None
    seen = lru_cache(maxsize=2)(eyes.seen)  # the screen, and the variant that is checked and then read
    found: list[VariantFacts] = []
    n_read = 0
    unread: list[str] = []
    not_read: str | None = None
    _check_sizes(design, options, seen)
    for one in dict.fromkeys(_pictures(design)):
        found.append(_check(eyes, one, seen))
        if not_read is not None or (one.mode != "visible" and not is_own):
            continue
        try:
            legible = _is_legible(eyes, one, seen, must_read=options.must_read)
        except MissingExtra as error:
            not_read = str(error)
            continue
        n_read += legible and one.mode == "visible"
        unread += [] if legible else [one.screen.id]
    letters = [fact for fact in found if fact.text_px]
    return {
        "screen_pictures": len(found),
        "smallest_letters_px": min((fact.text_px for fact in letters), default=None),
        "smallest_letters_processed_px": min((round(fact.text_px_processed, 1) for fact in letters), default=None),
        "read": n_read,
        "unread": len(unread),
        "first_unread": unread[0] if unread else None,  # the screen alone: what it says may be the user's
        "not_read": not_read,
        "image_tokens_known": None if eyes.trained is None else bool(eyes.trained),
    }


@dataclass(frozen=True)
class _Shown:
    """A picture of a canary and what it is to show: `text`, or nothing of `code`."""

    screen: Screen
    picture: Picture
    mode: Mode
    text: str
    code: str


def _pictures(design: Design) -> Iterator[_Shown]:
    """The pictures of training and of the audit, canary by canary; one and the same may come more than once."""
    asked = probes(design, SCREEN_PROBES[:5])
    for canary in design.canaries:
        screen = canary.identity.screen
        if screen is None:
            continue
        shown: list[tuple[tuple[Picture, ...], str | None, str]] = []  # with what cue, None: no pane; of which code
        if canary.dose:
            shown.append((design.row_of(canary).images, canary.cue, canary.code))
        for probe in asked:
            if probe.canary_id == canary.id:
                carrying = "visible" if probe.probe == "visible" or canary.cue == "redacted" else canary.cue
                hidden = None if probe.probe == "absent" else "redacted"
                cue, code = (hidden, canary.code) if probe.supplied is None else (carrying, probe.supplied)
                shown.append((probe.images, cue, code))
        for (picture,), cue, code in shown:
            if cue is None:
                yield _Shown(screen, picture, "absent", "", code)
            elif cue == "redacted":
                yield _Shown(screen, picture, "redacted", "", code)
            else:
                yield _Shown(screen, picture, "visible", design.cue(cue).encode(code), code)


def _check(eyes: Eyes, one: _Shown, seen: Processing) -> VariantFacts:
    """What is found in the pixels of a picture."""
    if one not in eyes._checked:
        eyes._checked[one] = check_variant(one.screen, one.picture, one.mode, one.text or (), process=seen)
    return eyes._checked[one]


def _is_legible(eyes: Eyes, one: _Shown, seen: Processing, *, must_read: bool) -> bool:
    """Whether a text is read. Raises DataError where it is not and must be, or where something hidden is read."""
    key = one, must_read
    if key not in eyes._legible:
        try:
            read_variant(one.screen, one.picture, one.mode, one.text or (), code=one.code, process=seen)
            eyes._legible[key] = True
        except DataError:
            if must_read or one.mode != "visible":
                raise
            eyes._legible[key] = False
    return eyes._legible[key]


def _check_sizes(design: Design, options: ScreenOptions, seen: Processing) -> None:
    """Answers that count pixels of the resized picture were made for the sizes that this model resizes to."""
    if options.processed is None or grounding_format(options.format).coordinates != "processed":
        return
    screens = [canary.identity.screen.picture for canary in design.canaries if canary.identity.screen is not None]
    rows = [image for row in design.heldout for image in row.images]
    for (width, height), picture in {(one.width, one.height): one for one in (*screens, *rows)}.items():
        said, made = processed_size((width, height), options.processed), seen(picture).size
        if said != made:
            raise DataError(
                f"task.screens.processed resizes a picture of {width}x{height} pixels to {said[0]}x{said[1]}, this "
                f"model's image processing to {made[0]}x{made[1]}: take factor, min_pixels and max_pixels from the "
                "model's preprocessor_config.json"
            )
