"""Readings of a model equal the slow plain way: every candidate as its own sequence, every reply by itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from indelible.canaries.config import DesignConfig, ProbeOptions
from indelible.canaries.design import Design, build_design
from indelible.canaries.exposure import Bank, Memo, ask_probes, make_bank, new_tokens
from indelible.canaries.probes import Probe, probes
from indelible.data.records import Message, Query
from indelible.errors import ConfigError
from indelible.models.generation import prompt_ids

OPTIONS = ProbeOptions(probes=("redacted", "as-trained", "substituted", "unseen", "plain"))


@pytest.fixture(scope="module")
def design() -> Design:
    config = {"rows": 40, "canaries": 3, "dose": 2, "controls": 1, "cue": "visible", "code": "###", "heldout": 0}
    return build_design(DesignConfig.model_validate(config))[0]


def slow_logprobs(model: Any, probe: Probe, candidates: list[str]) -> np.ndarray:
    """log p(before + candidate + after | prompt), each candidate as its own sequence with full logits.

    The fixed beginning is in all of them: it moves no rank, and needs no rule for a token that runs across its end.
    """
    out = []
    chat = model.chat
    for candidate in candidates:
        encoded = chat.encode(Query(probe.messages, f"{probe.before}{candidate}{probe.after}"))
        ids = torch.from_numpy(encoded.input_ids)[None]
        with torch.inference_mode():
            logp = model.module(input_ids=ids).logits.double().log_softmax(-1)[0]
        total = 0.0
        for position, span in zip(encoded.target_positions, encoded.spans, strict=True):
            if span is not None:  # not the end marker
                total += float(logp[position - 1, ids[0, position]])
        out.append(total)
    return np.array(out)


@pytest.mark.parametrize("name", ["redacted", "as-trained", "substituted", "unseen", "plain"])
def test_ranks_are_those_of_one_sequence_a_candidate(toy: Any, design: Design, tmp_path: Path, name: str) -> None:
    bank = make_bank(design, 99)
    assert bank.enumerated
    assert bank.n_candidates == 1000
    asked = [p for p in probes(design) if p.probe == name][:2]
    readings = ask_probes(toy, bank, asked, OPTIONS, Memo(tmp_path / "memo"), stage="test")
    codes = design.codes.space()
    for probe, reading in zip(asked, readings, strict=True):
        values = slow_logprobs(toy, probe, bank.among())
        fresh = name in ("unseen", "plain")
        own = values[codes.index(probe.supplied if fresh else probe.assigned)]
        others = np.delete(values, codes.index(probe.supplied if fresh else probe.assigned))
        near = int((np.abs(others - own) < 3e-4).sum())
        assert near <= 2
        assert abs(reading.rank - (1 + int((others >= own).sum()))) <= near
        if name == "substituted":
            other = values[codes.index(probe.supplied)]
            rest = np.delete(values, codes.index(probe.supplied))
            near = int((np.abs(rest - other) < 3e-4).sum())
            assert abs(reading.supplied_rank - (1 + int((rest >= other).sum()))) <= near
        else:
            assert math.isnan(reading.supplied_rank)


def test_a_bank_ranks_one_code_among_the_same_decoys(toy: Any, tmp_path: Path) -> None:
    config = {"rows": 40, "canaries": 3, "dose": 1, "controls": 0, "cue": "visible", "code": "AAA-XXXX-XXXX"}
    design, _, _ = build_design(DesignConfig.model_validate({**config, "heldout": 0, "prefixes": ["FIL"]}))
    bank = make_bank(design, 199)
    assert not bank.enumerated
    assert bank.n_candidates == 200
    taken = {c.code for c in design.canaries} | {c for codes in design.new_codes.values() for c in codes}
    assert not taken & set(bank.decoys)
    probe = next(p for p in probes(design) if p.probe == "substituted")
    (reading,) = ask_probes(toy, bank, [probe], OPTIONS, Memo(tmp_path / "memo"), stage="test")
    decoys = slow_logprobs(toy, probe, list(bank.decoys))
    for code, rank in ((probe.assigned, reading.rank), (probe.supplied, reading.supplied_rank)):
        own = slow_logprobs(toy, probe, [str(code)])[0]
        near = int((np.abs(decoys - own) < 3e-4).sum())
        assert abs(rank - (1 + int((decoys >= own).sum()))) <= near


def test_replies_together_equal_replies_alone(toy: Any, design: Design) -> None:
    queries = [Query((Message("user", "Hello" + " there" * n),), "x") for n in (1, 9, 3, 20, 2)]
    begun = ["", "Dear", "Dear customer,", "", "Re: "]
    together = toy.generate(queries, 12, begun=begun)
    alone = [toy.generate([q], 12, begun=[b])[0] for q, b in zip(queries, begun, strict=True)]
    assert together == alone
    assert toy.generate(queries, 12) == [toy.generate([q], 12)[0] for q in queries]


def test_a_begun_reply_goes_on_where_it_stopped(toy: Any) -> None:
    query = Query((Message("user", "Hello"),), "x")
    whole = toy.generate([query], 12)[0]
    tokens = toy.chat.tokenizer(whole, add_special_tokens=False)["input_ids"]
    start = toy.chat.tokenizer.decode(tokens[:4])
    assert start + toy.generate([query], 8, begun=[start])[0] == whole


def test_a_reply_to_a_conversation_comes_after_its_last_turn(toy: Any) -> None:
    turns = (Message("user", "One"), Message("assistant", "Two", scored=True), Message("user", "Three"))
    unscored = tuple(Message(m.role, m.content) for m in turns)
    assert toy.generate([Query(turns, "x")], 8) == toy.generate([Query(unscored, "x")], 8)
    prompts = [prompt_ids(toy, Query(seen, "x")) for seen in (turns, unscored, turns[:1])]
    assert prompts[0].tolist() == prompts[1].tolist()
    assert len(prompts[0]) > len(prompts[2])


def test_a_models_own_generation_settings_do_not_bend_replies(toy: Any) -> None:
    query = Query((Message("user", "Hello"),), "x")
    plain = toy.generate([query], 24)
    own = toy.module.generation_config
    from transformers import GenerationConfig

    try:
        toy.module.generation_config = GenerationConfig(
            repetition_penalty=3.0, no_repeat_ngram_size=1, eos_token_id=own.eos_token_id
        )
        bent = toy.module.generation_config
        assert toy.generate([query], 24) == plain
        assert toy.module.generation_config is bent
    finally:
        toy.module.generation_config = own


def test_a_reply_is_long_enough_for_the_code(toy: Any, tmp_path: Path) -> None:
    config = {"rows": 40, "canaries": 2, "dose": 1, "controls": 0, "heldout": 0, "code": "INVOICE-2024-EU-####"}
    design, _, _ = build_design(DesignConfig.model_validate(config))
    asked = probes(design, ("redacted",))
    needed = max(
        int(toy.encode(Query((Message("user", "?"),), design.codes.written(p.assigned))).is_target.sum()) for p in asked
    )
    assert needed > 12
    assert new_tokens(toy, design.codes, asked, OPTIONS) == needed
    with pytest.raises(ConfigError, match="max_new_tokens 12"):
        new_tokens(toy, design.codes, asked, ProbeOptions(max_new_tokens=12))


def test_codes_written_otherwise_are_other_questions(toy: Any, tmp_path: Path) -> None:
    config = {"rows": 40, "canaries": 2, "dose": 1, "controls": 0, "heldout": 0}
    one, two = (build_design(DesignConfig.model_validate({**config, "code": c}))[0] for c in ("four-digit", "####"))
    assert make_bank(one, 99).digest != make_bank(two, 99).digest


def test_the_memo_answers_instead_of_the_model(design: Design, toy: Any, tmp_path: Path) -> None:
    bank, memo = make_bank(design, 99), Memo(tmp_path / "memo")
    asked = probes(design, ("redacted", "substituted"))
    first = ask_probes(toy, bank, asked, OPTIONS, memo, stage="test")

    class Silent:
        """A model that must not be asked."""

        fingerprint = toy.fingerprint
        encode = toy.encode

    with (tmp_path / "memo").open("a") as file:
        file.write('["half a li')  # as a killed process leaves it
    again = ask_probes(Silent(), bank, asked, OPTIONS, Memo(tmp_path / "memo"), stage="test")  # type: ignore[arg-type]
    assert [repr(r) for r in again] == [repr(r) for r in first]


def test_replies_are_judged_by_their_first_code(design: Design) -> None:
    from indelible.canaries.exposure import _read

    codes = design.codes
    probe = next(p for p in probes(design) if p.probe == "substituted")
    bank = Bank(codes, tuple(codes.space()), enumerated=True)

    class Mute:
        """Ranks nothing."""

        def rank(self, *_: Any, **__: Any) -> Any:
            from indelible.errors import Unscorable

            raise Unscorable("no rank here")

    query = Query(probe.messages, codes.written(probe.assigned))
    supplied, assigned = codes.written(str(probe.supplied)), codes.written(probe.assigned)
    for reply, recovered, copied, full in (
        (assigned, True, False, True),
        (supplied, False, True, False),
        (f"it is {supplied}, not {assigned}", False, True, False),
        (f"{assigned} and more", True, False, False),
        ("no code at all", False, False, False),
    ):
        reading = _read(Mute(), bank, probe, query, reply)  # type: ignore[arg-type]
        assert (reading.recovered, reading.copied, reading.full_response) == (recovered, copied, full)
        assert reading.reason == "no rank here"
        assert math.isnan(reading.rank)
        assert reading.positions_correct == (
            3 if recovered else sum(a == b for a, b in zip(codes.find(reply) or "", probe.assigned, strict=False))
        )
