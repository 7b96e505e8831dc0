"""How well a tabular in-context model predicts real tables it never saw, beside a logistic regression.

    python benchmarks/tabular_base.py [--model builtin:tabicl-small] [--data FOLDER] [--context 128] [--seeds 5]

For every table and seed: duplicates removed, context rows drawn with the table's class shares, encoding frozen on them,
accuracy on up to 500 other rows. Beside the model stand the same network before its first training step, a logistic
regression on the same encoded context, and the context's most frequent class. scikit-learn's tables are always read;
with --data also those of FOLDER that are known here. The last line is JSON: a mean accuracy a table and method.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from indelible.data.tables import Table, read_table, without_duplicates
from indelible.models.tabular import TabularModel, TabularQueries, load_tabular
from indelible.models.tabular_tabicl import TabICLModel
from indelible.training.budget import stream
from indelible.training.tabular_pretrain import Pretraining, untrained

NAMED = ("breast_cancer", "wine", "iris", "digits")
FILES: dict[str, dict[str, Any]] = {
    "german_credit/german.csv": {"target": -1},
    "uci/pima-indians-diabetes.csv": {"target": -1},
    "uci/breast-cancer.csv": {"target": -1},
    "movies/movies.csv": {"target": "binary", "drop": ("clean_test", "test", "code", "imdb")},
    "carte/spotify.parquet": {"target": "popularity"},
    "skrub/midwest_survey.zip": {
        "target": "Census_Region",
        "drop": ("In_what_ZIP_code_is_your_home_located", "RespondentID"),
    },
}
MOST_QUERIES = 500


def stratified(y: Any, n: int, rng: np.random.Generator) -> Any:
    """n rows with about the classes' shares, each class at least once, in random order; then the other rows."""
    order = rng.permutation(len(y))
    counts = np.bincount(y)
    quota = np.maximum(1, np.floor(n * counts / len(y)).astype(int))
    rank = np.empty(len(y), int)  # how many rows of its class come before a row
    for k in range(len(counts)):
        of = order[y[order] == k]
        rank[of] = np.arange(len(of))
    taken = order[rank[order] < quota[y[order]]][:n]
    return taken, np.setdiff1d(order, taken, assume_unique=True)


def accuracies(table: Table, models: dict[str, TabularModel], n_context: int, seed: int) -> dict[str, float]:
    """Accuracy of every method on one draw of context and queries."""
    rng = np.random.default_rng(stream(seed, f"tabular base: {table.name}"))
    context, others = stratified(table.target, min(n_context, table.n_rows // 2), rng)
    queries = rng.permutation(others)[:MOST_QUERIES]
    out = {"majority": float((table.target[queries] == np.bincount(table.target[context]).argmax()).mean())}
    for name, model in models.items():
        encoding = model.encoder(table, context)
        x = torch.from_numpy(encoding.encode(table.features))
        y = torch.from_numpy(table.target)
        asked = TabularQueries(x[context][None], y[context][None], x[queries][None], len(table.classes))
        right = model.logprobs(asked)[0].argmax(-1).numpy() == table.target[queries]
        out[name] = float(right.mean())
        if "logistic" not in out:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                fitted = LogisticRegression(max_iter=1000).fit(x[context].numpy(), table.target[context])
            out["logistic"] = float(fitted.score(x[queries].numpy(), table.target[queries]))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy of a tabular in-context model on real tables.")
    parser.add_argument("--model", default="builtin:tabicl-small")
    parser.add_argument("--data", help="folder with further tables")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    model = load_tabular(args.model)
    models = {"model": model}
    if isinstance(model, TabICLModel):
        models["untrained"] = untrained(Pretraining(steps=1, network=model.config))
    sources: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in NAMED]
    if args.data:
        sources += [(str(p), given) for file, given in FILES.items() if (p := Path(args.data) / file).exists()]
    means: dict[str, dict[str, float]] = {}
    print(f"{'table':28s} rows  cols  K  " + "  ".join(f"{m:>15s}" for m in (*models, "logistic", "majority")))
    for source, given in sources:
        table, _ = without_duplicates(read_table(source, task="classification", **given))
        runs = [accuracies(table, models, args.context, seed) for seed in range(args.seeds)]
        name = Path(source).stem
        means[name] = {m: round(float(np.mean([r[m] for r in runs])), 4) for m in runs[0]}
        spread = {m: float(np.std([r[m] for r in runs], ddof=1)) if len(runs) > 1 else float("nan") for m in runs[0]}
        shown = "  ".join(f"{means[name][m]:.3f} (sd {spread[m]:.3f})" for m in (*models, "logistic", "majority"))
        print(f"{name:28s} {table.n_rows:5d} {len(table.columns):4d} {len(table.classes):3d}  {shown}", flush=True)
    facts = {"model": args.model, "fingerprint": model.fingerprint[:16], "context": args.context, "seeds": args.seeds}
    print(json.dumps({**facts, "accuracy": means}))


if __name__ == "__main__":
    main()
