"""Compare the LML projection and its loss with softmax and with the bracketing of the paper.

    python -m benchmarks.speed.lml [--elements 2097152] [--rounds 12] [--json]

Times are forward and backward of float32 logits with k = 5, equal batches and threads; wall time, the best of several
rounds in which all take turns. "ratio" is our time divided by the time of softmax; "speed-up" is the time of
bracketing divided by ours.

- softmax: `torch.softmax` and its backward pass. For the loss: `cross_entropy` with one label per row.
- bracketing: algorithm 1 of Amos, Koltun and Kolter (2019) in torch over the whole batch at once, with d = 10 samples
  per iteration, as their text says for CPUs, and Δ = 7, until every bracket is narrower than ε = 1e-4. This leaves an
  error of about 1e-4 in Σy; the text requires machine epsilon, which would take longer. Backward as in their module 1.
  Best of three, for n ≥ 1000.

Targets: a ratio of at most 2 as the geometric mean over n ≥ 1000, at most 2.5 for each of them, at most 3 at n = 100;
a speed-up of at least 100 for n ≥ 1000.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from xmckit_heads.lml.operator import lml, lml_loss

from xmckit.context import cpu_count
from xmckit.nn import Targets

SIZES = (100, 1_000, 10_000, 100_000, 670_000)
SCALES = (1.0, 3.0)
K = 5
SAMPLES, DELTA = 10, 7.0
EPSILON = 1e-4
IN_A_ROW = 3
REST = 0.03  # seconds: torch's threads keep spinning after their work, on a processor that the next method needs


class Bracketing(torch.autograd.Function):
    """Compute module 1 of the paper."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: int = K) -> torch.Tensor:
        y = torch.sigmoid(x + bracket(x, k)[:, None])
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (y,), (g,) = ctx.saved_tensors, gradients
        inverse = 1 / (1 / y + 1 / (1 - y))
        d_nu = (inverse * g).sum(-1, keepdim=True) / inverse.sum(-1, keepdim=True)
        return inverse * (g - d_nu), None


def bracket(x: torch.Tensor, k: int = K) -> torch.Tensor:
    """Return ν of every row by algorithm 1."""
    top = torch.topk(x, k + 1, sorted=True).values
    low, high = -top[:, k - 1] - DELTA, -top[:, k] + DELTA
    fractions = torch.linspace(0, 1, SAMPLES)
    while bool(((high - low).abs() > EPSILON).any()):
        nus = low[:, None] + fractions * (high - low)[:, None]
        g = torch.sigmoid(x[:, None, :] + nus[:, :, None]).sum(-1) - k
        last_below = ((g < 0).sum(-1) - 1).clamp(0, SAMPLES - 2)
        low, high = (nus.gather(1, at[:, None])[:, 0] for at in (last_below, last_below + 1))
    return (low + high) / 2


def best_walls(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the least wall seconds of calls that take turns, a few times in a row each."""
    best = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    for _ in range(rounds):
        for who, call in calls.items():
            time.sleep(REST)
            for _ in range(IN_A_ROW):
                start = time.perf_counter()
                call()
                best[who] = min(best[who], time.perf_counter() - start)
    return best


def compare(n: int, scale: float, threads: int, elements: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    batch = max(2, elements // n)
    generator = torch.Generator().manual_seed(n)
    x = (scale * torch.randn(batch, n, generator=generator)).requires_grad_()
    g = torch.randn(batch, n, generator=generator)
    true = torch.randint(n, (batch,), generator=generator)
    targets = Targets(torch.arange(batch), true, None, (batch, n))
    seconds = best_walls(
        {
            "softmax": lambda: torch.autograd.grad(torch.softmax(x, -1), x, g),
            "lml": lambda: torch.autograd.grad(lml(x, K), x, g),
            "cross-entropy": lambda: torch.autograd.grad(torch.nn.functional.cross_entropy(x, true), x),
            "lml loss": lambda: torch.autograd.grad(lml_loss(x, K, targets), x),
        },
        rounds,
    )
    error = (lml(x.detach(), K).double().sum(-1) - K).abs().max().item() / K
    if not error <= 1e-6:
        raise AssertionError(f"n = {n}, scale {scale}: the error of Σy is {error:g}·k")
    bracketing = None
    if n >= 1000:
        bracketing = best_walls({"": lambda: torch.autograd.grad(Bracketing.apply(x), x, g)}, 3)[""]
    return {
        "labels": n,
        "rows": batch,
        "scale": scale,
        "threads": threads,
        "seconds": seconds,
        "ratio": seconds["lml"] / seconds["softmax"],
        "loss_ratio": seconds["lml loss"] / seconds["cross-entropy"],
        "bracketing_seconds": bracketing,
        "speed_up": None if bracketing is None else bracketing / seconds["lml"],
        "sum_error": error,
    }


def summary(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the values to compare with the targets, per number of threads."""
    lines = []
    for threads in sorted({entry["threads"] for entry in table}):
        large = [entry for entry in table if entry["threads"] == threads and entry["labels"] >= 1000]
        small = [entry for entry in table if entry["threads"] == threads and entry["labels"] < 1000]
        lines.append(
            {
                "threads": threads,
                "geometric_mean": math.exp(sum(math.log(entry["ratio"]) for entry in large) / len(large)),
                "largest": max(entry["ratio"] for entry in large),
                "largest_at_100": max(entry["ratio"] for entry in small),
                "least_speed_up": min(entry["speed_up"] for entry in large),
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 21, help="logits per batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="rounds, the best of which counts (default: 12)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    table = [
        compare(n, scale, threads, options.elements, options.rounds)
        for threads in sorted({1, cpu_count()})
        for n in SIZES
        for scale in SCALES
    ]
    if options.json:
        print(json.dumps({"k": K, "results": table, "targets": summary(table)}, indent=2))
        return
    print(f"{'labels':>8}{'rows':>8}{'scale':>7}{'threads':>9}{'softmax ms':>12}{'lml ms':>9}{'ratio':>7}", end="")
    print(f"{'loss ratio':>12}{'÷ bracketing':>14}{'sum error':>11}")
    for entry in table:
        left = f"{entry['labels']:>8}{entry['rows']:>8}{entry['scale']:>7.0f}{entry['threads']:>9}"
        times = f"{1e3 * entry['seconds']['softmax']:>12.2f}{1e3 * entry['seconds']['lml']:>9.2f}{entry['ratio']:>7.2f}"
        speed_up = "" if entry["speed_up"] is None else f"{entry['speed_up']:.0f} ×"
        print(f"{left}{times}{entry['loss_ratio']:>12.2f}{speed_up:>14}{entry['sum_error']:>11.0e}")
    for line in summary(table):
        print(
            f"{line['threads']} thread(s): geometric mean {line['geometric_mean']:.2f}, largest {line['largest']:.2f}, "
            f"at n = 100 {line['largest_at_100']:.2f}, at least {line['least_speed_up']:.0f} × bracketing"
        )


if __name__ == "__main__":
    main()
