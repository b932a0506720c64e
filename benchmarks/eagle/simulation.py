"""Repeat the simulations of section 7.1 and appendix B.1 of Shen et al. (2020): when does giving labels to rows help?

    python -m benchmarks.eagle.simulation [--trials N] [--json] [--render]

Regression: rows of a group are a centre plus a deviation of size σ₂; the order of the responses of a group is unknown.
NoAS regresses the sums of groups. AS gives each response to the row with the nearest prediction of NoAS and regresses
rows (equation 3). The oracle knows the order.

Classification: a row is its label's embedding plus noise. A group's labels are drawn evenly (σ₂ = 0) or mostly from
one label (large σ₂). The estimators are the same, with one-hot responses, and EAGLE, which gives labels to rows by
Algorithm 1 before the regression: as in the paper, and with the background removed. Sizes are those of the appendix.
Its noise of 0.1 leaves few errors to compare, so a noise of 0.3 runs too.

Results are stored in benchmarks/results/eagle_simulation.json and docs/eagle-simulation.svg; docs/miml.md shows them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from xmckit_eagle.assign.choice import assign

from benchmarks.common import paths
from benchmarks.common.markdown import select

RESULTS = paths.RESULTS / "eagle_simulation.json"
PICTURE = paths.DOCS / "eagle-simulation.svg"
GROUP, ROWS, WIDTH, LABELS = 10, 1000, 10, 5
SPREADS = (0.0, 0.1, 1.0, 5.0, 10.0)
BETWEEN = (0.2, 0.5, 2.0, 3.0)  # further values, to show the shape of the curves
TEST = 20_000
EAGLES: dict[str, dict[str, Any]] = {
    "EAGLE-0": {"iterations": 0},
    "EAGLE": {"iterations": 20},
    "EAGLE, background removed": {"iterations": 20, "background": True},
}
COLOURS = dict(zip(("NoAS", "AS", *EAGLES), ("#0072B2", "#D55E00", "#CC79A7", "#009E73", "#444444"), strict=True))


def least_squares(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(X, Z, rcond=None)[0]


def estimators(X: np.ndarray, Z: np.ndarray) -> dict[str, np.ndarray]:
    """Return B of equation 3 and of the oracle. Rows of X are sorted by group, and Z has the order of X.

    Only the oracle uses that order: AS searches the best row of the group for every response.
    """
    sums = least_squares(X.reshape(-1, GROUP, WIDTH).sum(1), Z.reshape(-1, GROUP, LABELS).sum(1))
    predicted = (X @ sums).reshape(-1, GROUP, LABELS)
    distances = ((Z.reshape(-1, GROUP, 1, LABELS) - predicted[:, None]) ** 2).sum(-1)
    rows = distances.argmin(-1) + GROUP * np.arange(len(predicted))[:, None]
    return {"oracle": least_squares(X, Z), "NoAS": sums, "AS": least_squares(X[rows.ravel()], Z)}


def regression(spread: float, rng: np.random.Generator) -> dict[str, float]:
    """Return the mean square error of B by estimator; σ₁ = σ_e = 1."""
    B = rng.standard_normal((WIDTH, LABELS))
    B /= np.linalg.norm(B, 2)
    centres = np.repeat(rng.standard_normal((ROWS // GROUP, WIDTH)), GROUP, axis=0)
    X = centres + spread * rng.standard_normal((ROWS, WIDTH))
    Z = X @ B + rng.standard_normal((ROWS, LABELS))
    return {name: float(((estimate - B) ** 2).mean()) for name, estimate in estimators(X, Z).items()}


def classification(spread: float, rng: np.random.Generator, noise: float = 0.1) -> dict[str, float]:
    """Return the share of wrong test rows by estimator; σ_e = 0."""
    truth = rng.standard_normal((LABELS, WIDTH))
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)

    def draw_rows(main: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows and their labels for groups in which label `main` weighs exp(σ₂) and every other label 1."""
        odds = np.ones((len(main), LABELS))
        odds[np.arange(len(main)), main] = np.exp(spread)
        chances = np.cumsum(odds / odds.sum(1, keepdims=True), axis=1)
        kinds = (rng.random((len(main), GROUP, 1)) > chances[:, None]).sum(-1).clip(max=LABELS - 1).ravel()
        X = truth[kinds] + noise * rng.standard_normal((len(kinds), WIDTH))
        return X, (X @ truth.T).argmax(1)

    X, y = draw_rows(rng.integers(LABELS, size=ROWS // GROUP))
    X_test, y_test = draw_rows(rng.integers(LABELS, size=TEST // GROUP))
    Z = np.eye(LABELS)[y]
    estimates = estimators(X, Z)
    for name, form in EAGLES.items():
        estimates[name] = least_squares(X, eagle(X, Z, **form))
    return {name: float(((X_test @ B).argmax(1) != y_test).mean()) for name, B in estimates.items()}


def eagle(X: np.ndarray, Z: np.ndarray, **form: Any) -> np.ndarray:
    """Assign the merged label lists of groups to rows: each label goes to as many rows as the list has it."""
    groups = len(X) // GROUP
    unit = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    membership = csr_matrix(
        (np.ones(len(X), dtype=np.float32), (np.arange(len(X)), np.repeat(np.arange(groups), GROUP)))
    )
    labels = csr_matrix(Z.reshape(groups, GROUP, LABELS).sum(1).astype(np.float32))
    choice = assign(unit, membership, labels, capacity="count", counts=True, **form)
    assigned = np.zeros_like(Z)
    assigned[choice.rows, choice.labels] = 1
    return assigned


TASKS: dict[str, tuple[Callable[[float, np.random.Generator], dict[str, float]], float, str]] = {
    "regression": (regression, 0.5, "RMS of B"),
    "classification": (classification, 1.0, "test error"),
    "classification, noise 0.3": (partial(classification, noise=0.3), 1.0, "test error"),
}


def run_trials(trials: int) -> list[dict[str, Any]]:
    """Return, per task and spread, the errors relative to the oracle's and how often AS is below NoAS."""
    cells = []
    for task, (run, power, _) in TASKS.items():
        for spread in sorted((*SPREADS, *BETWEEN)):
            errors = [run(spread, np.random.default_rng([trial, int(10 * spread)])) for trial in range(trials)]
            means = {name: float(np.mean([error[name] for error in errors])) ** power for name in errors[0]}
            oracle = max(means.pop("oracle"), 1 / (trials * TEST))  # at least one wrong row
            cells.append(
                {
                    "task": task, "spread": spread, "oracle": oracle,
                    "relative": {name: value / oracle for name, value in means.items()},
                    "AS below NoAS": float(np.mean([error["AS"] < error["NoAS"] for error in errors])),
                }
            )  # fmt: skip
    return cells


def draw_curves(cells: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "xmckit", "svg.fonttype": "none"}
    figure, axes = plt.subplots(1, len(TASKS), figsize=(13, 3.6))
    for ax, (task, (_, _, what)) in zip(axes, TASKS.items(), strict=True):
        curve = select(cells, task=task)
        places = range(len(curve))
        for name in curve[0]["relative"]:
            ax.plot(places, [cell["relative"][name] for cell in curve], "o-", ms=3, label=name, color=COLOURS[name])
        ax.axhline(1, color="grey", lw=0.8, ls=":")
        ax.set_xticks(list(places), [f"{cell['spread']:g}" for cell in curve])
        ax.set_xlabel(
            "σ₂ (0: a group's rows are alike)" if task == "regression" else "σ₂ (0: a group's labels are even)"
        )
        ax.set_ylabel(f"{what}, times the oracle's")
        ax.set_title(task.capitalize() + (", noise 0.1" if task == "classification" else ""))
        ax.set_yscale("log" if task == "classification" else "linear")
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="lower center", ncols=len(COLOURS), frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="data sets per point")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--render", action="store_true", help="only draw the stored results again")
    options = parser.parse_args()
    if options.render:
        draw_curves(json.loads(RESULTS.read_text("utf-8"))["cells"])
        return
    began = time.perf_counter()
    cells = run_trials(options.trials)
    results = {"trials": options.trials, "seconds": round(time.perf_counter() - began, 1), "cells": cells}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    draw_curves(cells)
    if options.json:
        print(json.dumps(results))
        return
    for cell in cells:
        relative = "  ".join(f"{name} {value:.3f}" for name, value in cell["relative"].items())
        print(f"{cell['task']:<26} σ₂ = {cell['spread']:<4g} oracle {cell['oracle']:.4f}  {relative}"
              f"  AS below NoAS in {100 * cell['AS below NoAS']:.0f} %")  # fmt: skip


if __name__ == "__main__":
    main()
