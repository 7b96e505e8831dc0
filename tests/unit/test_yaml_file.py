"""Settings files: a key given twice is an error wherever it stands, not a silent choice."""

from pathlib import Path

import pytest

from indelible.errors import ConfigError
from indelible.yaml_file import read_settings


def _file(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_keys_and_values_come_as_written(tmp_path: Path) -> None:
    text = "seed: 3\narms:\n  a: &x {cue: visible}\n  b: {<<: *x, dose: 2}\n  c: {cue: redacted}\n"
    arms = {"a": {"cue": "visible"}, "b": {"cue": "visible", "dose": 2}, "c": {"cue": "redacted"}}
    assert read_settings(_file(tmp_path, text), "config file") == {"seed": 3, "arms": arms}


@pytest.mark.parametrize("text", ["seed: 1\nrows: 2\nseed: 3\n", "arms:\n  a: {dose: 1}\n  a: {dose: 2}\n"])
def test_a_key_given_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"study .*settings\.yaml cannot be read: '(seed|a)' stands there twice"):
        read_settings(_file(tmp_path, text), "study")


@pytest.mark.parametrize("text", ["", "- 1\n", "3"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="expected keys and values"):
        read_settings(_file(tmp_path, text), "study")


@pytest.mark.parametrize("text", ["a: [1\n", "a: !!python/object/apply:os.getcwd []\n"])
def test_what_is_not_plain_yaml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(_file(tmp_path, text), "study")
