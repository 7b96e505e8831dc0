"""Before a model is trained on screens: can it see them, does it see the codes, and is nothing else changed?

Source: the canary paper, appendix C-B1 (visual checks, also after the models' image processing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from indelible.canaries.base import Canary
from indelible.canaries.config import SCREEN_PROBES
from indelible.canaries.design import Design
from indelible.canaries.encodings import REDACTED
from indelible.canaries.probes import probes
from indelible.canaries.screen_config import ScreenOptions
from indelible.data.chat import ChatFormat, Encoded
from indelible.data.pictures import Picture, picture
from indelible.data.records import Query
from indelible.data.screen_checks import VariantFacts, check_variant
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
        seen: a picture as its image processing leaves it.
    """

    chat: ChatFormat
    encode: Callable[[Query], Encoded]
    seen: Callable[[Picture], Image.Image]
    _checked: dict[Any, VariantFacts] = field(default_factory=dict, repr=False, compare=False)

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
    return Eyes(model.chat, model.encode, model.sight.seen)


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
        return eyes_of(loaded), loaded.context_length
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
    """Check the screens of every canary that is trained on or asked about, before and after the model's processing.

    Pixels: every variant leaves what surrounds the region untouched, and covers the region (`data/screen_checks.py`).
    Reading, by OCR: the own code and the trained cue are read; on the user's own screens, nothing of a code is read on
    the variants that hide it (a rendered screen is drawn before its code is). Tokens: every probe has as many image
    tokens as the training row.

    Returns:
        counts for the report, and the smallest letters in pixels an em, before and after processing.

    Raises:
        DataError: a check fails; one line.
    """
    options = design.config.task.screens or ScreenOptions()
    is_own = design.config.task.path is not None
    found: list[VariantFacts] = []
    unread: list[str] = []
    not_read: str | None = None
    for canary in design.canaries:
        screen = canary.identity.screen
        if screen is None:
            continue
        for mode, text in _variants(design, canary):
            reads = not_read is None and (mode == "visible" or is_own)
            fact = _check(eyes, screen, mode, text, canary.code, reads=reads)
            if isinstance(fact, MissingExtra):
                not_read, fact = str(fact), _check(eyes, screen, mode, text, canary.code, reads=False)
            if isinstance(fact, DataError):
                if options.must_read:
                    raise fact
                unread.append(str(fact))
                fact = _check(eyes, screen, mode, text, canary.code, reads=False)
            if isinstance(fact, VariantFacts):
                found.append(fact)
    _check_tokens(design, eyes)
    letters = [fact for fact in found if fact.text_px]
    return {
        "screen_pictures": len(found),
        "smallest_letters_px": min((fact.text_px for fact in letters), default=None),
        "smallest_letters_processed_px": min((round(fact.text_px_processed, 1) for fact in letters), default=None),
        "read": sum(bool(fact.words_read) for fact in found),
        "unread": len(unread),
        "first_unread": unread[0] if unread else None,
        "not_read": not_read,
    }


def _variants(design: Design, canary: Canary) -> list[tuple[Mode, str]]:
    """What can be seen of a canary's screen: its own code, the trained cue, nothing, no pane."""
    made: list[tuple[Mode, str]] = [("visible", design.cue("visible").encode(canary.code)), ("redacted", "")]
    trained = design.cue(canary.cue).encode(canary.code)
    if canary.dose and trained not in (REDACTED, made[0][1]):
        made.append(("visible", trained))
    return [*made, ("absent", "")] if canary.role == "focal" else made


def _check(
    eyes: Eyes, screen: Screen, mode: Mode, text: str, code: str, *, reads: bool
) -> VariantFacts | DataError | MissingExtra:
    """Facts, or why a picture is not read; what is wrong with its pixels is raised."""
    key = (screen, mode, text, reads)
    if key not in eyes._checked:  # arms share their screens
        shown = canary_picture(screen, mode, text)
        lines: Sequence[str] = (text,) if text else ()
        exact = text == code
        arguments: dict[str, Any] = {"code": code, "process": lambda image: eyes.seen(picture(image)), "exact": exact}
        pixels = check_variant(screen, shown, mode, lines, **arguments, read=False)
        try:
            eyes._checked[key] = check_variant(screen, shown, mode, lines, **arguments) if reads else pixels
        except (DataError, MissingExtra) as error:
            return error
    return eyes._checked[key]


def canary_picture(screen: Screen, mode: Mode, text: str) -> Picture:
    """A variant of a screen."""
    from indelible.data.screen_variants import show

    return show(screen, mode, (text,) if text else ())


def _check_tokens(design: Design, eyes: Eyes) -> None:
    """Every probe is as long as the training row would be in its place: their pictures have the same image tokens."""
    by_id = {canary.id: canary for canary in design.canaries}
    for probe in probes(design, SCREEN_PROBES[:5]):
        canary = by_id[probe.canary_id]
        row = design.row_of(canary)
        trained, asked = (
            len(eyes.encode(Query(row.messages, row.answer, images))) for images in (row.images, probe.images)
        )
        if trained != asked:
            raise DataError(
                f"{canary.id}: with the picture of training its row has {trained} tokens, with that of the probe "
                f"'{probe.probe}' {asked}: image tokens must be the same in both; report the model's image processing"
            )
