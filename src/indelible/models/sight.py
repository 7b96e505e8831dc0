"""The pictures that a vision-language model is asked about: their tokens, their positions, what its encoder makes of
them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.data.pictures import Picture, pixels
from indelible.errors import ModelError
from indelible.models.vision_families import Family

if TYPE_CHECKING:
    from PIL import Image

Ids = NDArray[np.int64]

FEATURE_BYTES = 1 << 28
"""Memory of the encoder's outputs that are kept for further questions about the same pictures."""
N_PROCESSED = 4
"""Processed pictures that are kept; they are larger than their features."""
INPUTS = ("pixel_values", "pixel_attention_mask", "image_grid_thw", "n_image_tokens")
"""What transformers modules take of a processed picture; a family has some of these."""


@dataclass(eq=False)
class Sight:
    """Pictures by number, in the order in which they were first asked about.

    Attributes:
        family: of the model.
        processor: transformers' own, for images.
        token_id: of the placeholder that stands for every image token.
        first_id: the first id beyond the vocabulary; picture p has ids from `first_id + starts[p]` on.
        trained: image tokens by size ("WIDTHxHEIGHT") as training counted them.
    """

    family: Family
    processor: Any
    token_id: int
    first_id: int
    trained: Mapping[str, int] = field(default_factory=dict)
    _numbers: dict[Picture, int] = field(default_factory=dict)
    _pictures: list[Picture] = field(default_factory=list)
    _starts: list[int] = field(default_factory=lambda: [0])
    _written: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    _processed: OrderedDict[int, dict[str, Any]] = field(default_factory=OrderedDict)
    _features: OrderedDict[tuple[int, bool | None], list[Tensor]] = field(default_factory=OrderedDict)
    _grids: dict[int, Tensor] = field(default_factory=dict)
    _rotary: OrderedDict[bytes, Ids] = field(default_factory=OrderedDict)

    @property
    def settings(self) -> dict[str, Any]:
        """The image processing, as its own file says it."""
        found: dict[str, Any] = json.loads(self.processor.image_processor.to_json_string())
        return found

    @property
    def fingerprint(self) -> str:
        """Changes with the image processing."""
        text = json.dumps([self.settings, self.processor.image_token, self.written_at(64, 48)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def by_size(self) -> dict[str, int]:
        """Image tokens by size of picture, of all that were asked about and of training's."""
        return {**self.trained, **{f"{w}x{h}": n for (w, h), (_, n) in self._written.items()}}

    # tokens

    def written_at(self, width: int, height: int) -> tuple[str, int]:
        """What stands in a prompt for a picture of this size, and how many image tokens are in it.

        Raises:
            ModelError: the size is not one that the model's image processing takes.
        """
        key = (width, height)
        if key not in self._written:
            try:
                shape = self.family.images(self.processor.image_processor, height, width)
            except ValueError as error:
                raise ModelError(f"{self.family.name} takes no picture of {width}x{height} pixels: {error}") from error
            text = str(self.processor.replace_image_token(shape, 0))
            self._written[key] = text, text.count(self.processor.image_token)
        return self._written[key]

    def written(self, picture: Picture) -> str:
        """What stands in a prompt for a picture."""
        return self.written_at(picture.width, picture.height)[0]

    def n_tokens(self, picture: Picture) -> int:
        """Image tokens of a picture, from its size alone.

        Raises:
            ModelError: training counted others for this size.
        """
        n = self.written_at(picture.width, picture.height)[1]
        size = f"{picture.width}x{picture.height}"
        if self.trained.get(size, n) != n:
            raise ModelError(
                f"a picture of {size} had {self.trained[size]} image tokens in training and has {n} now: "
                "the model folder's image processing was changed"
            )
        return n

    def numbered(self, ids: Ids, pictures: Sequence[Picture]) -> Ids:
        """Ids (T,) with each placeholder replaced by the id of its image token.

        Raises:
            ModelError: there are not as many placeholders as the pictures have tokens.
        """
        at = np.flatnonzero(ids == self.token_id)
        n_tokens = [self.n_tokens(p) for p in pictures]
        if len(at) != sum(n_tokens):
            raise ModelError(
                f"the prompt holds {len(at)} image tokens, and its {len(pictures)} picture(s) have {sum(n_tokens)}: "
                "tokenizer and image processing are not of one model"
            )
        if not pictures:
            return ids
        out = ids.copy()
        starts = [self.start(self._number(p)) for p in pictures]
        out[at] = np.concatenate([np.arange(a, a + n) for a, n in zip(starts, n_tokens, strict=True)])
        return out

    def _number(self, picture: Picture) -> int:
        if picture not in self._numbers:
            self._numbers[picture] = len(self._pictures)
            self._pictures.append(picture)
            self._starts.append(self._starts[-1] + self.n_tokens(picture))
        return self._numbers[picture]

    def start(self, number: int) -> int:
        """The id of a picture's first image token."""
        return self.first_id + self._starts[number]

    def index(self, image_ids: Ids) -> Ids:
        """Which picture each id (N,) belongs to."""
        return np.searchsorted(np.array(self._starts), image_ids - self.first_id, side="right") - 1

    def shown(self, ids: Ids) -> list[int]:
        """Numbers of the pictures in ids of any shape, one for each time that one stands there, in order."""
        wanted = ids[ids >= self.first_id]
        which = self.index(wanted)
        return [int(p) for p, i in zip(which, wanted, strict=True) if i == self.start(int(p))]

    def placeholders(self, ids: Ids) -> Ids:
        """Ids as the model's own tokenizer gives them."""
        return np.where(ids >= self.first_id, self.token_id, ids)

    # pixels

    def processed(self, number: int) -> dict[str, Any]:
        """A picture as the model's image processing leaves it, batch of one.

        Raises:
            ModelError: it has other tokens than its size foretold.
        """
        if number in self._processed:
            self._processed.move_to_end(number)
            return self._processed[number]
        picture = self._pictures[number]
        options = getattr(self.processor, "images_kwargs", None)
        options = dict(options) if isinstance(options, dict) else {}
        found = dict(self.processor.image_processor([[pixels(picture)]], return_tensors="pt", **options))
        text = str(self.processor.replace_image_token(found, 0))
        if text != self.written(picture):
            raise ModelError(
                f"a picture of {picture.width}x{picture.height} becomes {text.count(self.processor.image_token)} image "
                f"tokens, and {self.n_tokens(picture)} were foreseen: the image processing is not {self.family.name}'s"
            )
        self._processed[number] = found
        while len(self._processed) > N_PROCESSED:
            self._processed.popitem(last=False)
        return found

    def inputs(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """Pictures as the transformers module takes them, for one prompt that shows them in this order."""
        parts = [self.processed(n) for n in numbers]
        names = [n for n in INPUTS if n in parts[0]]
        # Idefics3 has a dimension for prompts before that of tiles; the others put tiles or patches in one row
        along = 1 if "pixel_attention_mask" in parts[0] else 0
        return {name: torch.cat([part[name] for part in parts], dim=along) for name in names}

    def seen(self, picture: Picture) -> Image.Image:
        """The picture as the encoder sees it: resized, cropped to whole patches or cut into tiles and put together."""
        from PIL import Image

        arrays = {**self.processed(self._number(picture)), "size": (picture.height, picture.width)}
        image_processor = self.processor.image_processor
        values = self.family.restore(image_processor, arrays)  # (H, W, 3)
        values = values * np.array(image_processor.image_std) + np.array(image_processor.image_mean)
        return Image.fromarray((values * 255).round().clip(0, 255).astype(np.uint8))

    def features(self, causal: Any, number: int, adapter: bool | None) -> list[Tensor]:
        """The connector's output for a picture, (n_tokens, D), then what Qwen3-VL adds in deeper layers.

        With gradients nothing is kept, and nothing that was kept stays: weights are about to change. Without, outputs
        are kept up to `FEATURE_BYTES`, apart for an adapter that is on or off. The encoder drops nothing at random,
        in training either.

        Raises:
            ModelError: not as many rows as image tokens.
        """
        key = (number, adapter)
        if torch.is_grad_enabled():
            self._features.clear()
        elif key in self._features:
            self._features.move_to_end(key)
            return self._features[key]
        given = {name: value.to(causal.device) for name, value in self.inputs([number]).items()}
        for name, part in causal.named_modules():
            if re.fullmatch(self.family.encoder, name):
                part.training = False
        out = causal.get_image_features(**given, return_dict=True)
        found = [_flat(out.pooler_output), *map(_flat, getattr(out, "deepstack_features", None) or [])]
        n = self.n_tokens(self._pictures[number])
        if any(len(f) != n for f in found):
            raise ModelError(f"the vision encoder gives {len(found[0])} image tokens, and {n} stand in the prompt")
        if not torch.is_grad_enabled():
            self._features[key] = found
            sizes = [sum(f.nbytes for f in kept) for kept in self._features.values()]
            while len(self._features) > 1 and sum(sizes) > FEATURE_BYTES:
                self._features.popitem(last=False)
                sizes.pop(0)
        return found

    # positions

    def positions(self, causal: Any, ids: Ids, start: int, stop: int) -> Ids:
        """Positions (3, stop - start) of tokens [start, stop) of a whole sequence (T,): the family's own around images,
        and one more for each token after the last of them."""
        at = np.flatnonzero(ids >= self.first_id)
        n = int(at[-1]) + 1 if len(at) else 0
        head = self._positions_upto(causal, ids[:n]) if n else np.zeros((3, 0), dtype=np.int64)
        following = int(head.max()) + 1 if n else 0
        tail = np.arange(max(start, n), max(stop, n)) - n + following
        return np.concatenate([head[:, start:stop], np.broadcast_to(tail, (3, len(tail)))], axis=1)

    def _positions_upto(self, causal: Any, ids: Ids) -> Ids:
        key = ids.tobytes()
        if key not in self._rotary:
            grids = [self._grid(number) for number in self.shown(ids)]
            kinds = torch.from_numpy((ids >= self.first_id).astype(np.int32))[None]
            tokens = torch.from_numpy(self.placeholders(ids))[None]
            found, _ = causal.model.get_rope_index(tokens, mm_token_type_ids=kinds, image_grid_thw=torch.cat(grids))
            self._rotary[key] = found[:, 0].numpy()
            while len(self._rotary) > 64:
                self._rotary.popitem(last=False)
        return self._rotary[key]

    def _grid(self, number: int) -> Tensor:
        if number not in self._grids:
            self._grids[number] = self.processed(number)["image_grid_thw"]
        return self._grids[number]


def _flat(features: Any) -> Tensor:
    """(N, D), of one picture's features in a tensor of tiles or in a list."""
    parts = [features] if isinstance(features, Tensor) else list(features)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
