"""Models that fill gaps: the base, masked models and T5-like ones, against one place at a time."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from indelible.attacks.base import Resources
from indelible.attacks.perturbation import Neighborhood
from indelible.attacks.variation import Spv
from indelible.data.fill import Blanks, best_substitutions
from indelible.data.records import Message, Query, Record, Reply
from indelible.errors import ModelError
from indelible.models.masked import DROPOUT, load_filler, load_masked
from indelible.models.proposals import ROUNDS, fill_from_base, seed_of
from indelible.scoring.cache import AnswerCache

WORDS = "the a cat dog sat ran on in mat hat red blue big one two walk ##ed ##ing . ,"
ASK = (Message("user", "What is it?"),)
TALK = Record(
    "several turns",
    (Message("user", "Hi there."), Message("assistant", "Good day Ada.", scored=True), Message("user", "And you?")),
    "Thank you, I am well today.",
)

# Fills of the base.


def test_the_base_writes_on_from_what_stands_left_and_is_asked_a_few_times_at_most() -> None:
    text = "The skin check was moved to Monday, in room 12."
    spans = ((text.index("was"), text.index(" to")), (text.index("in room"), text.index(" 12")))
    seen: list[Query] = []

    class Writer:
        """Answers the first span at once, the second at its third attempt, and never that of another text."""

        name, context_length = "writer", 100

        def prompt_length(self, query: Query) -> int:
            return 5

        def replies(self, queries: Sequence[Query]) -> Iterator[tuple[int, str]]:
            seen.extend(queries)
            for i, q in enumerate(queries):
                tries = len([s for s in seen if replace(s, reply=None) == replace(q, reply=None)])
                ready = q.reply.begun == "The skin check" or (tries == 4 and q.messages)  # its third, after the first's
                yield i, "  were put off\nfor" if ready else " \n"

    fills = fill_from_base(Writer(), [Blanks(ASK, text, spans, 1), Blanks((), text, spans[1:], 2)])
    assert fills == [("were put", "were put"), None]
    assert {q.reply.begun for q in seen} == {text[: a - 1] for a, _ in spans}
    assert all(q.target == "" and q.reply.temperature == 1.0 for q in seen)
    assert len(seen) == 1 + 3 + ROUNDS
    assert len({q.reply.seed for q in seen}) == len(seen)


def test_a_beginning_that_does_not_fit_the_context_is_not_asked(toy) -> None:
    n = toy.prompt_length(Query(ASK, "", reply=Reply(8, begun="one")))
    long = replace(toy, context_length=n + 7)
    assert fill_from_base(long, [Blanks(ASK, "one two three four", ((4, 13),), 0)]) == [None]
    assert fill_from_base(replace(toy, context_length=n + 8), [Blanks(ASK, "one two three four", ((4, 13),), 0)])[0]


def test_what_the_base_wrote_is_at_hand_in_the_next_run_and_after_an_interruption(tmp_path) -> None:
    seen: list[Query] = []

    class Writer:
        name, context_length, fingerprint = "writer", 100, "one"
        breaks_after = 3

        def prompt_length(self, query: Query) -> int:
            return 5

        def replies(self, queries: Sequence[Query]) -> Iterator[tuple[int, str]]:
            for i in reversed(range(len(queries))):
                if len(seen) == self.breaks_after:
                    raise KeyboardInterrupt
                seen.append(queries[i])
                yield i, f"word{queries[i].reply.seed}"

    cache = AnswerCache(tmp_path, engine_version=1)
    text = "one two three four five six"
    blanks = [Blanks(ASK, text, ((0, 3), (8, 13), (19, 23)), 1), Blanks(ASK, text, ((4, 7), (14, 18)), 2)]
    with pytest.raises(KeyboardInterrupt):
        fill_from_base(Writer(), blanks, cache=cache)
    writer = Writer()
    writer.breaks_after = 100
    told: list[int] = []
    fills = fill_from_base(writer, blanks, told.append, cache=cache)
    assert len(seen) == len(set(seen)) == 5
    assert sum(told) == 5
    assert fills == fill_from_base(writer, blanks, cache=cache)
    assert len(seen) == 5
    assert fills == fill_from_base(writer, blanks)  # without a cache: the same, asked anew
    assert len(seen) == 10
    writer.fingerprint = "another"
    fill_from_base(writer, blanks, cache=cache)
    assert len(seen) == 15


def test_each_answer_of_a_conversation_is_written_from_the_turns_before_it() -> None:
    seen: list[Query] = []

    class Writer:
        name, context_length = "writer", 100

        def prompt_length(self, query: Query) -> int:
            return 5

        def replies(self, queries: Sequence[Query]) -> Iterator[tuple[int, str]]:
            seen.extend(queries)
            yield from ((i, f"new{i}") for i in range(len(queries)))

    (record,) = Spv(n=6).prepare([TALK], Resources(base=Writer()))
    first = [q for q in seen if q.messages == TALK.messages[:1]]
    last = [q for q in seen if q.messages == TALK.messages]
    assert len(first) == len(last) == 6
    assert len(seen) == 12
    assert all(TALK.responses[0].startswith(q.reply.begun) for q in first)
    assert all(TALK.responses[1].startswith(q.reply.begun) for q in last)
    (copies,) = record.variants.values()
    assert len(copies) == 6
    assert all("new" in turn.content for copy in copies for turn in copy)


# Masked models.


def save(tokenizer, module, folder: Path) -> str:
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory, tokenizer) -> str:
    """A random RoBERTa with the toy's byte-level vocabulary."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

    bare = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    start, end = tokenizer.bos_token, tokenizer.eos_token
    bare.post_processor = processors.RobertaProcessing(
        (end, tokenizer.eos_token_id), (start, tokenizer.bos_token_id), trim_offsets=True, add_prefix_space=False
    )
    own = PreTrainedTokenizerFast(
        tokenizer_object=bare, bos_token=start, eos_token=end, pad_token="<pad>", mask_token="<mask>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(own),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=20,
        pad_token_id=own.pad_token_id,
        initializer_range=0.5,
    )
    config.max_position_embeddings = 20 + own.pad_token_id + 1
    return save(own, RobertaForMaskedLM(config), tmp_path_factory.mktemp("masked") / "roberta")


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()])}
    bare = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    bare.normalizer = normalizers.BertNormalizer(lowercase=True)
    bare.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bare.decoder = decoders.WordPiece()
    bare.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    own = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(own),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
        max_position_embeddings=64,
    )
    return save(own, BertForMaskedLM(config), tmp_path_factory.mktemp("masked") / "bert")


@pytest.mark.parametrize("corrupt", ["dropout", "mask"])
def test_masked_proposals_are_those_of_one_place_at_a_time(roberta: str, corrupt: str) -> None:
    model = load_masked(roberta)
    text = "Dear Ada, the red hat is in room 12."
    found = model.propose([text], 3, corrupt, "a seed")
    module, tokenizer = model.module, model.tokenizer
    generator = torch.Generator().manual_seed(seed_of("a seed"))
    content, offsets = (
        tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)[k]
        for k in ("input_ids", "offset_mapping")
    )
    expected = []
    n = model.limit - 2
    assert len(content) > n, "the text takes more than one window"
    for window in range(0, len(content), n):
        ids = torch.tensor([[tokenizer.bos_token_id, *content[window : window + n], tokenizer.eos_token_id]])
        dropped = torch.rand(ids.shape[1], 32, generator=generator) < DROPOUT if corrupt == "dropout" else None
        for k, (start, end) in enumerate(offsets[window : window + n]):
            if not text[start:end].strip():
                continue
            i = k + 1
            shown = ids.clone()
            if corrupt == "mask":
                shown[0, i] = tokenizer.mask_token_id
            with torch.no_grad():
                vectors = module.roberta.embeddings(input_ids=shown).clone()
                if dropped is not None:
                    vectors[0, i][dropped[i]] = 0
                    vectors[0, i] /= 1 - DROPOUT
                p = module.lm_head(module.roberta.encoder(vectors).last_hidden_state)[0, i].double().softmax(-1)
            original = int(ids[0, i])
            ranked = []
            for v in range(len(tokenizer)):
                written = tokenizer.decode([v])
                if (
                    v not in tokenizer.all_special_ids
                    and v > 2
                    and v != original
                    and written.strip()
                    and "\ufffd" not in written
                ):
                    ranked.append((float(p[v] / (1 - p[original])), written))
            if tokenizer.convert_ids_to_tokens(original).startswith("Ġ"):
                start -= 1  # the offsets leave out the token's blank
            expected += [(start, end, written, w) for w, written in sorted(ranked, reverse=True)[:3]]
    assert [(c.turn, c.start, c.end, c.written) for c in found] == [(0, s, e, w) for s, e, w, _ in expected]
    assert max(abs(math.exp(c.weight) - w) for c, (*_, w) in zip(found, expected, strict=True)) < 1e-4


def test_dropout_is_seeded_by_record_and_masks_are_not(roberta: str) -> None:
    def neighbours(record: Record, seed: int, corrupt: str) -> object:
        attack = Neighborhood(n=5, top_k=2, model=roberta, corrupt=corrupt)
        return next(iter(attack.prepare([record], Resources(seed=seed))[0].variants.values()))

    one, other = Record("one", ASK, "Dear Ada, the hat."), Record("other", ASK, "Dear Ada, the hat.")
    assert neighbours(one, 0, "dropout") == neighbours(one, 0, "dropout")
    assert len({neighbours(one, 0, "dropout"), neighbours(one, 1, "dropout"), neighbours(other, 0, "dropout")}) == 3
    assert neighbours(one, 0, "mask") == neighbours(other, 1, "mask")
    assert len(neighbours(one, 0, "mask")) == 5


def test_a_masked_model_rewrites_one_token_of_one_answer_of_a_conversation(roberta: str) -> None:
    answers = TALK.responses
    (record,) = Neighborhood(n=40, top_k=1, model=roberta).prepare([TALK], Resources())
    (contexts,) = record.variants.values()
    changed = [[turn.content != old for turn, old in zip(c, answers, strict=True)] for c in contexts]
    assert all(sum(one) == 1 for one in changed)
    assert {one.index(True) for one in changed} == {0, 1}
    assert len(set(contexts)) == len(contexts) >= 20


def test_word_pieces_are_put_in_by_place_and_the_rest_keeps_its_case(bert: str) -> None:
    model = load_masked(bert)
    text = "The  CAT walked\non."
    candidates = model.propose([text], 19, "mask", "")
    places = {(c.start, c.end) for c in candidates}
    assert [text[a:b] for a, b in sorted(places)] == ["The", " CAT", " walk", "ed", "on", "."]
    made = {new for (new,) in best_substitutions([text], candidates, 10_000)}
    for expected in ("The  dog walked\non.", "The  CAT walking\non.", "The  CAT walk dog\non.", "The  CAT walked\nin."):
        assert expected in made
    assert "The ed walked\non." in made, "a piece that continues a word takes one blank away"
    assert all(abs(len(new.split()) - 4) <= 1 for new in made)


# T5-like fillers.


@pytest.fixture(scope="module")
def t5(tmp_path_factory) -> str:
    """A tiny T5 with four sentinels that learnt to answer them with two letters each; after three it just ends."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    letters, marks = list("abcdefghij"), [f"<extra_id_{i}>" for i in range(4)]
    vocabulary = {w: i for i, w in enumerate(["<pad>", "</s>", "<unk>", *letters, *marks])}
    bare = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    own = PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", extra_special_tokens=marks
    )
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(vocabulary),
        d_model=32,
        d_ff=64,
        d_kv=16,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    module, rng = T5ForConditionalGeneration(config), random.Random(0)
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(80):
        asked, wanted = [], []
        for _ in range(32):
            n = rng.randint(1, 3)
            fills = [" ".join(rng.choices(letters, k=2)) for _ in range(n)]
            asked.append(" ".join(f"{' '.join(rng.choices(letters, k=2))} {mark}" for mark in marks[:n]))
            wanted.append(
                " ".join(f"{m} {f}" for m, f in itertools.zip_longest(marks[: n + (n < 3)], fills, fillvalue=""))
            )
        given = own(asked, padding=True, return_tensors="pt")
        labels = own(wanted, padding=True, return_tensors="pt")["input_ids"]
        labels[labels == 0] = -100
        loss = module(input_ids=given["input_ids"], attention_mask=given["attention_mask"], labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return save(own, module.eval(), tmp_path_factory.mktemp("filler") / "t5")


LETTERS = "a b c d e f g h i j a b c d e f g h i j a b c d e f g h"


def test_more_spans_than_sentinels_are_filled_in_parts_and_each_draw_by_its_own_seed(t5: str) -> None:
    model = load_filler(t5)
    assert model.n_sentinels == 4
    spans = tuple((8 * i + 2, 8 * i + 5) for i in range(7))
    many, few = Blanks((), LETTERS, spans, 1), Blanks((), LETTERS, spans[:2], 2)
    first = model.fill([many, few])
    assert [len(fills) for fills in first] == [7, 2]
    assert all(set(fill.split()) <= set("abcdefghij") and fill for fills in first for fill in fills)
    assert model.fill([few, many]) == first[::-1]
    assert model.fill([few]) == first[1:]
    assert model.fill([replace(few, seed=i) for i in range(3, 9)]) != first[1:] * 6
    assert model.fill([]) == []


def test_a_filler_that_gives_no_fills_is_asked_a_few_times_and_then_given_up(t5: str, monkeypatch) -> None:
    model = load_filler(t5)
    with torch.no_grad():
        model.module.decoder.final_layer_norm.weight.zero_()  # all tokens as probable: sentinels do not come in order
    n_asked = []
    generate = model.module.generate
    monkeypatch.setattr(model.module, "generate", lambda **k: n_asked.append(len(k["input_ids"])) or generate(**k))
    assert model.fill([Blanks((), LETTERS, ((2, 5), (10, 13), (18, 21)), 1)] * 2) == [None, None]
    assert n_asked == [2] * ROUNDS


def test_such_a_model_refills_the_copies_of_a_record_where_it_can(t5: str) -> None:
    records = Spv(n=3, filler=t5).prepare([Record("long", ASK, LETTERS), Record("short", ASK, "a b")], Resources())
    name = f"fills:{t5}:0.3:2:1:3"
    copies = [context[0].content for context in records[0].variants[name]]
    assert 1 <= len(copies) <= 3
    assert all(set(copy) <= set(" abcdefghij") and copy != LETTERS for copy in copies)
    assert records[1].variants[name] == ()


# What cannot be loaded.


def test_what_is_no_such_model_is_one_line(bert: str, t5: str, tuned_toy: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertConfig, BertModel

    config = BertConfig.from_pretrained(bert)
    headless = save(AutoTokenizer.from_pretrained(bert), BertModel(config), tmp_path / "headless")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    config.save_pretrained(pickled)
    (pickled / "pytorch_model.bin").write_bytes(b"")
    for load, name, message in (
        (load_masked, "./nowhere", "no model folder"),
        (load_masked, str(tuned_toy), "cannot be loaded as a masked language model"),
        (load_masked, headless, "its files lack"),
        (load_masked, str(pickled), "pickled"),
        (load_filler, bert, "cannot be loaded as a T5-like model"),
        (load_filler, "./nowhere", "no model folder"),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            load(name)
        assert "\n" not in str(caught.value)
    tokenizer = AutoTokenizer.from_pretrained(bert)
    t5_without = tmp_path / "no sentinels"
    load_filler(t5).module.save_pretrained(t5_without)
    tokenizer.save_pretrained(t5_without)
    with pytest.raises(ModelError, match="no sentinel tokens"):
        load_filler(str(t5_without))
