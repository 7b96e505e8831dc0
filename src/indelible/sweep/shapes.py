"""Shapes that the paper shows without numbers: does ours have them? Each is tested over all labels, not at its ends."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from indelible.sweep.contrasts import Contrast, Number, Numbers, contrast, difference, mean, pooled
from indelible.sweep.shown import Expect
from indelible.sweep.tally import AGREES, CANNOT_TELL, DISAGREES, IN_PART, Tally


@dataclass(frozen=True)
class Found:
    """What a shape came to: the word, the comparisons it rests on, and the numbers in words."""

    what: str
    word: str
    tally: Tally
    said: str


@dataclass(frozen=True)
class Curve:
    """A line over the labels of `x` that have numbers; `level` of the intervals."""

    x: str
    labels: Sequence[str]
    numbers: Sequence[Number]
    level: float

    def for_all(self, n_tests: int = 1) -> float:
        """The level of one of `n_tests` intervals that hold together at `level` (Bonferroni)."""
        return 1 - (1 - self.level) / max(1, n_tests)


def shape(numbers: Numbers, expect: Expect, rest: dict[str, str]) -> Iterator[Found]:
    """What each line came to in one place of the axes that are left over; `above` is one finding for all its lines."""
    labels = numbers.places.shown(expect.x, expect.only)

    def of(line: str, label: str) -> Number:
        if expect.by == "metric":
            return numbers.number({**rest, expect.x: label}, line)
        return numbers.number({**rest, expect.by: line, expect.x: label}, expect.metric)

    if expect.shape == "above":
        yield above(expect, labels, of, numbers.level)
        return
    for line in expect.lines:
        known = [(label, number) for label in labels if (number := of(line, label))]
        curve = Curve(expect.x, [label for label, _ in known], [number for _, number in known], numbers.level)
        if expect.shape == "peak":
            yield peak(line, curve, expect.between)
        elif expect.shape == "stays":
            yield stays(line, curve, expect.margin or 0.0)
        elif expect.shape == "flattens":
            yield flattens(line, curve, expect.share, expect.rest)
        else:
            yield monotone(line, curve, 1 if expect.shape == "rises" else -1)


def above(expect: Expect, labels: Sequence[str], of: Callable[[str, str], Number], level: float) -> Found:
    """Every line above each of `than` at every label."""
    tally = Tally()
    for line in expect.lines:
        for other in expect.than:
            for label in labels:
                found = difference(of(line, label), of(other, label))
                if found is not None:
                    tally.add(found.sign(level))
    what = f"{', '.join(expect.lines)} above {', '.join(expect.than)} over {expect.x}"
    return Found(what, tally.word, tally, str(tally))


def monotone(line: str, curve: Curve, way: int) -> Found:
    """`way` 1: it rises; -1: it falls.

    Agreement: the straight line over the ranks of the labels clearly goes that way, Spearman's correlation of the means
    does too, and no later label is clearly on the wrong side of an earlier one (Bonferroni over the pairs): a mountain
    is no rise. Disagreement: the line clearly goes the other way, or it goes neither way and some pair is against it.
    """
    what = f"{line} {'rises' if way > 0 else 'falls'} over {curve.x}"
    k = len(curve.numbers)
    if k < 2:
        return _nothing(what)
    tally = Tally()
    for i, j in combinations(range(k), 2):
        found = difference(curve.numbers[j], curve.numbers[i])
        if found is not None:
            tally.add(way * found.sign(curve.for_all(k * (k - 1) // 2)))
    middle = (k - 1) / 2
    steps = [(i - middle) * (k - 1) / sum((j - middle) ** 2 for j in range(k)) for i in range(k)]
    trend = contrast(curve.numbers, steps)
    rho = _rank_correlation(curve.numbers)
    sign = 0 if trend is None else way * trend.sign(curve.for_all())
    if sign > 0 and way * rho > 0:
        word = IN_PART if tally.against else AGREES
    else:
        word = DISAGREES if sign < 0 or tally.against else CANNOT_TELL
    said = f"straight line from first to last {_signed(trend, curve)}, Spearman {rho:+.2f}; {tally}"
    return Found(what, word, tally, said)


def peak(line: str, curve: Curve, between: tuple[float, float] | None) -> Found:
    """The highest label within `between` clearly beats every label outside.

    With several seeds the label is chosen for each by the means of the others, so that it owes nothing to the numbers
    it is compared by; with one, the intervals are widened by the number of labels it was chosen from (Bonferroni).
    Disagreement: some label outside clearly beats it (Bonferroni over those). In part: on every side that has labels,
    some are clearly beaten, and more than not.
    """
    low, high = between or (float("-inf"), float("inf"))
    what = f"{line} peaks inside {low:g} to {high:g} of {curve.x}"
    at = [float(label) for label in curve.labels]
    inside = [number for x, number in zip(at, curve.numbers, strict=True) if low <= x <= high]
    sides = [[n for x, n in zip(at, curve.numbers, strict=True) if x < low],
             [n for x, n in zip(at, curve.numbers, strict=True) if x > high]]  # fmt: skip
    n_outside = sum(map(len, sides))
    if not inside or not n_outside:
        return _nothing(what)
    seeds = sorted({seed for number in curve.numbers for seed in number})
    level_above = curve.for_all(len(inside) if len(seeds) == 1 else 1)
    tally, beaten = Tally(), []
    for side in sides:
        n_beaten = 0
        for other in side:
            found = pooled([one for seed in seeds if (one := _chosen(inside, other, seed)) is not None])
            if found is None:
                continue
            sign = -1 if found.sign(curve.for_all(n_outside)) < 0 else max(0, found.sign(level_above))
            n_beaten += sign > 0
            tally.add(sign)
        if side:
            beaten.append(n_beaten)
    if tally.against:
        word = DISAGREES
    elif tally.same and not tally.unclear:
        word = AGREES
    else:
        word = IN_PART if all(beaten) and tally.same > tally.unclear else CANNOT_TELL
    means = [value for number in curve.numbers if (value := mean(number)) is not None]
    said = f"highest at {curve.labels[means.index(max(means))]}; against those outside: {tally}"
    return Found(what, word, tally, said)


def _chosen(inside: Sequence[Number], other: Number, seed: int) -> Contrast | None:
    """On one seed, the label inside that is highest on the other seeds (with one seed: on it) minus a label outside."""

    def elsewhere(number: Number) -> float:
        values = [one.value for s, one in number.items() if s != seed] or [one.value for one in number.values()]
        return statistics.fmean(values)

    if seed not in other:
        return None
    able = [number for number in inside if seed in number]
    if not able:
        return None
    best = max(able, key=elsewhere)
    return difference({seed: best[seed]}, {seed: other[seed]})


def stays(line: str, curve: Curve, margin: float) -> Found:
    """Every label within `margin` of the first: its whole interval is (equivalence), or clearly is not."""
    what = f"{line} stays within {margin:g} over {curve.x}"
    if len(curve.numbers) < 2:
        return _nothing(what)
    tally, said = Tally(), []
    for label, number in zip(curve.labels[1:], curve.numbers[1:], strict=True):
        found = difference(number, curve.numbers[0])
        ends = None if found is None else found.interval(curve.for_all())
        if ends is None:
            tally.add(0)
            continue
        tally.add(-1 if ends[0] > margin or ends[1] < -margin else 1 if -margin <= ends[0] and ends[1] <= margin else 0)
        said.append(f"{_signed(found, curve)} at {label}")
    word = DISAGREES if tally.against else AGREES if tally.same and not tally.unclear else CANNOT_TELL
    return Found(what, word, tally, f"change from {curve.labels[0]}: " + (", ".join(said) or "not known"))


def flattens(line: str, curve: Curve, share: float, rest: float) -> Found:
    """Of the whole change from the first label to the last, the first step makes at least `share` and each later one at
    most `rest`: each is a contrast, (1 - share) v_0 - v_1 + share v_k > 0 and v_(i-1) - v_i < rest (v_0 - v_k), for a
    line that falls; nothing can be said of one whose ends are too close to tell."""
    what = f"{line} makes {share:.0%} of its change in the first step of {curve.x}, at most {rest:.0%} in any later one"
    k = len(curve.numbers)
    if k < 3:
        return _nothing(what)
    whole = difference(curve.numbers[0], curve.numbers[-1])
    way = 0 if whole is None else whole.sign(curve.for_all())
    if whole is None or not way:
        return Found(what, CANNOT_TELL, Tally(), f"from first to last {_signed(whole, curve)}: too close to tell")
    tally = Tally()

    def test(weights: dict[int, float]) -> int:
        found = contrast(curve.numbers, [way * weights.get(i, 0.0) for i in range(k)])
        sign = 0 if found is None else found.sign(curve.for_all())
        tally.add(sign)
        return sign

    first = test({0: 1 - share, 1: -1.0, k - 1: share})
    for i in range(2, k):
        step = {0: rest, k - 1: -rest}
        step[i - 1] = step.get(i - 1, 0.0) - 1
        step[i] = step.get(i, 0.0) + 1
        test(step)
    if tally.against or tally.unclear:
        word = IN_PART if first > 0 else DISAGREES if tally.against else CANNOT_TELL
    else:
        word = AGREES
    parts = [difference(a, b) for a, b in zip(curve.numbers, curve.numbers[1:], strict=False)]
    shares = ", ".join("?" if part is None else f"{part.value / whole.value:.0%}" for part in parts)
    return Found(what, word, tally, f"steps make {shares} of the whole change")


def _rank_correlation(numbers: Sequence[Number]) -> float:
    """Spearman's, of the means with their order; 0 where all are the same."""
    from scipy.stats import spearmanr

    means = [value for number in numbers if (value := mean(number)) is not None]
    return float(spearmanr(range(len(means)), means).statistic) if len(set(means)) > 1 else 0.0


def _signed(found: Contrast | None, curve: Curve) -> str:
    if found is None:
        return "not known"
    ends = found.interval(curve.for_all())
    return f"{found.value:+.3f}" + ("" if ends is None else f" [{ends[0]:+.3f}, {ends[1]:+.3f}]")


def _nothing(what: str) -> Found:
    return Found(what, CANNOT_TELL, Tally(), "no two numbers to compare")
