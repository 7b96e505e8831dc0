"""The command line, in process, on the toy model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from indelible.cli import main
from indelible.data.synthetic import synthetic_records, write_jsonl

Cli = Callable[..., tuple[int, str, str]]
FAST = "loss,min-k,reference-base,icp-sp"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["indelible", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    rows = synthetic_records(90, seed=7)
    write_jsonl(folder / "members.jsonl", rows[:40])
    write_jsonl(folder / "heldout.jsonl", rows[40:])
    return folder


@pytest.fixture(scope="module")
def tuned(files: Path) -> Path:
    """The toy, fine-tuned on the members through the command line."""
    out = files / "tuned"
    argv = sys.argv
    flags = {"model": "builtin:toy", "train": files / "members.jsonl", "out": out, "epochs": 12, "learning-rate": 3e-3}
    sys.argv = [
        "indelible",
        "train",
        *(str(part) for k, v in flags.items() for part in (f"--{k}", v)),
        "--save-at",
        "5",
    ]
    try:
        with pytest.raises(SystemExit) as stop:
            main()
    finally:
        sys.argv = argv
    assert stop.value.code == 0
    return out


@pytest.fixture(scope="module")
def lora(files: Path) -> Path:
    from indelible.config import TrainConfig, resolve
    from indelible.training.run import run_train

    flags = {
        "model": "builtin:toy", "train": str(files / "members.jsonl"), "out": str(files / "adapter"),
        "epochs": 12, "learning_rate": 3e-3, "lora_rank": 8,
    }  # fmt: skip
    return run_train(resolve(TrainConfig, flags)[0])


def audit_args(files: Path, tuned: Path, out: Path) -> list[object]:
    return [
        "audit", "--model", tuned, "--base", "builtin:toy", "--members", files / "members.jsonl",
        "--nonmembers", files / "heldout.jsonl", "--attacks", FAST, "--out", out,
    ]  # fmt: skip


def test_training_leaves_what_transformers_loads_and_a_ledger(tuned: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(tuned).config.vocab_size == 512
    assert AutoTokenizer.from_pretrained(tuned / "checkpoint-5").chat_template
    log = pd.read_parquet(tuned / "training_log.parquet")
    assert (log.groupby("epoch")["record_id"].nunique() == 40).all()
    assert log["epoch"].nunique() == 12


def test_audit_finds_what_was_planted_and_writes_a_whole_run(
    cli: Cli, files: Path, tuned: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, said, _ = cli(*audit_args(files, tuned, out))
    assert code == 0
    assert "verdict: detected" in said
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["attacks"]["loss"]["word"] == "detected"
    assert any("bag-of-words" in reason or "blind" in reason for reason in verdict["attacks"]["loss"]["reasons"])
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["cohort"]["n_members"] == 40
    assert manifest["cohort"]["n_nonmembers"] + manifest["cohort"]["n_pool"] == 50
    assert manifest["training"]["epochs"] == 12
    assert manifest["drift"]["n_queries"] == 8
    assert 0 < manifest["drift"]["max_abs_logprob_nats"] < 1
    assert {n["what"] for n in manifest["not_run"]} == {"bag-of-words"}
    scores = pd.read_parquet(out / "scores.parquet")
    assert set(scores["model"]) == {"target", "base"}
    assert not (out / "texts.json").exists()
    text = (out / "report.html").read_text() + (out / "report.md").read_text()
    assert synthetic_records(1, seed=7)[0]["output"] not in text
    assert any(f["severity"] == "high" for f in json.loads((out / "findings.json").read_text()))
    assert cli("report", out)[0] == 0
    assert cli("verify", out)[0] == 0
    (out / "metrics.json").write_text("[]")
    code, _, err = cli("verify", out)
    assert code == 2
    assert "metrics.json" in err


def test_a_repeated_audit_asks_nothing_and_scores_the_same(cli: Cli, files: Path, tuned: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert cli(*audit_args(files, tuned, tmp_path / name))[0] == 0
    counts = json.loads((tmp_path / "two" / "manifest.json").read_text())["counts"]
    assert counts["cached"] == counts["unique"] > 0
    one, two = (pd.read_parquet(tmp_path / name / "scores.parquet") for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two)
    code, said, _ = cli("report", tmp_path / "one", tmp_path / "two")
    assert code == 0
    assert "icp-sp" in said


def test_a_finished_run_is_not_overwritten_unless_forced(cli: Cli, files: Path, tuned: Path, tmp_path: Path) -> None:
    args = audit_args(files, tuned, tmp_path / "run")
    assert cli(*args)[0] == 0
    code, _, err = cli(*args)
    assert code == 2
    assert "--force" in err
    assert cli(*args, "--force")[0] == 0


def test_an_adapter_is_audited_against_itself_switched_off(cli: Cli, files: Path, lora: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, _, _ = cli(
        "audit", "--model", lora, "--members", files / "members.jsonl", "--nonmembers", files / "heldout.jsonl",
        "--attacks", "loss,reference-base", "--out", out, "--dtype", "float32",
    )  # fmt: skip
    assert code == 0
    models = json.loads((out / "manifest.json").read_text())["models"]
    assert models["target"]["adapter"] is True
    assert models["base"]["adapter"] is False
    aucs = {
        (m["attack"], m["model"]): m["value"]
        for m in json.loads((out / "metrics.json").read_text())
        if m["metric"] == "auc"
    }
    assert aucs["loss", "target"] > aucs["loss", "base"] + 0.1


def test_the_gate_decides_the_exit_code(cli: Cli, files: Path, tuned: Path, tmp_path: Path) -> None:
    args = audit_args(files, tuned, tmp_path / "run")
    code, said, _ = cli(*args, "--fail-if", "loss:auc>0.6")
    assert code == 1
    assert "gate:" in said
    assert cli(*args, "--force", "--fail-if", "loss:auc<0.1")[0] == 0
    assert cli(*args, "--force", "--fail-if", "loss:auc~0.1")[0] == 2


def test_scores_made_elsewhere_get_the_same_statistics(cli: Cli, files: Path, tuned: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert cli(*audit_args(files, tuned, run))[0] == 0
    table = pd.read_parquet(run / "scores.parquet").merge(pd.read_parquet(run / "records.parquet"), on="record_id")
    table.drop(columns=["reason", "group"]).to_csv(tmp_path / "scores.csv", index=False)
    assert cli("score", tmp_path / "scores.csv", "--out", tmp_path / "scored")[0] == 0

    def values(path: Path) -> dict[tuple[str, str, str], float | None]:
        rows = json.loads((path / "metrics.json").read_text())
        return {(m["attack"], m["model"], m["metric"]): m["value"] for m in rows}

    ours, theirs = values(run), values(tmp_path / "scored")
    assert theirs.keys() <= ours.keys()
    assert all(theirs[key] == pytest.approx(ours[key]) for key in theirs if ours[key] is not None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("record_id,member,attack,score\na,1,x,nan\nb,0,x,1.0\n", "finite number"),
        ("record_id,member,attack,score\na,1,x,high\nb,0,x,1.0\n", "finite number"),
        ("record_id,member,score\na,1,1.0\n", "'attack' is missing"),
        ("record_id,member,attack,score\na,maybe,x,1.0\n", "expected 1/0"),
        ("record_id,member,attack,score\na,1,x,1.0\na,0,x,2.0\n", "member in one row and not in another"),
        ("record_id,member,attack,score\na,1,x,1.0\nb,1,x,2.0\n", "0 non-members"),
        ("", "cannot be read"),
    ],
)
def test_wrong_score_tables_end_in_one_line(cli: Cli, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    code, _, err = cli("score", path, "--out", tmp_path / "run")
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1


def test_wrong_input_ends_in_one_line_and_exit_code_2(cli: Cli, files: Path, tuned: Path, tmp_path: Path) -> None:
    members, heldout = files / "members.jsonl", files / "heldout.jsonl"
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "odd.jsonl").write_text('{"alpha": "a", "beta": "b"}\n')
    long = {"prompt": "Say it.", "response": "word " * 5000}
    write_jsonl(tmp_path / "long.jsonl", [{**long, "response": f"{i} " + long["response"]} for i in range(4)])
    write_jsonl(
        tmp_path / "chat.jsonl",
        [
            {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]}
            for i in range(9)
        ],
    )
    (tmp_path / "no-weights").mkdir()
    (tmp_path / "no-weights" / "config.json").write_text("{}")
    bare = tmp_path / "bare"
    _toy_without_template(bare)
    cases = {
        "no such file": {"--members": tmp_path / "missing.jsonl"},
        "alpha": {"--members": tmp_path / "odd.jsonl"},
        "is empty": {"--members": tmp_path / "empty.jsonl"},
        "binary.jsonl": {"--members": tmp_path / "binary.jsonl"},
        "no weights": {"--model": tmp_path / "no-weights"},
        "no model folder": {"--model": tmp_path / "nowhere"},
        "no chat template": {"--model": bare, "--members": tmp_path / "chat.jsonl"},
        "longer than the model's context": {"--members": tmp_path / "long.jsonl"},
        "heldout": {"--members": heldout},
        "Did you mean 'min-k'": {"--attacks": "min-kk"},
        "Did you mean 'rate'": {"--attacks": "icp-sp", "--set": "icp-sp.raet=0.5"},
        "expected a number in (0, 1]": {"--attacks": "icp-sp", "--set": "icp-sp.rate=2"},
        "--reference": {"--attacks": "reference"},
        "unknown template": {"--template": "chatmll"},
        "audited model itself": {"--base": tuned},
        "such as 512M": {"--kv-memory": "many"},
    }  # fmt: skip
    for n, (expected, change) in enumerate(cases.items()):
        flags = {
            "--model": tuned, "--base": "builtin:toy", "--members": members, "--nonmembers": heldout,
            "--attacks": "loss", "--out": tmp_path / f"run{n}", **change,
        }  # fmt: skip
        code, _, err = cli("audit", *(part for pair in flags.items() for part in pair))
        last = err.strip().splitlines()[-1]
        assert code == 2, (expected, err)
        assert last.startswith("indelible: "), err
        assert expected in last, err
        assert "Traceback" not in err


def _toy_without_template(folder: Path) -> None:
    import shutil

    from indelible.models.builtin import builtin_folder

    shutil.copytree(builtin_folder("toy"), folder)
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_help_imports_neither_torch_nor_pandas() -> None:
    import subprocess

    code = "import sys, indelible, indelible.cli; print({'torch', 'transformers', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_demo_runs_end_to_end(tmp_path: Path) -> None:
    """On the toy, which takes seconds; the embedded model takes the same way."""
    from indelible.demo import run_demo

    out = tmp_path / "demo"
    outcome = run_demo(out, seed=0, force=False, command=["demo"], model="builtin:toy", n_members=24)
    assert outcome.evaluation.verdict.word in {"detected", "not detected", "not attributable"}
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["kind"] == "demo"
    assert manifest["cohort"]["n_members"] == 24
    assert (out / "report.html").exists()


@pytest.mark.parametrize("what", ["attacks", "models", "formats"])
def test_list_says_what_there_is(cli: Cli, what: str) -> None:
    code, said, _ = cli("list", what)
    assert code == 0
    assert {"attacks": "icp-sp", "models": "builtin:toy", "formats": "instruction/input/output"}[what] in said
