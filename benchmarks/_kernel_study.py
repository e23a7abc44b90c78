"""How far the pseudo-NTK is from the empirical NTK: by width at initialisation, and while a network trains."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks._measure import markdown
from skal.datasets import load
from skal.diagnostics import kernel_report_of
from skal.nets import MLP, SquaredLoss

WIDTHS = (32, 64, 128, 256, 512, 1024)
SEEDS = range(3)
STEPS = (0, 1, 3, 10, 30, 100, 300)
N_TRAIN, N_TEST = 60, 200
KEYS = ("frobenius", "lambda_max")


def study(out: Path | None = None) -> str:
    """Two Markdown tables; with a folder also a plot ``pntk_vs_entk.png``."""
    by_width, _ = _by_width(True)
    by_step = _by_step()
    text = "\n\n".join(f"{name}:\n\n{_width_table(he)}" for name, he in (("He-normal", True), ("default", False)))
    keys = ("frobenius", "lambda_max", "condition", "prediction_difference", "pntk_accuracy", "entk_accuracy")
    training = [[step, *(f"{np.mean(values[key]):.3f}" for key in keys)] for step, values in by_step.items()]
    header = ["step", "Frobenius", "λ_max", "condition", "prediction difference", "pNTK accuracy", "eNTK accuracy"]
    if out is not None:
        _plot(by_width, by_step, out)
    return f"{text}\n\n{markdown(header, training)}"


def _width_table(he: bool) -> str:
    by_width, exponents = _by_width(he)
    rows: list[list[object]] = [[w, *(f"{np.mean(values[key]):.4f}" for key in KEYS)] for w, values in by_width.items()]
    rows.append(["exponent", *(f"{exponents[key]:.2f}" for key in KEYS)])
    return markdown(["width", "relative Frobenius", "λ_max"], rows)


def _collect(reports: list[dict[str, float]]) -> dict[str, list[float]]:
    return {key: [report[key] for report in reports] for key in reports[0]}


def _network(width: int, seed: int, he: bool = True) -> MLP:
    """With He-normal weights and zero biases, which is what the width^-1/2 law is about, or PyTorch's default."""
    torch.manual_seed(seed)
    module = MLP(64, 10, hidden=(width, width)).double()
    for layer in module.modules():
        if he and isinstance(layer, torch.nn.Linear):
            torch.nn.init.kaiming_normal_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
    return module


@cache
def _by_width(he: bool) -> tuple[dict[int, dict[str, list[float]]], dict[str, float]]:
    X = load("digits").X_train[:40]
    result = {w: _collect([kernel_report_of(_network(w, seed, he), X) for seed in SEEDS]) for w in WIDTHS}
    exponents = {
        key: float(np.polyfit(np.log(WIDTHS), [np.log(np.mean(result[w][key])) for w in WIDTHS], 1)[0]) for key in KEYS
    }
    return result, exponents


def _by_step() -> dict[int, dict[str, list[float]]]:
    digits = load("digits")
    X, y = digits.X_train[:N_TRAIN], digits.y_train[:N_TRAIN]
    X_test, y_test = digits.X_test[:N_TEST], digits.y_test[:N_TEST]
    reports: dict[int, list[dict[str, float]]] = {step: [] for step in STEPS}
    for seed in SEEDS:
        module = _network(256, seed)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        criterion, inputs, labels = SquaredLoss(), torch.as_tensor(X).double(), torch.as_tensor(y)
        for step in range(max(STEPS) + 1):
            if step in reports:
                reports[step].append(kernel_report_of(module, X, y, X_test, y_test))
            optimizer.zero_grad()
            criterion(module(inputs), labels).backward()
            optimizer.step()
    return {step: _collect(values) for step, values in reports.items()}


def _plot(by_width: dict, by_step: dict, out: Path) -> None:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for key, label in (("frobenius", "relative Frobenius"), ("lambda_max", "λ_max")):
        left.loglog(WIDTHS, [np.mean(by_width[w][key]) for w in WIDTHS], "o-", label=label)
        middle.plot(STEPS, [np.mean(by_step[e][key]) for e in STEPS], "o-", label=label)
    differences = [np.mean(by_step[e]["prediction_difference"]) for e in STEPS]
    middle.plot(STEPS, differences, "o-", label="kernel regressions")
    start = np.mean(by_width[WIDTHS[0]]["frobenius"])
    left.loglog(WIDTHS, [start * (w / WIDTHS[0]) ** -0.5 for w in WIDTHS], "k:", label="width$^{-1/2}$")
    for key, label in (("pntk_accuracy", "pNTK regression"), ("entk_accuracy", "eNTK regression")):
        right.plot(STEPS, [np.mean(by_step[e][key]) for e in STEPS], "o-", label=label)
    for axes, title, xlabel in (
        (left, "at initialisation", "width"),
        (middle, "difference during training", "step"),
        (right, "test accuracy", "step"),
    ):
        axes.set(title=title, xlabel=xlabel)
        axes.legend(frameon=False)
    for axes in (middle, right):
        axes.set_xscale("symlog", linthresh=1)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "pntk_vs_entk.png", dpi=120)
