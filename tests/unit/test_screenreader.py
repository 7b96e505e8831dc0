"""The encoder of builtin:screenreader, its data and its tokens; the whole model is held to the contract of all others
in tests/contracts/test_vision_models.py."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from vision_fakes import FLOAT32, shot, write

from indelible.config import TrainConfig
from indelible.data.pictures import picture, pixels
from indelible.data.records import Message, Query, Record
from indelible.data.screen_themes import font_file
from indelible.data.screen_types import Box
from indelible.data.screens import written_screen
from indelible.errors import ConfigError, ModelError
from indelible.models.load import LoadOptions, load_model
from indelible.models.screenreader import Connector, ScreenReaderConfig, as_tokens
from indelible.models.screenreader_folder import FILES, SPARE_TOKEN, WEIGHTS, assemble
from indelible.models.screenreader_nets import (
    CHARACTERS,
    Finder,
    Letters,
    Line,
    Reader,
    batch_of,
    cut_out,
    find_lines,
    in_reading_order,
    n_frames,
    spelt,
)
from indelible.models.toy import toy_module, toy_tokenizer
from indelible.models.vision import VisionModel
from indelible.training.screenreader import (
    Pretraining,
    connector_rows,
    pretrain_screenreader,
    train_finder,
    train_letters,
    write_weights,
)
from indelible.training.screenreader_data import (
    HELD_OUT_FONTS,
    cell_targets,
    draw_line,
    drawn_screen,
    random_code,
    random_text,
    training_fonts,
    training_screen,
)
from indelible.training.vision import fine_tune_vision


def line(text: str, left: float, top: float, confidence: float = 1.0) -> Line:
    """A line of characters ten pixels wide."""
    at = tuple(left + 10 * (i + 0.5) for i in range(len(text)))
    return Line(text, left, top, left + 10 * len(text), top + 20, at, confidence)


def by_two(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Tokens of two characters, each with its own number."""
    spans = [(i, min(i + 2, len(text))) for i in range(0, len(text), 2)]
    return [sum(map(ord, text[a:b])) for a, b in spans], spans


def test_tokens_carry_their_places_and_the_shortest_lines_give_way() -> None:
    lines = [line("ABCD", 0, 0), line("XY", 100, 0), line("EFGHIJ", 0, 40)]
    ids, places = as_tokens(lines, by_two, [7], (100, 200, 3), room=64)
    assert ids == [*by_two("ABCD")[0], 7, *by_two("XY")[0], 7, *by_two("EFGHIJ")[0], 7]
    assert places[0] == pytest.approx((10 / 200, 0.1, 20 / 200, 0.2))
    assert places[1] == pytest.approx((30 / 200, 0.1, 20 / 200, 0.2))
    assert places[2] == pytest.approx((40 / 200, 0.1, 0.0, 0.2)), "a line break stands at the line's end"
    fewer, _ = as_tokens(lines, by_two, [7], (100, 200, 3), room=7)
    assert fewer == [*by_two("ABCD")[0], 7, *by_two("EFGHIJ")[0], 7]
    assert as_tokens([], by_two, [7], (100, 200, 3), room=7) == ([], [])


def test_lines_come_row_by_row() -> None:
    lines = [line("d", 0, 50), line("b", 90, 2), line("a", 0, 0), line("c", 180, -1)]
    assert "".join(found.text for found in in_reading_order(lines)) == "abcd"


def test_what_the_finder_is_to_tell_is_found_again_as_boxes() -> None:
    lines = [("x", (20.0, 30.0, 100.0, 50.0)), ("y", (20.0, 50.0, 60.0, 70.0)), ("z", (140.0, 31.0, 198.0, 47.0))]
    wanted = cell_targets(lines, 200, 100)
    assert wanted.shape == (3, 25, 50)
    boxes = find_lines(torch.cat([2 * wanted[:1] - 1, wanted[1:]]), (100, 200))
    np.testing.assert_allclose(sorted(boxes), sorted(box for _, box in lines), atol=4)


def test_a_line_is_cut_out_as_ink_on_ground_whichever_is_lighter() -> None:
    grey = torch.full((40, 60), 0.2)
    grey[15:25, 20:24] = 0.9
    light = cut_out(grey, (10, 10, 50, 30))
    assert light.shape[0] == 32
    assert light.max() == pytest.approx(1, abs=0.1)
    torch.testing.assert_close(light, cut_out(1 - grey, (10, 10, 50, 30)))


def test_a_path_is_spelt_without_repeats_and_blanks() -> None:
    wanted = [0, 3, 3, 0, 3, 5, 0]
    told = torch.full((7, len(CHARACTERS) + 1), -9.0)
    told[torch.arange(7), torch.tensor(wanted)] = 0
    found = spelt(told, (3.0, 0.0, 25.0, 10.0), 28)
    assert found.text == "".join(CHARACTERS[k - 1] for k in (3, 3, 5))
    assert found.at == pytest.approx((-2 + 32 / 7 * 2, -2 + 32 / 7 * 4.5, -2 + 32 / 7 * 5.5))


def test_boxes_of_what_is_written_hold_its_ink() -> None:
    screen, written = written_screen("ink", size=(512, 384), theme="ledger")
    assert len(written) > 15
    grey = np.asarray(pixels(screen.picture).convert("L"), dtype=int)
    whole = Box(0, 0, 512, 384)
    for text, box in written:
        if not text:
            continue  # half behind a dialog
        assert whole.holds(box), text
        piece = grey[box.top : box.bottom, box.left : box.right]
        assert np.ptp(piece) > 60, text
    assert {e.text for e in screen.elements if e.kind in ("button", "menu")} - {""} <= {text for text, _ in written}


def test_data_follow_from_seeds_and_leave_out_what_they_say() -> None:
    assert not any(font_file(name) in training_fonts() for name in HELD_OUT_FONTS)
    assert drawn_screen("a")[1].tobytes() == drawn_screen("a")[1].tobytes()
    assert {drawn_screen(k)[0].group for k in range(12)}.isdisjoint({"kiosk", "gazette"})
    assert {drawn_screen(k, held_out=True)[0].group for k in range(12)} == {"kiosk", "gazette"}
    rng = random.Random(0)
    assert all(set(random_text(rng)) <= set(CHARACTERS) for _ in range(200))
    shown = drawn_screen("b", "FIL-U5TN-SL2L")[2]
    assert shown[-1][0] == "FIL-U5TN-SL2L"
    assert "FIL-U5TN-SL2L" not in [text for text, _ in drawn_screen("b", "")[2]]


def test_the_letters_lower_their_loss_and_the_finder_runs() -> None:
    def loss(steps: int) -> float:
        torch.manual_seed(0)
        net = Letters()
        made = train_letters(net, Pretraining(letter_steps=steps), batch=2)
        assert not net.training
        return made

    assert loss(8) < loss(1)
    finder = Finder()
    assert np.isfinite(train_finder(finder, Pretraining(finder_steps=2), batch=1, n_screens=1))
    assert not finder.training
    grey, lines = training_screen("0-0")
    assert cell_targets(lines, grey.shape[1], grey.shape[0])[0].sum() > 20


def test_the_connector_learns_from_codes_that_were_read() -> None:
    codes = [random_code(random.Random(f"connector 0 {k}")) for k in range(4)]
    screens: list[tuple[int, ...]] = []

    def read(levels: torch.Tensor) -> list[Line]:
        screens.append(tuple(levels.shape))
        return [line("x", 0, 0), line(" " + codes[len(screens) - 1], 0, 40)] if len(screens) != 2 else [line("y", 0, 0)]

    rows = list(islice(connector_rows(0, read), 3))
    assert [row.id for row in rows] == ["type-0", "type-2", "type-3"]
    assert [row.target for row in rows] == [f'type("{codes[k]}")' for k in (0, 2, 3)]
    assert [(*pixels(row.images[0]).size[::-1], 3) for row in rows] == [screens[k] for k in (0, 2, 3)]
    with pytest.raises(ModelError, match="read 0 of 50 codes") as caught:
        next(connector_rows(0, lambda levels: []))
    assert "\n" not in str(caught.value)


def test_settings_that_cannot_be_are_one_line(tmp_path) -> None:
    for settings in (Pretraining(letter_steps=0), Pretraining(connector_batch=0)):
        with pytest.raises(ConfigError) as caught:
            pretrain_screenreader(settings, tmp_path)
        assert "\n" not in str(caught.value)


def test_a_folder_is_put_together_from_a_language_model_and_the_encoder(tmp_path) -> None:
    language, weights = tmp_path / "language", tmp_path / WEIGHTS
    module = toy_module()
    module.save_pretrained(language)
    words = toy_tokenizer(["type a code"])
    words.save_pretrained(language)
    file = language / "tokenizer.json"
    file.write_text(file.read_text().replace("<|endoftext|>", SPARE_TOKEN))  # as SmolLM2's tokenizer has one to spare
    connector = Connector(ScreenReaderConfig(**module.config.to_dict()))
    write_weights(weights, Letters(), Finder(), connector)
    assemble(language, weights, tmp_path / "model")
    made = load_model(
        str(tmp_path / "model"), LoadOptions(images=True, device="cpu", dtype="bfloat16", trainable=True)
    )[0]
    assert isinstance(made, VisionModel)
    assert {p.dtype for p in made.causal.model.reader.parameters()} == {torch.float32}, "it reads in float32"
    assert {p.dtype for p in made.causal.model.connector.parameters()} == {torch.bfloat16}
    shown = picture(drawn_screen("folder")[1])
    query = Query((Message("user", "Type it."),), "x", (shown,))
    assert made.sight.n_tokens(shown) == min(shown.width * shown.height // 800, 256)
    assert np.isfinite(made.logprobs([query])[0].logprobs).all()
    layers = dict(module.named_parameters())
    for name in ("model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"):
        assert torch.equal(made.module.state_dict()[name], layers[name].bfloat16())


def test_an_adapter_spares_the_encoder(tmp_path) -> None:
    base = write("screenreader", tmp_path / "base")
    asked = (Message("user", "Type it."),)
    settings = {"model": str(base), "train": "-", "out": "-", "lora_rank": 2, "learning_rate": 0.05, "autocast": "off"}
    made = load_model(str(base), FLOAT32)[0]
    fine_tune_vision(made, [Record("a", asked, "code", (shot(0),))], TrainConfig(**settings), tmp_path / "out")
    adapted = load_model(str(tmp_path / "out"), FLOAT32)[0]
    lora = [name for name, _ in adapted.module.named_parameters() if "lora_A" in name]
    assert any("connector.place" in name for name in lora)
    assert any("layers.0" in name for name in lora)
    assert not [name for name in lora if "reader" in name]
    query = Query(asked, "code", (shot(0),))
    tuned, off = adapted.logprobs([query])[0].logprobs, adapted.as_base().logprobs([query])[0].logprobs
    assert np.abs(tuned - off).max() > 1e-3


@pytest.fixture(scope="module")
def reader() -> Reader:
    """The encoder that is shipped."""
    made, start = Reader(), "model.reader."
    weights = load_file(FILES / WEIGHTS)
    made.load_state_dict({k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)})
    return made.eval()


def test_the_shipped_file_is_small(reader: Reader) -> None:
    assert (FILES / WEIGHTS).stat().st_size < 4 << 20


@torch.inference_mode()
def test_the_shipped_encoder_reads_codes_that_it_never_saw(reader: Reader) -> None:
    rng, n_right = random.Random(11), 0
    for _ in range(30):
        code = random_code(rng)
        ink = draw_line(rng, font_file("dejavu-sans"), rng.choice((12, 14, 18)), code, exact=True)
        told = reader.letters(batch_of([ink]))[0, : n_frames(ink.shape[1])]
        n_right += spelt(told, (0, 0, 1, 1), ink.shape[1]).text.strip() == code
    assert n_right >= 27
    n_found = 0
    for seed in range(4):
        code = random_code(rng)
        image = drawn_screen(f"test-{seed}", code)[1]
        found = [x.text for x in reader.read(torch.from_numpy(np.asarray(image, dtype=np.float32) / 255))]
        n_found += any(code in text for text in found)
        assert len(found) > 10
    assert n_found >= 3
