"""Measure what losses for the first k places cost, by k: figure 3 of Amos, Koltun and Kolter (2019).

    python -m benchmarks.heads.topk_losses [--only PART] [--minutes M]

A cell is one k. It times the forward and backward pass of each method for float32 logits of 256 rows × 1,000 labels
with one true label per row, on one thread, in processor time; the best of up to 50 trials counts. The paper measures
on a GPU and does not state the number of labels.

- smooth SVM: the loss of Berrada, Zisserman and Kumar (2018) in torch, with its sums over all sets of k labels
  computed by divide and conquer.
- top-k entropy, sorted: as the paper describes it, with all logits sorted by torch. *top-k entropy*: the loss of
  xmckit.
- LML, bracketing: the paper's layer (see benchmarks/speed/lml.py) and −log of the true label. *LML*: the fused loss of
  xmckit.
- cross-entropy: the loss of torch, for comparison.

Each finished cell is stored in benchmarks/results/topk_losses.json and is not run again; docs/reproduced.md shows the
results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.common import paths, study

RESULTS = paths.RESULTS / "topk_losses.json"
ROWS, LABELS, TRIALS, SECONDS = 256, 1000, 50, 1.0
KS = (1, 5, 10, 20, 50, 100)
LEAST = -1e9  # replaces −inf, which would give NaN derivatives


class Cell(NamedTuple):
    k: int
    data: str = study.GENERATED

    @property
    def key(self) -> str:
        return f"k = {self.k}"


def cells() -> Iterator[Cell]:
    yield from map(Cell, KS)


def main() -> None:
    options = study.parser(__doc__).parse_args()
    if not options.render:
        study.run_cells(cells(), run_cell, RESULTS, options, rows=ROWS, labels=LABELS, trials=TRIALS)


def smooth_svm(x: Any, true: Any, k: int) -> Any:
    """Return the mean loss at temperature 1, log(1 + exp(1 − x_y/k)·σ_k/σ_{k−1}).

    σ_i is the i-th elementary symmetric polynomial of exp(x_j/k) over all j except the true label y.
    """
    import torch

    others = (x / k).scatter(1, true[:, None], LEAST)
    sums = log_elementary(others, k)
    return torch.nn.functional.softplus(1 + sums[:, k] - sums[:, k - 1] - x.gather(1, true[:, None])[:, 0] / k).mean()


def log_elementary(x: Any, k: int) -> Any:
    """Return log σ_0 … log σ_k of exp(x), the coefficients of Π (1 + exp(x_j)·t), multiplying neighbours first."""
    import torch

    spare = (1 << (x.shape[1] - 1).bit_length()) - x.shape[1]
    x = torch.nn.functional.pad(x, (0, spare), value=LEAST)
    factors = torch.stack([torch.zeros_like(x), x], -1)
    while factors.shape[1] > 1:
        left, right = factors[:, 0::2], factors[:, 1::2].flip(-1)
        last = factors.shape[2] - 1
        terms = []
        for power in range(min(2 * last, k) + 1):
            first, end = max(0, power - last), min(power, last) + 1
            terms.append(
                torch.logsumexp(left[..., first:end] + right[..., last - power + first : last - power + end], -1)
            )
        factors = torch.stack(terms, -1)
    return factors[:, 0]


def sorted_entropy(x: Any, true: Any, k: int) -> Any:
    """Return the mean of log(1 + Σ exp(x_j − x_y)) over the labels j ≠ y except the k − 1 largest of them."""
    import torch

    others = x.scatter(1, true[:, None], -torch.inf).sort(dim=1, descending=True).values[:, k - 1 :]
    return torch.nn.functional.softplus(torch.logsumexp(others, 1) - x.gather(1, true[:, None])[:, 0]).mean()


def run_cell(cell: Cell) -> dict[str, Any]:
    import torch
    from xmckit_heads.lml.operator import lml_loss

    from benchmarks.speed.lml import Bracketing
    from xmckit.nn import Targets, truncated_topk_entropy_and_slope

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, LABELS, generator=generator).requires_grad_()
    true = torch.randint(LABELS, (ROWS,), generator=generator)
    targets = Targets(torch.arange(ROWS), true, None, (ROWS, LABELS))

    def bracketing() -> torch.Tensor:
        return -Bracketing.apply(x, cell.k).gather(1, true[:, None]).log().mean()

    losses: dict[str, Callable[[], Any]] = {
        "smooth SVM": lambda: smooth_svm(x, true, cell.k),
        "top-k entropy, sorted": lambda: sorted_entropy(x, true, cell.k),
        "LML, bracketing": bracketing,
        "LML": lambda: lml_loss(x, cell.k, targets),
        "cross-entropy": lambda: torch.nn.functional.cross_entropy(x, true),
    }
    works = {name: lambda loss=loss: torch.autograd.grad(loss(), x) for name, loss in losses.items()}
    works["top-k entropy"] = lambda: truncated_topk_entropy_and_slope(x.detach().clone(), targets, cell.k)
    return {"milliseconds": {name: float(f"{1e3 * best(work):.4g}") for name, work in works.items()}}


def best(work: Callable[[], Any]) -> float:
    """Return the least processor seconds of `TRIALS` trials, or of fewer if they exceed `SECONDS` in total."""
    work()
    trials: list[float] = []
    while len(trials) < TRIALS and sum(trials) < SECONDS:
        start = time.process_time()
        work()
        trials.append(time.process_time() - start)
    return min(trials)


if __name__ == "__main__":
    main()
