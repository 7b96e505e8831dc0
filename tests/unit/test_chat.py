from __future__ import annotations

import copy
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indelible.data.chat import ChatFormat, Encoded, chat_format
from indelible.data.records import Message, Query, Record
from indelible.data.templates import TEMPLATES
from indelible.errors import ConfigError, ModelError

EOS = "<|im_end|>"  # the toy's
MARKER = {"tokenizer": EOS, "plain": EOS, "chatml": EOS, "alpaca": EOS, "llama3": "<|eot_id|>", "icp-mia": "<|eot_id|>"}
NAMES = list(MARKER)
SPLIT = [n for n in NAMES if n != "icp-mia"]  # encoded piece by piece; the released code encodes jointly
USER = (Message("user", "What is it?"),)
DIALOGUE = (
    Message("system", "Be kind."),
    Message("user", "Hi"),
    Message("assistant", "Good day, Ada.", scored=True),
    Message("user", "Who?"),
    Message("assistant", "never scored"),
    Message("user", "And now?"),
)
answers = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


def test_every_template_is_checked_here() -> None:
    assert set(MARKER) == {"tokenizer", *TEMPLATES}


def form(tokenizer, name: str, **settings) -> ChatFormat:
    return chat_format(tokenizer, template=None if name == "tokenizer" else name, **settings)


def target_ids(e: Encoded) -> list[int]:
    return e.input_ids[e.is_target].tolist()


def decode(tokenizer, ids) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def trimmed(name: str, text: str) -> str:
    return text.strip() if name == "llama3" else text


@pytest.mark.parametrize("name", NAMES)
def test_target_tokens_spell_the_answer_and_its_end_marker(tokenizer, name: str) -> None:
    e = form(tokenizer, name).encode(Query(USER, "It is a kite, Zoë."))
    assert decode(tokenizer, target_ids(e)) == "It is a kite, Zoë." + MARKER[name]
    assert (
        decode(tokenizer, e.input_ids[~e.is_target]).rstrip().endswith(("assistant", "Assistant:", "Response:", "|>"))
    )
    assert "What is it?" in decode(tokenizer, e.input_ids[~e.is_target])


@pytest.mark.parametrize("name", SPLIT)
@settings(max_examples=40, deadline=None)
@given(answer=answers)
@example(answer="")
@example(answer=" leading and trailing \n")
@example(answer="\n\n### Response:\n")
@example(answer="世界 🎈")
def test_no_token_crosses_the_boundary_and_no_context_moves_a_target_token(tokenizer, name: str, answer: str) -> None:
    chat = form(tokenizer, name)
    e = chat.encode(Query(USER, answer))
    assert decode(tokenizer, target_ids(e)) == trimmed(name, answer) + MARKER[name]
    assert not e.is_target[0]
    assert len(e.spans) == len(e.target_positions) == e.is_target.sum()
    for context in [(Message("user", "x"), Message("assistant", answer)), (Message("user", answer),)]:
        assert target_ids(chat.encode(Query((*context, *USER), answer))) == target_ids(e)


@pytest.mark.parametrize("name", SPLIT)
@settings(max_examples=40, deadline=None)
@given(texts=st.tuples(answers, answers))
@example(texts=("plain words", "two words"))
@example(texts=(" leading", "  leading blanks"))
@example(texts=("trailing ", "世界 🎈\n"))
def test_spans_point_at_the_text_of_the_answer_they_belong_to(tokenizer, name: str, texts: tuple[str, str]) -> None:
    messages = (Message("user", "Hi"), Message("assistant", texts[0], scored=True), Message("user", "And?"))
    record = Record("r", messages, texts[1])
    e = form(tokenizer, name).encode(Query(messages, texts[1]))
    covered = [set(), set()]
    for token, span in zip(target_ids(e), e.spans, strict=True):
        if span is None:
            continue
        covered[span.turn].update(range(span.start, span.end))
        piece = record.responses[span.turn][span.start : span.end]
        spelt = decode(tokenizer, [token])
        assert spelt == piece or "�" in spelt, "a token is its span's text, or some bytes of one character"
    for turn, text in enumerate(record.responses):
        visible = {i for i, c in enumerate(text) if not c.isspace()}
        assert visible <= covered[turn] <= set(range(len(text)))


@pytest.mark.parametrize("name", SPLIT)
def test_every_scored_turn_is_target_and_no_other(tokenizer, name: str) -> None:
    e = form(tokenizer, name).encode(Query(DIALOGUE, "Nothing more."))
    marker = MARKER[name]
    assert decode(tokenizer, target_ids(e)) == f"Good day, Ada.{marker}Nothing more.{marker}"
    assert [turn for turn, _ in groupby(s.turn if s else None for s in e.spans)] == [0, None, 1, None]
    assert "never scored" in decode(tokenizer, e.input_ids[~e.is_target])


def test_joint_encoding_scores_every_scored_turn_or_refuses(tokenizer) -> None:
    """The released code knows single answers only; a conversation must not be scored on shifted tokens."""
    try:
        e = form(tokenizer, "icp-mia").encode(Query(DIALOGUE[:4], "Nothing more."))
    except (ModelError, ConfigError):
        return
    scored = decode(tokenizer, target_ids(e))
    assert scored in {"Good day, Ada.<|eot_id|>Nothing more.<|eot_id|>", "Nothing more.<|eot_id|>"}


def test_joint_encoding_cuts_at_the_length_of_the_prompt_alone(tokenizer) -> None:
    query = Query(USER, "It is.")
    head = (
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is it?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    e = form(tokenizer, "icp-mia").encode(query)
    assert e.input_ids.tolist() == tokenizer(head + "It is.<|eot_id|>")["input_ids"]
    assert int(e.target_positions[0]) == len(tokenizer(head)["input_ids"])


@pytest.mark.parametrize("name", ["tokenizer", "icp-mia"])
def test_the_first_token_is_never_a_target(tokenizer, name: str) -> None:
    e = form(tokenizer, name).encode(Query((), "plain text"))
    assert not e.is_target[0]
    assert e.is_target[1:].all()
    assert len(e.spans) == e.is_target.sum()


def test_plain_text_is_scored_as_it_stands_after_its_context(tokenizer) -> None:
    chat = form(tokenizer, "tokenizer")
    e = chat.encode(Query((Message("text", "One two "),), "three four"))
    assert decode(tokenizer, e.input_ids) == "One two three four"
    assert decode(tokenizer, target_ids(e)) == "three four"


@pytest.mark.parametrize("name", NAMES)
def test_a_system_turn_is_put_in_where_there_is_none(tokenizer, name: str) -> None:
    own = (Message("system", "Mine."), *USER)
    chat = form(tokenizer, name, system="Given.")
    given_ = decode(tokenizer, chat.encode(Query(USER, "Yes.")).input_ids)
    assert given_.index("Given.") < given_.index("What is it?")
    assert "Given." not in decode(tokenizer, chat.encode(Query(own, "Yes.")).input_ids)
    with_turn = form(tokenizer, name).encode(Query((Message("system", "Given."), *USER), "Yes."))
    assert chat.encode(Query(USER, "Yes.")).input_ids.tolist() == with_turn.input_ids.tolist()


@pytest.mark.parametrize("name", SPLIT)
def test_a_system_turn_put_in_moves_no_scored_turn(tokenizer, name: str) -> None:
    query = Query(DIALOGUE[1:4], "Yes.")
    with_system = form(tokenizer, name, system="Given.").encode(query)
    without = form(tokenizer, name).encode(query)
    assert len(with_system) > len(without)
    assert target_ids(with_system) == target_ids(without)
    assert with_system.spans == without.spans


def test_plain_text_gets_no_system_turn(tokenizer) -> None:
    e = form(tokenizer, "tokenizer", system="Given.").encode(Query((), "plain text"))
    assert decode(tokenizer, e.input_ids) == "plain text"


def test_a_template_without_end_marker_scores_the_answer_alone(tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "bare.jinja"
    path.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                    "{% if add_generation_prompt %}assistant: {% endif %}")  # fmt: skip
    chat = chat_format(tokenizer, template=str(path))
    e = chat.encode(Query(DIALOGUE, "Nothing more."))
    assert chat.name == "bare.jinja"
    assert decode(tokenizer, target_ids(e)) == "Good day, Ada.Nothing more."
    assert None not in e.spans


REWRITES = "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}{% endfor %}"
REFUSES = "{{ raise_exception('Conversation roles must alternate') }}"
BROKEN = "{% for m in messages %}{{ m.content }"


@pytest.mark.parametrize("source", [REWRITES, REFUSES, BROKEN], ids=["rewrites", "refuses", "broken"])
def test_a_template_that_cannot_be_used_is_one_clear_line(tokenizer, tmp_path: Path, source: str) -> None:
    path = tmp_path / "odd.jinja"
    path.write_text(source)
    with pytest.raises((ModelError, ConfigError), match=r"odd\.jinja") as caught:
        chat_format(tokenizer, template=str(path)).encode(Query(USER, "Yes."))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_template_is_an_error_for_conversations_only(tokenizer) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(ModelError, match="--template") as caught:
        chat_format(bare, chat_data=True)
    assert "\n" not in str(caught.value)
    chat = chat_format(bare, chat_data=False)
    assert chat.name == "plain"
    text = decode(tokenizer, chat.encode(Query(USER, "Yes.")).input_ids)
    assert text == f"### User:\nWhat is it?\n\n### Assistant:\nYes.{EOS}"
    with pytest.raises(ModelError, match="--template"):
        ChatFormat(bare, None, "none").encode(Query(USER, "Yes."))


def test_an_unknown_template_is_one_line_with_a_suggestion(tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"unknown template 'lama3'\. Did you mean 'llama3'") as caught:
        chat_format(tokenizer, template="lama3")
    assert "\n" not in str(caught.value)


def test_the_fingerprint_changes_with_whatever_changes_the_rendering(tokenizer) -> None:
    formats = [form(tokenizer, n) for n in SPLIT[1:]] + [form(tokenizer, "chatml", system=s) for s in ("", "Be kind.")]
    assert len({f.fingerprint for f in formats}) == len(formats)
    assert form(tokenizer, "chatml").fingerprint == form(tokenizer, "chatml").fingerprint


MISTRAL_LIKE = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
QWEN3_LIKE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("template", [MISTRAL_LIKE, QWEN3_LIKE])
@pytest.mark.parametrize("target", ["think", "a b", " [INST]", "x"])
def test_what_a_template_writes_between_prompt_and_answer_is_context(tokenizer, template: str, target: str) -> None:
    chat = ChatFormat(tokenizer, template, "given")
    earlier = (Message("user", "one"), Message("assistant", "first answer", scored=True), Message("user", "two"))
    for messages, n_answers in (((Message("user", "one"),), 1), (earlier, 2)):
        pieces = chat.pieces(messages, target)
        assert [p.text for p in pieces if p.turn == n_answers - 1 and not p.is_end] == [target]
        assert sum(p.turn >= 0 and not p.is_end for p in pieces) == n_answers


def test_a_template_of_ours_begins_with_the_bos_that_the_tokenizer_adds_itself(tokenizer) -> None:
    from tokenizers.processors import TemplateProcessing

    adding = copy.deepcopy(tokenizer)
    bos = (adding.bos_token, adding.bos_token_id)
    adding.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    adding.chat_template = None
    query = Query((Message("user", "Hello"),), "Hi")
    assert chat_format(adding, chat_data=False).encode(query).input_ids[0] == adding.bos_token_id
    assert chat_format(tokenizer, template="plain").encode(query).input_ids[0] != tokenizer.bos_token_id
