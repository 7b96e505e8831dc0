"""The vision encoder of `builtin:screenreader`: it finds the lines of text on a screen, and reads them.

Two small convolutional networks: one marks where lines stand, the other reads a line that was cut out and set to a
height of 32 pixels, character by character (connectionist temporal classification). What comes out are texts with
boxes, so that nothing of a screen but its text reaches the language model: no colours, icons or pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHARACTERS = "".join(chr(code) for code in range(32, 127))
"""What can be read; class 0 is the blank between characters, class k is character k - 1."""
LINE_PX = 32
"""Height to which lines are set before they are read."""
CELL = 4
"""Pixels a cell of the finder's grid, and pixels a frame of the reader."""
SIDE_PX = 5
"""Pixels that are cut out to the left and right of a line besides."""
MIN_CONFIDENCE = 0.5
"""Below it a line is no text: icons and frames are found now and then."""
LONGEST_PX = 1600
"""Width of the longest line at a height of 32 pixels; beyond it the end is not read."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it was read.

    Attributes:
        text: its characters.
        left, top, right, bottom: in pixels of the picture.
        at: x of the middle of each character, in pixels of the picture.
        confidence: mean probability of its characters.
    """

    text: str
    left: float
    top: float
    right: float
    bottom: float
    at: tuple[float, ...]
    confidence: float


def _block(n_in: int, n_out: int, kernel: int = 3, *, stride: int = 1, dilation: tuple[int, int] = (1, 1)) -> nn.Module:
    around = (dilation[0] * (kernel // 2), dilation[1] * (kernel // 2))
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=around, dilation=dilation, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
    )


class Finder(nn.Module):
    """Where lines of text stand: a fully convolutional network on a grid of four pixels a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _block(1, 12, 5, stride=2),
            _block(12, 24, stride=2),
            _block(24, 32),
            _block(32, 32, dilation=(1, 2)),
            _block(32, 32, dilation=(2, 4)),
            _block(32, 32, dilation=(1, 4)),
            nn.Conv2d(32, 3, 1),
        )

    def forward(self, grey: Tensor) -> Tensor:
        """Grey levels 0 to 1 (B, 1, H, W), H and W multiples of 4 -> (B, 3, H/4, W/4): the logit that a cell lies in
        the middle half of a line's height, and how far the line's top and bottom are from the cell's middle, in units
        of 16 pixels."""
        found: Tensor = self.layers(2 * grey - 1)
        return found


class Letters(nn.Module):
    """What a line says: convolutions down to one row of frames, then along it."""

    def __init__(self, width: int = 160) -> None:
        super().__init__()
        self.look = nn.Sequential(
            _block(1, 24),
            nn.MaxPool2d(2),
            _block(24, 48),
            nn.MaxPool2d(2),
            _block(48, 96),
            nn.MaxPool2d((2, 1)),
            _block(96, 128),
        )
        self.join = nn.Sequential(nn.Conv1d(4 * 128, width, 1, bias=False), nn.BatchNorm1d(width), nn.ReLU())
        self.along = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, width, 5, padding=2 * reach, dilation=reach, groups=width, bias=False),
                nn.Conv1d(width, width, 1, bias=False),
                nn.BatchNorm1d(width),
                nn.ReLU(),
            )
            for reach in (1, 2, 3)
        )
        self.tell = nn.Conv1d(width, len(CHARACTERS) + 1, 1)

    def forward(self, lines: Tensor) -> Tensor:
        """Lines (B, 1, 32, W) with ink 1 on ground 0 -> log-probabilities (B, W/4, C), C the blank and characters."""
        seen = self.join(self.look(lines).flatten(1, 2))  # (B, 512, W/4) -> (B, D, W/4)
        for layer in self.along:
            seen = seen + layer(seen)
        told: Tensor = self.tell(seen)
        return told.transpose(1, 2).log_softmax(-1)


class Reader(nn.Module):
    """Finder and letters together: a picture in, its lines out."""

    def __init__(self) -> None:
        super().__init__()
        self.finder = Finder()
        self.letters = Letters()

    @torch.no_grad()
    def read(self, image: Tensor) -> list[Line]:
        """The lines of a picture (H, W, 3), levels 0 to 1, in reading order: from top to bottom, in a row from left to
        right."""
        grey = to_grey(image)
        boxes = find_lines(self.finder(padded(grey)[None, None])[0], grey.shape)
        return in_reading_order(self.read_boxes(grey, boxes))

    @torch.no_grad()
    def read_boxes(self, grey: Tensor, boxes: Sequence[tuple[float, float, float, float]]) -> list[Line]:
        """What stands in boxes (left, top, right, bottom) of a grey picture (H, W); boxes without text are left out."""
        if not boxes:
            return []
        pieces = [cut_out(grey, box) for box in boxes]
        order = sorted(range(len(pieces)), key=lambda i: pieces[i].shape[1])
        out: list[Line] = []
        for start in range(0, len(order), 16):
            some = order[start : start + 16]
            told = self.letters(batch_of([pieces[i] for i in some]))
            for i, frames in zip(some, told, strict=True):
                line = spelt(frames[: n_frames(pieces[i].shape[1])], boxes[i], pieces[i].shape[1])
                if line.text.strip() and line.confidence >= MIN_CONFIDENCE:
                    out.append(line)
        return out


def to_grey(image: Tensor) -> Tensor:
    """(H, W, 3) -> (H, W): how light a pixel is."""
    return image.float() @ torch.tensor([0.299, 0.587, 0.114], device=image.device)


def padded(grey: Tensor) -> Tensor:
    """(H, W) with its last rows and columns repeated up to multiples of 4."""
    below, right = -grey.shape[0] % CELL, -grey.shape[1] % CELL
    return F.pad(grey[None, None], (0, right, 0, below), mode="replicate")[0, 0]


def find_lines(marks: Tensor, shape: Sequence[int]) -> list[tuple[float, float, float, float]]:
    """Boxes (left, top, right, bottom) of the lines in the finder's output (3, H/4, W/4) for a picture (H, W)."""
    from scipy import ndimage

    core = marks[0].cpu().numpy() > 0
    labels, n = ndimage.label(core)
    up, down = 16 * marks[1].cpu().numpy(), 16 * marks[2].cpu().numpy()
    boxes = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels, n), start=1):
        own = labels[rows, columns] == number
        if own.sum() < 2:
            continue
        middle = CELL * (np.arange(rows.start, rows.stop) + 0.5)[:, None]
        top = float(np.median((middle - up[rows, columns])[own]))
        bottom = float(np.median((middle + down[rows, columns])[own]))
        top, bottom = max(0.0, top), min(float(shape[0]), bottom)
        left, right = float(CELL * columns.start), float(min(CELL * columns.stop, shape[1]))
        if bottom - top >= 5 and right > left:
            boxes.append((left, top, right, bottom))
    return boxes


def cut_out(grey: Tensor, box: tuple[float, float, float, float]) -> Tensor:
    """A box of a grey picture (H, W) as a line (32, W'): ink near 1 on ground 0, whichever of them is the lighter."""
    top, bottom = max(0, round(box[1])), min(grey.shape[0], round(box[3]))
    left, right = max(0, round(box[0]) - SIDE_PX), min(grey.shape[1], round(box[2]) + SIDE_PX)
    piece = grey[top : max(bottom, top + 1), left : max(right, left + 1)]
    width = min(LONGEST_PX, max(8, round(piece.shape[1] * LINE_PX / piece.shape[0])))
    ink = (piece - piece.median()).abs()
    ink = ink / ink.max().clamp_min(0.05)
    larger = F.interpolate(ink[None, None], size=(LINE_PX, width), mode="bilinear", antialias=True)
    return larger[0, 0]


def n_frames(width: int) -> int:
    """Frames of a line of so many pixels, at a height of 32."""
    return -(-width // CELL)


def batch_of(lines: Sequence[Tensor]) -> Tensor:
    """Lines (32, W) of several widths in one tensor (B, 1, 32, W), ground to their right."""
    widest = CELL * n_frames(max(line.shape[1] for line in lines))
    return torch.stack([F.pad(line, (0, widest - line.shape[1])) for line in lines])[:, None]


def spelt(told: Tensor, box: tuple[float, float, float, float], width: int) -> Line:
    """The most probable path of frames (W/4, C), repeats and blanks taken out."""
    sure, best = told.exp().max(-1)
    classes, sureness = best.tolist(), sure.tolist()
    text, starts, ends, confidence = "", [], [], []
    for i, k in enumerate(classes):
        if k and (i == 0 or classes[i - 1] != k):
            text += CHARACTERS[k - 1]
            starts.append(i)
            ends.append(i)
            confidence.append(sureness[i])
        elif k:
            ends[-1] = i
    scale = (box[2] - box[0] + 2 * SIDE_PX) / width
    at = tuple(
        box[0] - SIDE_PX + scale * CELL * (first + last + 1) / 2 for first, last in zip(starts, ends, strict=True)
    )
    sureness_of_all = float(np.mean(confidence)) if confidence else 0.0
    return Line(text, *box, at, sureness_of_all)


def in_reading_order(lines: Sequence[Line]) -> list[Line]:
    """Row by row; lines are in one row where the middle of one lies within the height of the row's first."""
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: line.top + line.bottom):
        if rows and (line.top + line.bottom) / 2 < rows[-1][0].bottom - 0.25 * (rows[-1][0].bottom - rows[-1][0].top):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: line.left)]
