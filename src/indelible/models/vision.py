"""Vision-language models on this machine, asked like text models.

An image token has no id of its own: a thousand of them stand for a picture, all with the placeholder's id. Here each
gets an id that no other picture has, above the vocabulary's. What the engine does with token ids then holds for
pictures: questions that begin with the same picture and prompt share a beginning, computed once; a trie of candidates
stands on its keys and values; rows of a training step lie side by side. Where the ids meet the decoder, they become
embeddings again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.data.chat import ChatFormat, Encoded
from indelible.data.records import Message, Query
from indelible.errors import DataError, ModelError
from indelible.models.causal import CausalModel
from indelible.models.generation import prompt_ids
from indelible.models.sight import Sight
from indelible.scoring.network import Network

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class VisionChat(ChatFormat):
    """A chat format whose first user turn begins with images.

    Attributes:
        marker: the token that the template writes for an image.
        written: for each image, the tokens that stand there instead.
    """

    marker: str = ""
    written: tuple[str, ...] = ()

    def pieces(self, messages: tuple[Message, ...], target: str) -> list[Any]:
        """As for text.

        Raises:
            ModelError: images, and no conversation to put them in; or the template does not write one for each.
        """
        if self.written and all(m.role == "text" for m in messages):
            raise ModelError("images stand in a user turn, and this is plain text: give a conversation")
        return super().pieces(messages, target)

    def _render(self, turns: list[dict[str, Any]], *, prompt: bool) -> str:
        parted: list[dict[str, Any]] = []
        left = len(self.written)
        for turn in turns:
            parts: list[dict[str, str]] = []
            if turn["role"] == "user":
                parts, left = [{"type": "image"}] * left, 0
            parted.append({**turn, "content": [*parts, {"type": "text", "text": turn["content"]}]})
        cut = super()._render(parted, prompt=prompt).split(self.marker)
        if len(cut) != len(self.written) + 1:
            raise ModelError(
                f"chat template '{self.name}' leaves {len(cut) - 1} places for {len(self.written)} image(s): the text "
                f"must not hold '{self.marker}' itself, images need a user turn, and the template must know them"
            )
        return cut[0] + "".join(tokens + text for tokens, text in zip(self.written, cut[1:], strict=True))


@dataclass(frozen=True, kw_only=True)
class VisionModel(CausalModel):
    """A loaded vision-language model: all that a `CausalModel` is, for questions with images too."""

    sight: Sight = field(repr=False, compare=False)

    @property
    def fingerprint(self) -> str:
        """Changes with the image processing besides."""
        return hashlib.sha256(f"{super().fingerprint} {self.sight.fingerprint}".encode()).hexdigest()[:32]

    @property
    def network(self) -> Network:
        """What the engine needs of the module: its decoder, behind embeddings of text and pictures."""
        decoder = self.causal.get_decoder()
        backbone = Seeing(self.causal, decoder, self.sight, self.adapter)
        positions = backbone.positions if self.sight.family.rotary else None
        return replace(super().network, backbone=backbone, config=decoder.config, positions=positions)

    @property
    def untrained(self) -> str | None:
        """The vision encoder's modules."""
        return self.sight.family.encoder

    @property
    def facts(self) -> dict[str, Any]:
        """Family, image processing, and image tokens by size."""
        sight = self.sight
        return {"family": sight.family.name, "image_processing": sight.settings, "image_tokens": sight.by_size()}

    def encode(self, query: Query) -> Encoded:
        """Tokens of a query in this model's format; each image token has an id of its own.

        Raises:
            ModelError: the template does not take these images, or an image has other tokens than in training.
        """
        assert isinstance(self.chat, VisionChat)
        return encode_seen(self.chat, self.sight, query)

    def answer_ids(self, query: Query, texts: Sequence[str], n_fixed: int) -> tuple[Ids, list[Ids]]:
        """As for text, behind the query's images.

        Raises:
            DataError: an answer holds an image token.
        """
        unseen = replace(query, images=())
        prompt, ids = CausalModel.answer_ids(replace(self, chat=self._chat(query)), unseen, texts, n_fixed)
        if (np.concatenate(ids) == self.sight.token_id).any():
            raise DataError(f"an answer holds the image token '{self.sight.processor.image_token}'")
        return self.sight.numbered(prompt, query.images), ids

    def prompt_ids(self, query: Query) -> Ids:
        """Tokens up to where a reply goes on, images among them."""
        ids = prompt_ids(replace(self, chat=self._chat(query)), replace(query, images=()))
        return self.sight.numbered(ids, query.images)

    def generation_inputs(self, ids: Ids, mask: Ids) -> dict[str, Tensor]:
        """What the transformers module takes: placeholders, and the pictures they stand for. One prompt (1, T) if it
        has images."""
        shown = self.sight.shown(ids)
        found = super().generation_inputs(self.sight.placeholders(ids), mask)
        if not shown:
            return found
        if self.sight.family.rotary:
            kinds = (found["input_ids"] == self.sight.token_id).int()
            found["mm_token_type_ids"] = kinds
        return found | {name: value.to(self.device) for name, value in self.sight.inputs(shown).items()}

    def save_rendering(self, folder: Path) -> None:
        """Besides: the image processing, and how many tokens pictures had, which later questions must agree with."""
        super().save_rendering(folder)
        self.sight.processor.image_processor.save_pretrained(folder)
        (folder / "vision.json").write_text(json.dumps({"image_tokens": self.sight.by_size()}, indent=1) + "\n")

    def _chat(self, query: Query) -> VisionChat:
        assert isinstance(self.chat, VisionChat)
        return _of_images(self.chat, self.sight, query)


def encode_seen(chat: VisionChat, sight: Sight, query: Query) -> Encoded:
    """Tokens of a query with images, which needs no weights."""
    encoded = _of_images(chat, sight, query).encode(replace(query, images=()))
    return replace(encoded, input_ids=sight.numbered(encoded.input_ids, query.images))


def _of_images(chat: VisionChat, sight: Sight, query: Query) -> VisionChat:
    return replace(chat, written=tuple(sight.written(image) for image in query.images))


@dataclass(frozen=True)
class Seeing:
    """A decoder behind the embeddings of its tokens, called as text decoders are."""

    causal: Any
    decoder: Any
    sight: Sight
    adapter: bool | None

    def __call__(self, input_ids: Tensor, position_ids: Tensor | None = None, **more: Any) -> Any:
        """Hidden states (B, T, D) of ids (B, T); without position ids, rows begin at their sequences' beginnings."""
        is_image = input_ids >= self.sight.first_id
        if not bool(is_image.any()):
            return self.decoder(input_ids=input_ids, position_ids=position_ids, **more)
        ids = input_ids.cpu().numpy()
        if position_ids is None and self.sight.family.rotary:
            rows = [self.positions(row, 0, len(row)) for row in ids]
            position_ids = torch.from_numpy(np.stack(rows, axis=1)).to(input_ids.device)  # (3, B, T)
        embeds = self.causal.get_input_embeddings()(input_ids.masked_fill(is_image, self.sight.token_id))
        first, *deeper = self._features(ids)
        embeds = embeds.masked_scatter(is_image[..., None], first.to(embeds.dtype))
        if deeper:  # Qwen3-VL adds what its encoder saw midway to its first layers
            more |= {"visual_pos_masks": is_image, "deepstack_visual_embeds": deeper}
        return self.decoder(inputs_embeds=embeds, position_ids=position_ids, **more)

    def positions(self, ids: Ids, start: int, stop: int) -> Ids:
        """Three-row positions (3, stop - start) of a part of one sequence: see `Sight.positions`."""
        return self.sight.positions(self.causal, ids, start, stop)

    def _features(self, ids: Ids) -> list[Tensor]:
        """Features of all image tokens in order (N, D), and those for deeper layers."""
        wanted = ids[ids >= self.sight.first_id]
        which = self.sight.index(wanted)
        parts: list[list[Tensor]] = []
        cuts = np.flatnonzero(np.diff(which)) + 1
        seen: dict[int, list[Tensor]] = {}
        for run in np.split(np.arange(len(wanted)), cuts):
            number = int(which[run[0]])
            if number not in seen:
                seen[number] = self.sight.features(self.causal, number, self.adapter)
            rows = torch.from_numpy(wanted[run] - self.sight.start(number)).to(seen[number][0].device)
            parts.append([feature.index_select(0, rows) for feature in seen[number]])
        return [torch.cat(same) for same in zip(*parts, strict=True)]
