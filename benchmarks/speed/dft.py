"""Compare logits of the truncated DFT layer, forward and backward (gradient for x), with the dense product.

    python -m benchmarks.speed.dft [--seconds 2] [--json]

All methods compute the same B × n float32 logits from B × (2k+1) inputs, and then the gradient for the inputs from a
given B × n slope:

    dft     `xmckit_heads.dft.fourier.dft_logits`
    dense   x·Wᵀ with the explicit, fixed matrix: no gradient for W
    irfft   torch.fft.irfft of the coefficients, padded to a length of 2-3-5-smooth N ≥ n, cut to n
    memory  write B × n numbers and read them once: the lower bound with the logits of all rows in memory

dft and dense take turns, with one thread and with all threads of the process; the best time of each counts. Both also
run on chunks of 16, 32 or 64 rows (the fastest counts), forward and backward of one chunk before the next, as in
training: then the logits of all rows never exist. Ratios compare the faster way of each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from xmckit_heads.dft.fourier import Grid, dft_logits, matrix

from xmckit.context import cpu_count
from xmckit.nn.threads import use_threads

# labels, degree, target of the speed-up over the dense product
CASES = ((8921, 50, 1.2), (8921, 80, 1.2), (20000, 50, 1.2), (131072, 50, 1.5), (131072, 200, 5.0))
BATCHES = (32, 256)
CHUNKS = (16, 32, 64)
LEAST_TURNS = 3
IN_A_ROW = 4
REST = 0.03  # seconds: torch's threads keep spinning after their work, on a processor that the next method needs

Method = Callable[[torch.Tensor], torch.Tensor]


def smooth_length(least: int) -> int:
    """Return the smallest even number ≥ least without a prime factor above 5."""
    length = least + least % 2
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 2


def plain_irfft(grid: Grid) -> Method:
    length = smooth_length(grid.labels)

    def logits(x: torch.Tensor) -> torch.Tensor:
        waves = torch.view_as_complex(x[:, 1:].unflatten(1, (-1, 2)).contiguous()).conj()
        coefficients = torch.cat([x[:, :1].to(waves.dtype), waves * 2**-0.5], 1) * grid.constant
        return torch.fft.irfft(coefficients, n=length, norm="forward")[:, : grid.labels]

    return logits


def seconds_of(method: Method, x: torch.Tensor, slope: torch.Tensor) -> float:
    start = time.perf_counter()
    torch.autograd.grad(method(x), x, slope)
    return time.perf_counter() - start


def seconds_in_chunks(method: Method, x: torch.Tensor, slope: torch.Tensor, size: int) -> float:
    start = time.perf_counter()
    for part, its_slope in zip(x.detach().split(size), slope.split(size), strict=True):
        part.requires_grad_()
        torch.autograd.grad(method(part), part, its_slope)
    return time.perf_counter() - start


def memory_seconds(slope: torch.Tensor) -> float:
    start = time.perf_counter()
    torch.ones_like(slope)
    slope.sum()
    return time.perf_counter() - start


def measure(labels: int, degree: int, batch: int, workers: int, budget: float) -> dict[str, float]:
    """Return the milliseconds of each method, the best of all turns that fit into `budget` seconds."""
    grid = Grid(labels, degree)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, grid.columns, generator=generator).requires_grad_()
    slope = torch.randn(batch, labels, generator=generator)
    W, irfft = matrix(grid, torch.float32), plain_irfft(grid)
    with use_threads(workers) as pool:

        def on_torch_threads(clock: Callable[[], float]) -> float:
            torch.set_num_threads(workers)
            seconds = clock()
            torch.set_num_threads(1)
            return seconds

        def ours(rows: torch.Tensor) -> torch.Tensor:
            return dft_logits(rows, grid, pool)

        def dense(rows: torch.Tensor) -> torch.Tensor:
            return rows @ W.T

        rivals = {
            "dft": lambda: seconds_of(ours, x, slope),
            "dense": lambda: on_torch_threads(lambda: seconds_of(dense, x, slope)),
        }
        if batch > max(CHUNKS):
            rivals |= {
                "dft, chunks": lambda: min(seconds_in_chunks(ours, x, slope, size) for size in CHUNKS),
                "dense, chunks": lambda: on_torch_threads(
                    lambda: min(seconds_in_chunks(dense, x, slope, size) for size in CHUNKS)
                ),
            }
        others = {
            "irfft": lambda: on_torch_threads(lambda: seconds_of(irfft, x, slope)),
            "memory": lambda: on_torch_threads(lambda: memory_seconds(slope)),
        }
        best = best_in_turns(rivals, budget) | best_in_turns(others, budget / 4)
    return {name: 1e3 * seconds for name, seconds in best.items()}


def best_in_turns(clocks: dict[str, Callable[[], float]], budget: float) -> dict[str, float]:
    """Return the least seconds of methods that take turns, with a few calls in a row each."""
    best = dict.fromkeys(clocks, float("inf"))
    start, turns = time.perf_counter(), 0
    while turns < LEAST_TURNS or time.perf_counter() - start < budget:
        for name, clock in clocks.items():
            time.sleep(REST)
            best[name] = min(best[name], *(clock() for _ in range(IN_A_ROW)))
        turns += 1
    return best


def run_cases(budget: float) -> list[dict[str, Any]]:
    results = []
    for workers in sorted({1, cpu_count()}):
        for labels, degree, target in CASES:
            for batch in BATCHES:
                spent = measure(labels, degree, batch, workers, budget)
                ours, dense = (
                    min(time for name, time in spent.items() if name.startswith(who)) for who in ("dft", "dense")
                )
                results.append(
                    {
                        "labels": labels,
                        "degree": degree,
                        "batch": batch,
                        "threads": workers,
                        "milliseconds": spent,
                        "times_faster_than_dense": dense / ours,
                        "times_faster_than_irfft": spent["irfft"] / ours,
                        "times_slower_than_memory": ours / spent["memory"],
                        "target": target,
                    }
                )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="per size, batch and number of threads")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    results = run_cases(options.seconds)
    if options.json:
        print(json.dumps({"results": results}, indent=2))
        return
    print(f"{'n':>7} {'k':>4} {'batch':>5} {'threads':>7}  ÷ dft (target), and milliseconds")
    for entry in results:
        spent = ", ".join(f"{name} {milliseconds:.2f}" for name, milliseconds in entry["milliseconds"].items())
        print(
            f"{entry['labels']:7} {entry['degree']:4} {entry['batch']:5} {entry['threads']:7}  "
            f"dense {entry['times_faster_than_dense']:.2f} ({entry['target']}), "
            f"irfft {entry['times_faster_than_irfft']:.2f}, memory {1 / entry['times_slower_than_memory']:.2f}; {spent}"
        )


if __name__ == "__main__":
    main()
