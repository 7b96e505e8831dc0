"""What every vision-language model promises: tokens of pictures, training that spares the encoder, plain errors."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from vision_fakes import FAMILIES, FLOAT32, kind, model, native, shot, write

from indelible.config import TrainConfig
from indelible.data.pictures import pixels
from indelible.data.records import Message, Query, Record
from indelible.errors import ConfigError, DataError, ModelError
from indelible.models.base import LanguageModel
from indelible.models.builtin import builtin_folder
from indelible.models.load import load_model
from indelible.models.vision import VisionModel
from indelible.training.sft import encode_rows
from indelible.training.vision import fine_tune_vision

TYPE = (Message("user", "Type the visible reference code."),)
QUERY = Query(TYPE, 'type("PRJ-TQW7-2KMP")', (shot(0),))
SIZES = ((96, 64), (64, 96), (33, 90), (300, 20), (28, 28), (448, 336))


def test_an_image_is_part_of_a_questions_digest_and_its_absence_is_not() -> None:
    plain = replace(QUERY, images=())
    assert plain.digest().hex().startswith("a1225da489a4b83b"), "as it was before there were images"
    assert len({plain.digest(), QUERY.digest(), replace(QUERY, images=(shot(1),)).digest()}) == 3
    assert replace(QUERY, images=(shot(0),)).digest() == QUERY.digest()
    assert len({QUERY, replace(QUERY, images=(shot(0),))}) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_image_tokens_are_known_from_the_size_and_the_same_everywhere(family: str) -> None:
    made = model(family)
    assert isinstance(made, LanguageModel)
    for seed, (width, height) in enumerate(SIZES):
        shown = shot(seed, width, height)
        query = replace(QUERY, images=(shown,))
        told = made.sight.n_tokens(shown)
        of_processor = int((native(made, TYPE, query.images)["input_ids"] == made.sight.token_id).sum())
        probe = made.prompt_ids(query)
        row = encode_rows(made, [Record("r", TYPE, QUERY.target, (shown,))], 4096)[0][0]
        n_of = [int((ids >= made.sight.first_id).sum()) for ids in (probe, row.input_ids)]
        assert [told, *n_of] == [of_processor] * 3
        assert probe.tolist() == row.input_ids[: len(probe)].tolist()
        assert not (row.input_ids[row.is_target] >= made.sight.first_id).any(), "no image token is scored"
    assert made.facts["image_tokens"]["448x336"] == told


@pytest.mark.parametrize("family", FAMILIES)
def test_images_stand_before_the_first_user_text(family: str) -> None:
    made = model(family)
    turns = (Message("system", "SYS"), Message("user", "FIRST"), Message("assistant", "ANS"), Message("user", "SECOND"))
    ids = made.encode(Query(turns, "END", (shot(0), shot(1)))).input_ids
    text = made.chat.tokenizer.decode(made.sight.placeholders(ids))
    token = re.escape(made.sight.processor.image_token)
    assert re.search(f"SYS.*{token}.*FIRST", text, re.DOTALL)
    assert not re.search(f"FIRST.*{token}", text, re.DOTALL)
    alone = [made.sight.shown(made.encode(replace(QUERY, images=(shot(i),))).input_ids) for i in (0, 1)]
    assert made.sight.shown(ids) == [*alone[0], *alone[1]]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_picture_that_the_encoder_sees_is_the_one_that_was_given(family: str) -> None:
    size = {"qwen2_5_vl": (112, 56), "qwen3_vl": (96, 64)}.get(family, (56, 28) if family == "internvl" else (96, 64))
    shown = shot(7, *size)
    seen = model(family).sight.seen(shown)
    assert seen.size == size
    difference = np.asarray(seen, dtype=float) - np.asarray(pixels(shown), dtype=float)
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_training_moves_connector_and_language_model_and_leaves_the_encoder(family: str, tmp_path: Path) -> None:
    base = write(family, tmp_path / "base")
    made = load_model(str(base), FLOAT32)[0]
    before = {name: p.detach().clone() for name, p in made.module.named_parameters()}
    records = [Record(f"r{i}", TYPE, f'type("{i}{i}")', (shot(i % 2),)) for i in range(5)]
    config = TrainConfig(
        model=str(base),
        train="-",
        out="-",
        epochs=1,
        batch_size=2,
        learning_rate=1e-2,
        warmup_steps=1,
        shuffle=False,
        save_at=(2,),
        device="cpu",
        autocast="off",
    )
    steps = fine_tune_vision(made, records, config, tmp_path / "out")
    assert [s.rows for s in steps] == [(0, 1), (2, 3), (4,)]
    for name, p in made.module.named_parameters():
        is_encoder = re.fullmatch(made.sight.family.encoder, name) is not None
        assert torch.equal(p, before[name]) == is_encoder, name
    log = pd.read_parquet(tmp_path / "out" / "training_log.parquet")
    assert log["record_id"].tolist() == [r.id for r in records]
    facts = json.loads((tmp_path / "out" / "training.json").read_text())
    assert facts["untrained"] == made.sight.family.encoder
    assert facts["image_tokens"]["96x64"] == made.sight.n_tokens(shot(0))
    again = load_model(str(tmp_path / "out"), FLOAT32)[0]
    np.testing.assert_allclose(again.logprobs([QUERY])[0].logprobs, made.logprobs([QUERY])[0].logprobs, atol=1e-4)
    middle = load_model(str(tmp_path / "out" / "checkpoint-2"), FLOAT32)[0]
    assert len({m.fingerprint for m in (made, again, middle)}) == 3, "named by the weights on disk"

    settings = tmp_path / "out" / "preprocessor_config.json"
    changed = json.loads(settings.read_text())
    if kind(family) == "qwen":
        changed["size"] = {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}
    elif family == "screenreader":
        changed["max_tokens"] = 20
    else:
        changed |= {"crop_to_patches": False, "max_patches": 1, "do_image_splitting": False}
    settings.write_text(json.dumps(changed))
    with pytest.raises(ModelError, match=r"had \d+ image tokens in training and has \d+ now") as caught:
        load_model(str(tmp_path / "out"), FLOAT32)
    assert "\n" not in str(caught.value)


def test_an_adapter_is_on_language_model_and_connector_alone(tmp_path: Path) -> None:
    base = write("qwen3_vl", tmp_path / "base")
    made = load_model(str(base), FLOAT32)[0]
    records = [Record(f"r{i}", TYPE, f'type("{i}{i}")', (shot(i),)) for i in range(2)]
    config = TrainConfig(
        model=str(base), train="-", out="-", epochs=2, batch_size=2, lora_rank=2, learning_rate=0.05, autocast="off"
    )
    fine_tune_vision(made, records, config, tmp_path / "out")
    adapted = load_model(str(tmp_path / "out"), FLOAT32)[0]
    assert isinstance(adapted, VisionModel)
    lora = [name for name, _ in adapted.module.named_parameters() if "lora_A" in name]
    assert any("visual.merger" in name for name in lora)
    assert any("deepstack_merger_list" in name for name in lora)
    assert any("language_model" in name for name in lora)
    assert not [name for name in lora if "visual.blocks" in name]
    untouched, query = load_model(str(base), FLOAT32)[0], replace(QUERY, images=(shot(0),))
    tuned = adapted.logprobs([query])[0].logprobs
    off = adapted.as_base().logprobs([query])[0].logprobs
    np.testing.assert_allclose(off, untouched.logprobs([query])[0].logprobs, atol=1e-5)
    assert np.abs(tuned - off).max() > 1e-3
    np.testing.assert_array_equal(adapted.logprobs([query])[0].logprobs, tuned)


def test_a_text_model_asked_about_an_image_says_that_it_has_no_vision_tower(toy) -> None:
    for ask in (
        lambda: load_model(str(builtin_folder("toy")), FLOAT32),
        lambda: toy.encode(QUERY),
        lambda: toy.generate([QUERY], 4),
        lambda: toy.rank(QUERY, [QUERY.target, "no"]),
        lambda: toy.prompt_length(QUERY),
        lambda: fine_tune_vision(toy, [], TrainConfig(model="-", train="-", out="-"), Path("-")),
    ):
        with pytest.raises(ModelError, match="no vision tower") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_what_cannot_be_asked_or_trained_is_one_line(tmp_path: Path) -> None:
    made = model("qwen2_5_vl")
    marker = made.sight.processor.image_token
    settings = TrainConfig(model="-", train="-", out="-")
    private = settings.model_copy(update={"dp_epsilon": 8.0})
    rows, blind = [Record("a", TYPE, "x", (shot(0),))], [Record("a", TYPE, "x")]
    for error, what, ask in (
        (ModelError, "2 places for 1 image", lambda: made.encode(replace(QUERY, target=f"a {marker} b"))),
        (ModelError, "0 places for 1 image", lambda: made.encode(replace(QUERY, messages=(Message("system", "s"),)))),
        (ModelError, "plain text", lambda: made.encode(replace(QUERY, messages=(Message("text", "t"),)))),
        (DataError, "holds the image token", lambda: made.rank(QUERY, [QUERY.target, marker])),
        (ModelError, "takes no picture of 900x2", lambda: made.encode(replace(QUERY, images=(shot(0, 900, 2),)))),
        (DataError, "none of the 1 training rows", lambda: fine_tune_vision(made, blind, settings, tmp_path)),
        (ConfigError, "--dp-epsilon is for text models", lambda: fine_tune_vision(made, rows, private, tmp_path)),
    ):
        with pytest.raises(error, match=what) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_a_folder_that_lacks_a_part_is_one_line(tmp_path: Path) -> None:
    whole = write("idefics3", tmp_path / "whole")

    def without(name: str, **changes: object) -> str:
        folder = shutil.copytree(whole, tmp_path / f"without-{name}-{len(list(tmp_path.iterdir()))}")
        if changes:
            path = folder / name
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        else:
            (folder / name).unlink()
        return str(folder)

    for given, what in (
        (without("preprocessor_config.json"), "no image processing"),
        (without("chat_template.jinja"), "chat template"),
        (without("config.json", image_token_id=7), "disagree on the id"),
        (without("config.json", model_type="qwen2_vl"), r"not supported \(qwen2_vl\)"),
    ):
        with pytest.raises(ModelError, match=what) as caught:
            load_model(given, replace(FLOAT32, chat_data=True))
        assert "\n" not in str(caught.value)


def test_a_template_that_stands_beside_the_image_processing_is_used(tmp_path: Path) -> None:
    folder = write("smolvlm", tmp_path / "older")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    made = load_model(str(folder), replace(FLOAT32, chat_data=True))[0]
    assert made.encode(QUERY).input_ids.tolist() == model("smolvlm").encode(QUERY).input_ids.tolist()
