"""Figure 3 of Amos, Koltun and Kolter (2019): what losses for the first k places cost, by k.

    python -m benchmarks.heads.topk_losses [--only PART] [--minutes M]

Forward and backward for float32 logits of 256 rows × 1,000 labels, one true label a row, one thread; a cell is one k,
the methods one after the other, by processor time, and the best of up to 50 trials of each counts. The paper measures
on a GPU and does not say how many labels there are.

- smooth SVM: the loss of Berrada, Zisserman and Kumar (2018), its sums over all sets of k labels by divide and
  conquer, in torch.
- top-k entropy, sorted: as the paper describes its own, all logits sorted by torch. *top-k entropy*: that of xmckit.
- LML, bracketing: the paper's layer (see lml.py) and −log of the true label. *LML*: the fused loss of xmckit.
- cross-entropy: that of torch, for comparison.

Results go to benchmarks/results/topk_losses.json at once, and cells that are there are not run again;
docs/reproduced.md shows them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.common import paths, study

RESULTS = paths.RESULTS / "topk_losses.json"
ROWS, LABELS, TRIALS, SECONDS = 256, 1000, 50, 1.0
KS = (1, 5, 10, 20, 50, 100)
LEAST = -1e9  # in place of −inf, whose derivative is not a number


class Cell(NamedTuple):
    k: int
    data: str = study.MADE_UP

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
    """The mean loss at temperature 1: log(1 + exp(1 − x_y/k)·σ_k/σ_{k−1}), where σ_i is the i-th elementary symmetric
    polynomial of exp(x_j/k) over all j but the true label y.
    """
    import torch

    others = (x / k).scatter(1, true[:, None], LEAST)
    sums = log_elementary(others, k)
    return torch.nn.functional.softplus(1 + sums[:, k] - sums[:, k - 1] - x.gather(1, true[:, None])[:, 0] / k).mean()


def log_elementary(x: Any, k: int) -> Any:
    """log σ_0 … log σ_k of exp(x): the coefficients of Π (1 + exp(x_j)·t), neighbours multiplied first."""
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
    """log(1 + Σ exp(x_j − x_y)) over the labels j but y that are not among the k − 1 largest of these; the mean."""
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
    """Processor seconds of the best of `TRIALS` trials, of fewer where they take longer than `SECONDS` in all."""
    work()
    found: list[float] = []
    while len(found) < TRIALS and sum(found) < SECONDS:
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


if __name__ == "__main__":
    main()
