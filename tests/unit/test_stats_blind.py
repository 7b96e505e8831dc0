"""The blind control: what it must find, what it must not, and that its vocabulary comes from training texts."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

from indelible.stats.blind import bag_of_words, departure_minus_blind, training_words, word_counts
from indelible.stats.roc import auc

WORDS = np.array([f"word{i}" for i in range(60)])


def make_texts(rng: np.random.Generator, n: int, extra: str = "", share: float = 0.0) -> list[str]:
    return [" ".join(rng.choice(WORDS, 12)) + (f" {extra}" if rng.random() < share else "") for _ in range(n)]


def cohort(share: float, seed: int = 0, n: int = 60) -> tuple[list[str], np.ndarray, list[str]]:
    """n members, of which a share carries a telling word, and n non-members."""
    rng = np.random.default_rng(seed)
    texts = make_texts(rng, n, "telling", share) + make_texts(rng, n)
    return texts, np.arange(2 * n) < n, [str(i) for i in range(2 * n)]


def test_a_telling_word_is_found():
    texts, member, groups = cohort(0.8)
    result = bag_of_words(texts, member, groups, n_permutations=19)
    assert result.reason is None
    assert result.auc > 0.8
    assert result.low > 0.6
    assert result.p_value == pytest.approx(0.05)  # the smallest of 19 permutations
    assert len(result.fold_aucs) == 5
    assert result.auc == pytest.approx(np.mean(result.fold_aucs))
    scores, folds = np.array(result.scores), np.array(result.folds)
    per_fold = [auc(scores[(folds == k) & member], scores[(folds == k) & ~member]) for k in range(5)]
    assert per_fold == pytest.approx(result.fold_aucs)


def test_texts_without_a_difference_give_no_significance():
    texts, member, groups = cohort(0.0)
    result = bag_of_words(texts, member, groups, n_permutations=19, seed=3)
    assert result.p_value > 0.05
    assert 0.3 < result.auc < 0.7


def test_same_seed_same_result_and_repeats_are_averaged():
    texts, member, groups = cohort(0.3, n=30)
    first = bag_of_words(texts, member, groups, n_permutations=3, seed=5)
    assert bag_of_words(texts, member, groups, n_permutations=3, seed=5) == first
    twice = bag_of_words(texts, member, groups, n_permutations=0, seed=5, n_repeats=2)
    assert len(twice.fold_aucs) == 10
    assert twice.p_value is None
    assert twice.fold_aucs[:5] == first.fold_aucs


def test_vocabulary_of_a_fold_is_that_of_its_training_texts():
    texts, _, _ = cohort(0.1)
    texts[0] += " onlyonce"
    train = np.arange(10, 110)
    fitted = CountVectorizer(min_df=0.05).fit([texts[i] for i in train])
    counts = word_counts(texts)
    ours = counts[:, training_words(counts, train)]
    assert (ours == fitted.transform(texts).toarray()).all()


def test_groups_are_never_split_and_a_group_signature_does_not_leak():
    """Each group repeats a word of its own. Split by record this identifies groups, and so membership."""
    rng = np.random.default_rng(1)
    groups = [f"g{i // 6}" for i in range(120)]
    texts = [t + f" own{g} own{g}" for t, g in zip(make_texts(rng, 120), groups, strict=True)]
    member = np.arange(120) < 60
    result = bag_of_words(texts, member, groups, n_permutations=0)
    folds = np.array(result.folds)
    assert all(len(set(folds[[g == name for g in groups]])) == 1 for name in set(groups))
    assert result.auc < 0.75


@pytest.mark.parametrize(
    ("texts", "groups", "reason"),
    [
        (["a word here"] * 8, [str(i) for i in range(8)], "groups of members"),
        (["!!"] * 20, [str(i) for i in range(20)], "no word"),
        ([f"unique{i}" for i in range(100)], [str(i) for i in range(100)], "no word"),
        (["a word here"] * 30, ["big"] * 20 + [str(i) for i in range(10)], "half"),
    ],
)
def test_what_cannot_run_says_why(texts, groups, reason):
    member = np.arange(len(texts)) % 2 == 0
    result = bag_of_words(texts, member, groups, n_permutations=2)
    assert reason in result.reason
    assert result.auc is None
    assert result.scores == ()


def test_lists_of_different_length_are_refused():
    with pytest.raises(ValueError):
        bag_of_words(["a b"], [True, False], ["1", "2"])


def test_departure_minus_blind_in_either_direction_and_with_the_clamp():
    rng = np.random.default_rng(2)
    member, groups, folds = np.arange(200) < 100, [str(i) for i in range(200)], [i % 5 for i in range(200)]
    noise = rng.normal(size=200)
    strong = rng.normal(size=200) + 2 * member
    up = departure_minus_blind(strong, noise, folds, member, groups, direction=1, n_bootstrap=300)
    assert up.difference == pytest.approx(up.auc_a - 0.5 - (up.auc_b - 0.5))
    assert up.auc_b >= 0.5
    assert up.interval.low > 0.2
    down = departure_minus_blind(-strong, noise, folds, member, groups, direction=-1, n_bootstrap=300)
    assert down.auc_a == pytest.approx(1 - up.auc_a)
    assert down.interval.low == pytest.approx(up.interval.low)
    # A blind classifier far below chance is chance: it must not add to the target's lead.
    inverse = departure_minus_blind(strong, -strong, folds, member, groups, direction=1, n_bootstrap=300)
    assert inverse.difference == pytest.approx(inverse.auc_a - 0.5)
    level = departure_minus_blind(strong, strong, folds, member, groups, direction=1, n_bootstrap=300)
    assert level.interval.low <= 0
