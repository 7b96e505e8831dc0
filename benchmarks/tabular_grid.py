"""Fine-tuning configurations an hour, many at once against one by one.

    python benchmarks/tabular_grid.py [--model small] [--tables breast_cancer,wine,digits] [--queries 50] [--threads N]

A grid of learning rates and seeds is trained for a few epochs on each table, with a context of 64 rows: in stacks
(`fine_tune`), one by one (`fine_tune(stacked=False)`: the plain loop over the model's own logits, with PyTorch's fused
AdamW), and by the same loop over the module of the package `tabicl`, in train mode and with PyTorch's default AdamW, as
anyone would write it. All by turns in one process at one number of threads; figures are medians over turns.

`--model` is `small` (the network of builtin:tabicl-small, untrained), `tiny` (0.15 M parameters, more of them in the
column and row stages) or a name that `load_tabular` takes. `--clock cpu` counts processor seconds of this process, for
a machine that is not quiet (with one thread only: waiting threads count too). The last line is JSON: `ratio` is the
least over tables of stacked over one by one; `bound` is the ratio there would be if a stack did nothing but its matrix
products, at the rate of plain 1024-cubed products; `max_abs_diff` is the largest difference of a loss (nats) between
both ways where the learning rate is 1e-3 or less (at higher ones rounding decides: `training.tabular_stack`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch.utils.flop_counter import FlopCounterMode

from indelible.models.tabular import TabularModel, TabularQueries, load_tabular
from indelible.models.tabular_tabicl import build_tabicl
from indelible.training.tabular import FineTune, TuneTask, fine_tune
from indelible.training.tabular_plan import Trial, asked

TINY = {
    "max_classes": 10, "embed_dim": 16, "col_num_blocks": 2, "col_nhead": 4, "col_num_inds": 16, "row_num_blocks": 2,
    "row_nhead": 4, "row_num_cls": 4, "icl_num_blocks": 3, "icl_nhead": 4, "zero_init": False,
}  # fmt: skip
RATES = (1e-1, 1e-2, 1e-3, 1e-4)
EPOCHS = 500
"""Of a configuration, for the figures by the hour."""


def model_of(name: str) -> TabularModel:
    """By name."""
    torch.manual_seed(0)
    if name == "tiny":
        return build_tabicl(TINY, "tiny")
    if name == "small":
        from indelible.training.tabular_pretrain import SMALL

        return build_tabicl(SMALL, "small")
    return load_tabular(name)


def task_of(name: str, n_queries: int, n_context: int = 64) -> TuneTask:
    """A table of scikit-learn's, standardised by its context rows; labels are shuffled."""
    data = getattr(datasets, f"load_{name}")()
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(data.target))[: n_context + n_queries]
    if len(rows) < n_context + n_queries:
        raise SystemExit(f"{name} has {len(data.target)} rows; expected {n_context + n_queries}")
    x, y = data.data[rows], rng.permutation(data.target[rows])
    x = (x - x[:n_context].mean(0)) / (x[:n_context].std(0) + 1e-6)
    features, labels = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64))
    context, n_classes = labels[:n_context], int(data.target.max()) + 1
    return TuneTask(features[:n_context], context, features[n_context:], labels[n_context:], n_classes)


def package_loop(model: TabularModel, task: TuneTask, settings: list[FineTune]) -> None:
    """Full-batch training of the package's module."""
    for setting in settings:
        module = model.clone().module.train()
        parameters = [p for p in module.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=setting.learning_rate, weight_decay=setting.weight_decay)
        x, y = torch.cat([task.context_x, task.query_x])[None], task.context_y[None].float()
        for _ in range(setting.epochs):
            loss = F.cross_entropy(module(x, y)[0, :, : task.n_classes], task.query_y)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, setting.clip)
            optimiser.step()


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Time of a call, and what it gave."""
    start = clock()
    got = call()
    return clock() - start, got


def product_rate() -> float:
    """Operations a second of plain float32 products."""
    a, b = torch.randn(2, 1024, 1024)
    a @ b
    return 8 * 2 * 1024**3 / seconds(lambda: [a @ b for _ in range(8)])[0]


def operations(model: TabularModel, task: TuneTask, setting: FineTune) -> float:
    """Of the matrix products in one step of one configuration."""
    queries, labels = asked([task], Trial(setting, [task]).batches(1)[:1])
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model.logits(queries)[0], labels[0]).backward()
    return float(counter.get_total_flops())


def warm(model: TabularModel, task: TuneTask) -> None:
    """One pass, so that no way pays for the first."""
    model.logits(TabularQueries(task.context_x[None], task.context_y[None], task.query_x[None], task.n_classes))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tuning configurations an hour, stacked against one by one.")
    parser.add_argument("--model", default="small")
    parser.add_argument("--tables", default="breast_cancer,wine,digits")
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--configurations", type=int, default=16, help="Of the stacked way; the others train two.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    global clock
    clock = CLOCKS[args.clock]
    torch.set_num_threads(args.threads)
    model = model_of(args.model)
    settings = [
        FineTune(RATES[i % len(RATES)], args.queries, args.epochs, (args.epochs,), i // len(RATES))
        for i in range(args.configurations)
    ]
    some = settings[len(RATES) - 2 : len(RATES)]  # 1e-3 and 1e-4
    rows, worst = [], 0.0
    for name in args.tables.split(","):
        task = task_of(name, args.queries)
        warm(model, task)
        took: dict[str, list[float]] = {"stacked": [], "one by one": [], "package": []}
        rates = []
        for _ in range(args.repeat):
            rates.append(product_rate())
            spent, many = seconds(lambda task=task: fine_tune(model, [task], settings))
            took["stacked"].append(spent / len(settings) / args.epochs)
            spent, single = seconds(lambda task=task: fine_tune(model, [task], some, stacked=False))
            took["one by one"].append(spent / len(some) / args.epochs)
            spent, _ = seconds(lambda task=task: package_loop(model, task, some))
            took["package"].append(spent / len(some) / args.epochs)
            pairs = zip(many[len(RATES) - 2 : len(RATES)], single, strict=True)
            worst = max(worst, *(abs(a[-1].loss - b[-1].loss) for a, b in pairs))
        middle = {way: statistics.median(values) for way, values in took.items()}
        needed = operations(model, task, settings[0]) / statistics.median(rates)
        rows.append(
            {
                "table": name,
                "columns": task.query_x.shape[1],
                "ratio": round(middle["one by one"] / middle["stacked"], 2),
                "ratio_to_package": round(middle["package"] / middle["stacked"], 2),
                "bound": round(middle["one by one"] / needed, 2),
                "ms_a_step": {way: round(1e3 * value, 2) for way, value in middle.items()},
                "configurations_an_hour": {way: round(3600 / value / EPOCHS) for way, value in middle.items()},
            }
        )
        print(rows[-1], flush=True)
    print(
        json.dumps(
            {
                "name": "tabular_grid",
                "ratio": min(float(r["ratio"]) for r in rows),
                "max_abs_diff": worst,
                "what": f"{args.model}: {len(settings)} configurations of {args.queries} queries and 64 context rows, "
                f"{args.epochs} epochs, median of {args.repeat}; by the hour at {EPOCHS} epochs",
                "parameters": sum(p.numel() for p in model.module.parameters() if p.requires_grad),
                "threads": torch.get_num_threads(),
                "clock": args.clock,
                "runs": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
