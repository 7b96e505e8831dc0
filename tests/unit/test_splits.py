from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indelible.data.duplicates import content_ids, exact_key, jaccard, near_pairs, normalise
from indelible.data.formats import Table, read_records
from indelible.data.records import Message, Record
from indelible.data.splits import SIDES, Cohort, build_cohort, split_frame
from indelible.data.synthetic import synthetic_records
from indelible.errors import ConfigError, DataError

REAL = Path(__file__).resolve().parents[3] / "shared" / "data"
real = pytest.mark.skipif(not REAL.is_dir(), reason="real data sets are not beside the repository")
quick = settings(max_examples=25, deadline=None)


def rec(name: str, target: str, prompt: str = "", group: str = "") -> Record:
    return Record(name, (Message("user", prompt),) if prompt else (), target, group=group or name)


def table(records: Sequence[Record], source: str = "file.jsonl", n_empty: int = 0) -> Table:
    return Table(tuple(records), source, "jsonl: text", len(records) + n_empty, n_empty, source)


def corpus(n: int, seed: int, prefix: str = "r") -> list[Record]:
    rows = synthetic_records(n, seed)
    return [rec(f"{prefix}{i}", row["output"], row["input"]) for i, row in enumerate(rows)]


def adds_up(cohort: Cohort, members: Table, nonmembers: Table, pool: Table | None = None) -> bool:
    out = {side: sum(n[side] for n in cohort.dropped.values()) for side in SIDES}
    kept_non = len(cohort.nonmembers) + (len(cohort.pool) if pool is None else 0)
    return (
        members.n_rows == len(cohort.members) + out["member"]
        and nonmembers.n_rows == kept_non + out["nonmember"]
        and (pool is None or pool.n_rows == len(cohort.pool) + out["pool"])
    )


def test_normal_form() -> None:
    assert normalise("  “Ｈello”,\n Straße! -- don't ") == "hello strasse don't"
    assert normalise("3-5") != normalise("3+5")
    assert exact_key(rec("a", "?!")) != exact_key(rec("b", "..."))


@quick
@given(st.lists(st.text("ab .,A", max_size=4), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_content_ids_follow_the_content(targets: list[str], rng: random.Random) -> None:
    records = [rec("", t) for t in targets]
    ids = sorted(zip(content_ids(records), targets, strict=True))
    rng.shuffle(records)
    assert ids == sorted(zip(content_ids(records), [r.target for r in records], strict=True))
    assert len(dict(ids)) == len(ids)


def shingles(text: str) -> set[tuple[str, ...]]:
    words = normalise(text).split()
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


@real
def test_near_duplicates_equal_brute_force_on_real_records() -> None:
    lines = (REAL / "medical" / "patient_qa_unique.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [t for t in (json.loads(line)["output"] for line in lines[:400]) if len(t.split()) >= 15][:300]
    assert len(texts) == 300
    rng = random.Random(0)
    for text in rng.sample(texts, 60):  # copies with one to four words changed straddle the threshold
        words = text.split()
        for _ in range(rng.randint(1, 4)):
            words[rng.randrange(len(words))] = "replaced"
        texts.append(" ".join(words))
    sets = [shingles(t) for t in texts]
    pairs = combinations(range(len(sets)), 2)
    similar = {(i, j): len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for i, j in pairs}
    expected = [pair for pair, s in similar.items() if s >= 0.8]
    assert 10 < len(expected) < 60
    assert near_pairs(texts) == sorted(expected)
    assert all(jaccard(texts[i], texts[j]) == pytest.approx(similar[i, j]) for i, j in expected[:20])


def test_short_and_unspaced_texts_are_compared_by_characters() -> None:
    assert near_pairs(["where is my new card please tell me", "where is my new card, please tell me now"]) == [(0, 1)]
    chinese = "我想知道我的新银行卡什么时候能够寄到我家里"
    assert near_pairs([chinese, chinese + "呢"]) == [(0, 1)]
    nine, ten = "one two three four five six seven eight nine", "one two three four five six seven eight nine x"
    assert near_pairs([nine, ten]) == [(0, 1)]


def test_a_fixed_instruction_makes_no_near_duplicates() -> None:
    fixed = "If you are a support agent please answer every question briefly and politely and never promise a refund. "
    rows = [fixed + f"{row['output'][:40]}" for row in synthetic_records(80, 1)]
    assert near_pairs(rows) == []


def test_each_reason_is_counted_and_kept_out() -> None:
    base = corpus(12, 1)
    members, clean = base[:5], base[5:]
    near = members[1].target.replace("Dear", "Hi").replace("Hello", "Hi")
    table_m = table(
        [*members, rec("r0-copy", members[0].target.upper() + " !", members[0].prompt), rec("q1", "yes", "Why?", "g1")],
        "members.jsonl", n_empty=2,
    )  # fmt: skip
    non = [
        *clean[:4],
        rec("x1", members[0].target, members[0].prompt),
        rec("x2", near + " now", members[1].prompt),
        rec("x3", clean[0].target, clean[0].prompt + "."),
        rec("x4", clean[1].target + " so", clean[1].prompt),
        rec("x5", "because it had to be done again", "Why?", "g1"),
    ]
    table_p = table(
        [*clean[4:6], rec("y1", members[2].target, members[2].prompt), rec("y2", clean[2].target, clean[2].prompt),
         rec("y3", clean[3].target + " so", clean[3].prompt), rec("y4", "it is so since long ago", "Why?", "g1")],
        "pool.jsonl",
    )  # fmt: skip
    table_n = table(non, "held.jsonl", n_empty=1)
    cohort = build_cohort(table_m, table_n, table_p)
    found = {(reason, side): n for reason, sides in cohort.dropped.items() for side, n in sides.items() if n}
    assert found == {
        ("empty", "member"): 2, ("empty", "nonmember"): 1, ("duplicate", "member"): 1, ("duplicate", "nonmember"): 1,
        ("near_duplicate", "nonmember"): 1, ("also_member", "nonmember"): 1, ("near_member", "nonmember"): 1,
        ("group_on_other_side", "nonmember"): 1, ("also_member", "pool"): 1, ("also_nonmember", "pool"): 1,
        ("near_nonmember", "pool"): 1, ("group_on_other_side", "pool"): 1,
    }  # fmt: skip
    assert {r.id for r in cohort.members} == {"r0", "r1", "r2", "r3", "r4", "q1"}
    assert len(cohort.nonmembers) == 4
    assert len(cohort.pool) == 2
    assert adds_up(cohort, table_m, table_n, table_p)


def test_answers_to_one_question_are_no_near_duplicates() -> None:
    question = " ".join(f"word{i}" for i in range(200))
    texts = ["take some rest", "see a surgeon today"]
    answers = [rec(f"a{i}", text, question, "g") for i, text in enumerate(texts)]
    twin = rec("a9", "take some rest!", question, "g")
    cohort = build_cohort(table([*answers, twin]), table(corpus(10, 2)))
    assert [r.id for r in cohort.members] == ["a0", "a1"]


def test_a_near_copy_of_a_dropped_member_is_no_clean_nonmember() -> None:
    words = [f"w{i}" for i in range(60)]
    chain = [" ".join(["x", "y", "z"][:k] + words[k:]) for k in (0, 2, 3)]  # each near the next
    members = table([rec("a", chain[0]), rec("b", chain[1])])
    cohort = build_cohort(members, table([rec("c", chain[2]), *corpus(5, 1)]))
    assert cohort.dropped["near_duplicate"]["member"] == 1
    assert cohort.dropped["near_member"]["nonmember"] == 1


def test_member_file_equal_to_nonmember_file() -> None:
    rows = corpus(6, 1)
    renamed = [rec(f"other{r.id}", r.target, r.prompt) for r in rows]
    for again in (table(rows, "m.jsonl"), table(renamed, "n.jsonl")):
        with pytest.raises(DataError, match=r"holds the same records as the member file m\.jsonl") as error:
            build_cohort(table(rows, "m.jsonl"), again)
        assert "\n" not in str(error.value)


def test_nothing_left_says_why() -> None:
    grouped = [rec(f"n{i}", r.target, r.prompt, "g") for i, r in enumerate(corpus(4, 2))]
    with pytest.raises(DataError, match=r"n\.jsonl: none of its 4 rows is left .*4 group_on_other_side"):
        build_cohort(table([rec("m", "a member's answer", "q", "g")]), table(grouped, "n.jsonl"))
    with pytest.raises(DataError, match="form one group"):
        build_cohort(table([rec("m", "a member's answer", "q")]), table(grouped, "n.jsonl"), pool_fraction=0.9)


def test_ids_used_on_both_sides_are_told_apart() -> None:
    rows = corpus(10, 1)
    members = [rec(str(i), r.target, r.prompt) for i, r in enumerate(rows[:5])]
    non = [rec(str(i), r.target, r.prompt) for i, r in enumerate(rows[5:])]
    cohort = build_cohort(table(members), table(non), pool_fraction=0)
    frame = split_frame(cohort)
    assert frame["record_id"].is_unique
    assert (frame["group"] == frame["record_id"]).all()
    assert len(cohort.nonmembers) == 5
    assert cohort.pool == ()


def test_group_is_kept_whole_and_split_only_if_none_fits() -> None:
    rows = corpus(40, 3)
    grouped = [rec(r.id, r.target, r.prompt, f"g{i // 4}") for i, r in enumerate(rows)]
    cohort = build_cohort(table(grouped[:20]), table(grouped[20:]), max_records=10)
    assert len(cohort.members) == 8
    assert len({r.group for r in cohort.members}) == 2
    assert {r.group for r in cohort.pool}.isdisjoint(r.group for r in cohort.nonmembers)
    small = build_cohort(table(grouped[:20]), table(grouped[20:]), max_records=3)
    assert len(small.members) == len(small.nonmembers) == 3
    tight = build_cohort(table(grouped[:20]), table(grouped[20:]), max_pool=2)
    assert (len(tight.pool), len(tight.nonmembers)) == (2, 16)
    assert tight.dropped["not_sampled"]["nonmember"] == 2


@quick
@given(
    st.integers(0, 3), st.none() | st.integers(1, 25), st.sampled_from([0.0, 0.1, 0.4]), st.booleans(),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_split_is_disjoint_complete_and_independent_of_order(
    seed: int, max_records: int | None, fraction: float, with_pool: bool, rng: random.Random
) -> None:
    rows = corpus(60, 9)
    rows = [rec(r.id, r.target, r.prompt, f"g{i // 2}" if i % 3 else "") for i, r in enumerate(rows)]
    parts = [rows[:25], [*rows[20:50], rows[31]], rows[45:]]
    parts[1][-1] = rec("copy", rows[31].target, rows[31].prompt)

    def build() -> Cohort:
        tables = [table(p, str(i)) for i, p in enumerate(parts)]
        return build_cohort(
            tables[0], tables[1], tables[2] if with_pool else None,
            seed=seed, max_records=max_records, pool_fraction=fraction, max_pool=5,
        )  # fmt: skip

    cohort = build()
    for part in parts:
        rng.shuffle(part)
    assert build() == cohort
    assert adds_up(cohort, *(table(p) for p in parts[:2]), table(parts[2]) if with_pool else None)
    frame = split_frame(cohort)
    assert frame["record_id"].is_unique
    assert (frame.groupby("group")["side"].nunique() == 1).all()
    assert (frame["member"] == (frame["side"] == "member")).all()
    assert len(cohort.pool) <= 5
    texts = [r.text for r in (*cohort.members, *cohort.nonmembers, *cohort.pool)]
    assert len(set(texts)) == len(texts)
    if max_records is not None:
        assert max(len(cohort.members), len(cohort.nonmembers)) <= max_records


def test_seed_changes_the_sample() -> None:
    rows = corpus(60, 4)
    first, second = (build_cohort(table(rows[:30]), table(rows[30:]), max_records=10, seed=s) for s in (0, 1))
    assert first.members != second.members
    assert first.pool != second.pool


@pytest.mark.parametrize("wrong", [{"max_records": 0}, {"max_pool": 0}, {"pool_fraction": 1.0}, {"near_threshold": 0}])
def test_settings_out_of_range(wrong: dict[str, float]) -> None:
    rows = table(corpus(4, 1))
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .*; expected"):
        build_cohort(rows, rows, None, **wrong)  # type: ignore[arg-type]


@real
def test_real_questions_stay_on_one_side(tmp_path: Path) -> None:
    lines = (REAL / "medical" / "patient_qa.jsonl").read_text(encoding="utf-8").splitlines()[:1200]
    for name, part in (("m", lines[::2]), ("n", lines[1::2])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(part), encoding="utf-8")
    members, non = (read_records(tmp_path / f"{n}.jsonl") for n in "mn")
    cohort = build_cohort(members, non, seed=1)
    assert cohort.dropped["group_on_other_side"]["nonmember"] > 0
    assert {r.prompt for r in cohort.members}.isdisjoint(r.prompt for r in (*cohort.nonmembers, *cohort.pool))
    assert adds_up(cohort, members, non)
