"""Where in training each canary appears: rows of the ordered file, the groups of a crossed design, the checkpoints.

Row r (from 0) is trained on in update r // batch_size + 1. A request sets `reserve` places aside, of which `dose` are
used: designs that differ in dose alone, with one reserve, use nested subsets of the same places.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from indelible.canaries.config import DesignConfig, FinalWindow, Placement, PlacementName, Window
from indelible.errors import ConfigError, DataError

_NAMED: dict[PlacementName, tuple[float, float]] = {
    "uniform": (0.0, 1.0),
    "early": (0.0, 0.2),
    "middle": (0.4, 0.6),
    "late": (0.8, 1.0),
}


@dataclass(frozen=True)
class Request:
    """Places wanted for one canary.

    Attributes:
        id: of the canary.
        dose: appearances in training, places that `place` returns; 0 for none.
        reserve: places set aside, at least `dose`. Give every dose of a comparison the largest one's reserve.
        placement: where.
    """

    id: str
    dose: int
    reserve: int
    placement: Placement

    def __post_init__(self) -> None:
        if not 0 <= self.dose <= self.reserve:
            raise ValueError(f"canary '{self.id}': dose {self.dose} is not between 0 and the reserve of {self.reserve}")


def count_updates(n_rows: int, batch_size: int) -> int:
    """Optimiser updates of one pass over n_rows, the last one on what is left: ceil(n_rows / batch_size)."""
    return -(-n_rows // batch_size)


def update_of(row: int, batch_size: int) -> int:
    """The update (from 1) that trains on a row (from 0)."""
    return row // batch_size + 1


def place(requests: Sequence[Request], *, n_rows: int, batch_size: int, seed: int) -> dict[str, tuple[int, ...]]:
    """Rows of every request, ascending, by id. No row is given twice.

    What can be relied on, for one n_rows, batch_size and seed:

    - The places of a lower dose are a subset of those of a higher one: no dose moves anything, only reserves do.
    - Appending requests moves none of those before them: focal canaries first, then auxiliaries.
    - The reserve lies about evenly in the window, one place in each of `reserve` equal parts but for a jitter of half a
      part, and so does any lower dose (the parts are taken in van der Corput order). Each canary has its own random
      phase, so that different canaries neither crowd together nor always meet in the same update.
    - A canary has the same relative places in every window: phase and jitter depend on the seed and on its index in
      `requests`, not on the placement.
    - A `FinalWindow`: see `_place_final`.

    A place already taken gives way to the nearest free row of the window, the earlier one of two as near. The whole
    reserve of a request is placed before the next request, in the order in which growing doses use it.
    Raises DataError where a window has too few free rows or does not fit into training, ValueError for a repeated id.
    Source: sections III-C, V-B, A-A (nested slots), B-B (fifths), C-A3 (final windows).
    Differs from the paper: it draws places at random; with us a canary has one random phase and a jitter.
    """
    if len({request.id for request in requests}) < len(requests):
        raise ValueError("two requests have the same id")
    board = _Board(n_rows, batch_size)
    asked: Counter[Placement] = Counter()
    for request in requests:
        asked[request.placement] += request.reserve
    turn = random.Random(f"{seed}:turn").random()
    members: Counter[Placement] = Counter()
    places: dict[str, tuple[int, ...]] = {}
    for index, request in enumerate(requests):
        rng, placement = random.Random(f"{seed}:place:{index}"), request.placement
        if isinstance(placement, FinalWindow):
            rows = _place_final(board, request, placement, members[placement], turn, rng, asked[placement])
        else:
            rows = _place_spread(board, request, placement, rng, asked[placement])
        members[placement] += request.reserve > 0
        places[request.id] = tuple(sorted(rows[: request.dose]))
    return places


def _place_spread(
    board: _Board, request: Request, placement: PlacementName | Window, rng: random.Random, asked: int
) -> list[int]:
    """The reserve in the order of growing doses. The window counts as a ring, so any phase leaves its parts even."""
    low, high = window_rows(placement, board.n_rows)
    n, span = request.reserve, high - low
    phase, rows = n * rng.random(), []
    for part in spread_order(n):
        at = (part + phase + 0.5 * rng.random()) % n / n
        rows.append(board.take(low + min(int(at * span), span - 1), low, high, request, asked))
    return rows


def _place_final(
    board: _Board, request: Request, window: FinalWindow, member: int, turn: float, rng: random.Random, asked: int
) -> list[int]:
    """The reserve in the order of growing doses: the last appearance, the first, then those between.

    The last appearance of the group's `member`-th canary is in one of the `width` updates that end at `end`: each
    update gets one canary before any gets a second. The first is exactly `gap` updates before, the others are evenly
    between the two. First and last keep their updates; where those have no free row, DataError.
    """
    end, gap, width = _scaled(window, board.n_updates)
    earliest = end - width + 1 - (gap if request.reserve > 1 else 0)
    if earliest < 1 or end > board.n_updates:
        raise DataError(
            f"placement '{placement_name(window)}' (width {width}, gap {gap}) needs updates {earliest} to {end}, "
            f"training has 1 to {board.n_updates}: move the window, or shorten its gap or width"
        )
    # Which canary is late in its window differs between seeds, and is the same for windows of one width.
    last = end - width + 1 + (spread_order(width)[member % width] + int(turn * width)) % width
    n, rows = request.reserve, []
    for update in (last, last - gap)[:n]:
        low, high = board.rows_of(update)
        ideal = low + int(rng.random() * (high - low))
        rows.append(board.take(ideal, low, high, request, asked))
    low, high = board.rows_of(last - gap)[0], board.rows_of(last)[1]
    for between in spread_order(max(n - 2, 0)):
        ideal = rows[1] + (rows[0] - rows[1]) * (between + 1) // (n - 1)
        rows.append(board.take(ideal, low, high, request, asked))
    return rows


class _Board:
    """Which rows are free. Finding the nearest free one takes almost constant time however full a window is.

    Two forests of links with path halving: from row r, `_after` leads to the first free row >= r (n_rows: none) and
    `_before`, whose index is shifted by one, to the last free row <= r (0: none).
    """

    def __init__(self, n_rows: int, batch_size: int) -> None:
        self.n_rows, self.batch_size = n_rows, batch_size
        self.n_updates = count_updates(n_rows, batch_size)
        self._after = list(range(n_rows + 1))
        self._before = list(range(n_rows + 1))

    def rows_of(self, update: int) -> tuple[int, int]:
        """First row of an update and the row after its last."""
        return (update - 1) * self.batch_size, min(update * self.batch_size, self.n_rows)

    def take(self, ideal: int, low: int, high: int, request: Request, asked: int) -> int:
        """The free row in [low, high) nearest to `ideal`, no longer free afterwards."""
        after, before = _root(self._after, ideal), _root(self._before, ideal + 1) - 1
        if after >= high and before < low:
            raise DataError(
                f"canary '{request.id}' wants {request.reserve} places in placement "
                f"'{placement_name(request.placement)}': rows {low} to {high - 1} of {self.n_rows} (updates "
                f"{update_of(low, self.batch_size)} to {update_of(high - 1, self.batch_size)}) are all taken, its "
                f"canaries ask for {asked}: fewer canaries, a lower dose, a wider window or more rows"
            )
        row = before if after >= high or (before >= low and ideal - before <= after - ideal) else after
        self._after[row], self._before[row + 1] = row + 1, row
        return row


def _root(links: list[int], at: int) -> int:
    while links[at] != at:
        links[at] = links[links[at]]
        at = links[at]
    return at


@lru_cache(maxsize=64)
def spread_order(n: int) -> tuple[int, ...]:
    """The numbers 0 to n - 1 in an order of which every beginning is about evenly spread over them, as on a ring.

    They are the ranks of the first n points of the van der Corput sequence (base 2): the first k leave no ring gap
    above ceil(n / 2^floor(log2 k)).
    """
    bits = max(n - 1, 0).bit_length()
    reversed_bits = [int(f"{t:0{bits}b}"[::-1], 2) if bits else 0 for t in range(n)]
    rank = {value: i for i, value in enumerate(sorted(reversed_bits))}
    return tuple(rank[value] for value in reversed_bits)


def window_rows(placement: PlacementName | Window, n_rows: int) -> tuple[int, int]:
    """First row of a window and the row after its last: its shares of n_rows, rounded half up.

    early, middle and late are the first, the middle and the last fifth. Raises DataError for a window without rows.
    """
    start, stop = (placement.start, placement.stop) if isinstance(placement, Window) else _NAMED[placement]
    low, high = _round(start * n_rows), _round(stop * n_rows)
    if low >= high:
        raise DataError(
            f"placement '{placement_name(placement)}' holds none of {n_rows} rows: widen it, or use more rows"
        )
    return low, high


def _round(value: float) -> int:
    return math.floor(value + 0.5)


def _scaled(window: FinalWindow, n_steps: int) -> tuple[int, int, int]:
    """End, gap and width in updates of a training of n_steps; what was above zero stays at least one update."""
    end, gap, width = (_round(x * n_steps / window.of) for x in (window.end, window.gap, window.width))
    return end, max(gap, 1) if window.gap > 0 else 0, max(width, 1)


def deal(n: int, n_groups: int, rotation: int) -> list[int]:
    """Group of canary i of n: (i + rotation) mod n_groups.

    Sizes differ by at most one, and n_groups successive rotations put each canary into each group once. Raises
    ValueError for fewer than one group. Source: sections B-A, B-B (rotated doses), C-A3 (rotated windows).
    """
    if n_groups < 1:
        raise ValueError(f"canaries need at least one group, got {n_groups}")
    return [(i + rotation) % n_groups for i in range(n)]


def combinations(config: DesignConfig) -> list[tuple[int, Placement]]:
    """Every dose with every placement of a design, doses outermost: the groups that `deal` numbers.

    Raises ConfigError where no placement is given.
    """
    if not config.placement:
        raise ConfigError("placement is an empty list: name at least one, such as uniform")
    return [(dose, placement) for dose in config.dose for placement in config.placement]


def placement_name(placement: Placement) -> str:
    """How tables name it: "late", "window 0.75-1.00", "final 157", "final 38 of 40, width 2".

    Final windows that differ in gap alone share a name; `spacing_updates` tells them apart.
    """
    if isinstance(placement, FinalWindow):
        usual = FinalWindow(end=placement.end, gap=placement.gap)
        of = "" if placement.of == usual.of else f" of {placement.of:.12g}"
        width = "" if placement.width == usual.width else f", width {placement.width:.12g}"
        return f"final {placement.end:.12g}{of}{width}"
    if isinstance(placement, Window):
        return f"window {_share(placement.start)}-{_share(placement.stop)}"
    return placement


def _share(value: float) -> str:
    return f"{value:.2f}" if round(value, 2) == value else repr(value)


def spacing_updates(placement: Placement, n_steps: int) -> int | None:
    """Updates between a canary's first and last appearance, in a training of n_steps; None where not prescribed."""
    return _scaled(placement, n_steps)[1] if isinstance(placement, FinalWindow) else None


def checkpoint_steps(config: DesignConfig) -> tuple[int, ...]:
    """Updates at which a run is read, ascending: `delay` after the end of each focal window, and the last update.

    A `FinalWindow`'s delay is scaled like its end, by n_steps / of, and rounded by itself so that all groups wait
    equally long; for other windows it counts updates of this training, or of the `of` of the design's first final
    window where there is one. The named and the share windows end with the update of their last row; `uniform` has no
    window to wait after. Empty without a delay: then only the last update is read. Raises ConfigError where a delay
    ends after training, since groups would wait unequally long; only a rounding past the end is cut.
    Source: sections C-A3, C-C4 (16 updates after 157, 227, 297: updates 173, 243, 313).
    """
    if config.delay is None:
        return ()
    n_steps = count_updates(config.n_rows, config.batch_size)
    common = next((n_steps / p.of for p in config.placement if isinstance(p, FinalWindow)), 1.0)
    steps = {n_steps}
    for placement in config.placement:
        if placement == "uniform":
            continue
        if isinstance(placement, FinalWindow):
            end, delay = _scaled(placement, n_steps)[0], config.delay * n_steps / placement.of
            read_at = placement.end * n_steps / placement.of + delay
        else:
            end, delay = (
                update_of(window_rows(placement, config.n_rows)[1] - 1, config.batch_size),
                config.delay * common,
            )
            read_at = end + delay
        if read_at > n_steps + 1e-6:
            raise ConfigError(
                f"delay {config.delay:g} after placement '{placement_name(placement)}', which ends at update {end}, is "
                f"past the last update {n_steps}: shorten the delay, end the window earlier, or leave out the delay"
            )
        steps.add(min(end + _round(delay), n_steps))
    return tuple(sorted(steps))
