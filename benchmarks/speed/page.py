"""Write docs/speed.md from benchmarks/results/speed.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.common import paths
from benchmarks.common.markdown import row, versions_text

PAGE = paths.DOCS / "speed.md"


def write(results: dict[str, Any]) -> None:
    PAGE.write_text("\n".join(page(results)) + "\n", "utf-8")
    print(PAGE.read_text("utf-8"))


def page(results: dict[str, Any]) -> Iterator[str]:
    where, versions = results["machine"], results["versions"]
    yield from ["# Speed", ""]
    yield "Written by `make bench`. Every table comes from one run of one program; no ratio compares different runs."
    yield f"Measured on {where['processor']}, {where['processors']} processors, {versions_text(versions, versions)}."
    yield from startup_section(results["startup"])
    yield from parse_section(results["parse_text"])
    yield from metrics_section(results["metrics"])
    yield from lml_section(results["lml"])
    yield from dft_section(results["dft"]["results"])
    yield from training_section(results["training"])
    yield from argmax_section(results["argmax"])
    yield from eagle_section(results["eagle_speed"])
    if "xrlinear" in results:
        yield from xrlinear_section(results["xrlinear"])
    if "sparse" in results:
        yield from sparse_section(results["sparse"])


METRICS = """
## Metrics and top k

{rows:,} rows × {labels:,} labels, top {width}. `benchmarks/speed/metrics.py` describes the rows of the table;
"÷ floor" compares with the time to read the input once.

| task | program | seconds | ÷ xmckit | ÷ xmckit, all threads | ÷ floor | extra MiB |
|---|---|---|---|---|---|---|"""
PARSE = """
## XMC text to CSR

{megabytes:.0f} MB, {rows:,} rows, {nonzeros:,} values, one thread each. The matrices are {same}. "memory" sums up the
bytes of the mapped file, which is the lower bound for every reader.

| reader | seconds | MB/s | ÷ xmckit |
|---|---|---|---|"""
LML = """
## LML

Forward and backward of the projection with k = {k}, divided by those of `torch.softmax`; of the fused loss, divided by
those of `cross_entropy`; and the speed-up over the paper's bracketing in torch. *scale* multiplies the logits.

| labels | rows | scale | threads | softmax ms | lml ms | lml ÷ softmax | loss ÷ cross-entropy | bracketing ÷ lml |
|---|---|---|---|---|---|---|---|---|"""
LML_TARGETS = """\
{threads} thread(s): geometric mean over n ≥ 1000 {geometric_mean:.2f}, the largest {largest:.2f}, at n = 100
{largest_at_100:.2f}; at least {least_speed_up:.0f} × bracketing.
"""
DFT = """
## DFT layer

Logits and the gradient for their input, compared with the dense product with the same 2k + 1 columns. *chunks*: in
chunks of 16, 32 or 64 rows (the fastest counts), forward and backward of one chunk before the next, as in training.
Ratios compare the faster way of each; *memory* writes and reads the logits of all rows once.

| n | k | batch | threads | dft ms | chunks | dense ms | chunks | dense ÷ dft | dft ÷ memory |
|---|---|---|---|---|---|---|---|---|---|"""
TRAINING = """
## Training

Seconds of an epoch of BSL, {workers} workers. *outside*: the share outside forward, backward and optimiser.

| data | batches | forward | backward | optimiser | other | outside | peak MiB |
|---|---|---|---|---|---|---|---|"""
ADAM = """
A step of Adam over a table of {rows:,} × {columns} when a batch uses some of the rows, in milliseconds, one thread:

| rows used | rows touched | xmckit | torch SparseAdam | torch Adam, dense |
|---|---|---|---|---|"""

ARGMAX = """
## The verifier

Processor milliseconds per label set, one thread, including proofs, compared with scipy's HiGHS on the paper's linear
programme. HiGHS gives no proof and gets {fewest} to {most} of the {sets} label sets, as many as it solves in ten
seconds; *ratio* is its time divided by ours. *trained*: a BSL head with biases, after a few epochs.

| data | labels | weights | d | active set | scans | proofs | together | HiGHS | ratio | target | argmaxable |
|---|---|---|---|---|---|---|---|---|---|---|---|"""
GROWTH = """
Only the scans grow with the number of labels (d = {dim}, random weights):

| labels | active set | scans | proofs | together |
|---|---|---|---|---|"""
MANY = """
{sets:,} label sets of test rows of {data} at d = {dim} on {workers} processors: {seconds:.1f} s."""
EAGLE = """
## EAGLE

20 iterations on {threads} threads; all methods choose the same rows. *scipy*: label by label, one process; *direct*:
the paper's update, compiled, on the same number of threads.

| data | seconds | scipy ÷ xmckit | direct ÷ xmckit |
|---|---|---|---|"""
EAGLE_SCALE = """
Synthetic data with the shape of Wiki-325K (1.8 million rows, 325 thousand labels), and shares of it. Targets: at most
360 s and 6 GiB.

| share | way | seconds | peak GiB |
|---|---|---|---|"""

XRLINEAR = """
## XR-Linear

The head `xrlinear` compared with direct calls of PECOS with the same parameters, {threads} threads each: tree,
training, loading, the best 100 labels of all test rows. The best of {turns} turns counts; the ratio of the medians is
beside it. *prediction*: prediction of all test rows alone, by PECOS with a loaded model and by xmckit with a model
that still has to be arranged for its own search.

| data | labels | PECOS s | xmckit s | xmckit ÷ PECOS | of medians | target | prediction: PECOS s | xmckit s | both |
|---|---|---|---|---|---|---|---|---|---|"""

SPARSE = """
## Sparse kernels

Seconds of one run, in processor time for one thread and in wall time for two, compared with the fastest of the
alternatives that `benchmarks/speed/sparse.py` describes; some of them do less than the task. A product of less than
half a millisecond stays on one thread: waking another takes about 50 µs here each time, while the threads of torch's
EmbeddingBag spin.

| task | threads | xmckit s | strongest other | its s | other ÷ xmckit |
|---|---|---|---|---|---|"""


def startup_section(results: dict[str, Any]) -> Iterator[str]:
    yield from ["", "## Start", "", "| command | seconds | ratio |", "|---|---|---|"]
    for name, seconds in results["seconds"].items():
        yield row([f"`{name}`", f"{seconds:.3f}", f"{seconds / results['seconds']['import click']:.2f}"])


def parse_section(results: dict[str, Any]) -> Iterator[str]:
    yield PARSE.format(**results, same=identity_text(results))
    for name, spent in results["seconds"].items():
        ratio = spent["wall"] / results["seconds"]["xmckit"]["wall"]
        yield row([name, f"{spent['wall']:.3f}", f"{results['megabytes_per_second'][name]:.0f}", f"{ratio:.2f}"])


def metrics_section(results: dict[str, Any]) -> Iterator[str]:
    yield METRICS.format(**results)
    for entry in results["results"]:
        cells = [entry["task"], entry["who"], f"{entry['seconds']:.4f}", f"{entry['ratio']:.1f}"]
        for key, form in (("ratio_threads", "{:.1f}"), ("bandwidth_floors", "{:.1f}"), ("extra_mib", "{:.0f}")):
            cells.append("" if entry.get(key) is None else form.format(entry[key]))
        yield row(cells)


def identity_text(results: dict[str, Any]) -> str:
    return "identical" if results["identical"] else "DIFFERENT"


def lml_section(results: dict[str, Any]) -> Iterator[str]:
    yield LML.format(k=results["k"])
    for entry in results["results"]:
        times = (1000 * entry["seconds"][who] for who in ("softmax", "lml"))
        speed_up = "" if entry["speed_up"] is None else f"{entry['speed_up']:.0f}"
        yield row(
            [f"{entry['labels']:,}", f"{entry['rows']:,}", f"{entry['scale']:g}", entry["threads"]]
            + [f"{time:.2f}" for time in times]
            + [f"{entry['ratio']:.2f}", f"{entry['loss_ratio']:.2f}", speed_up]
        )
    yield ""
    for line in results["targets"]:
        yield LML_TARGETS.format(**line)


def dft_section(results: list[dict[str, Any]]) -> Iterator[str]:
    yield DFT
    for entry in results:
        spent = entry["milliseconds"]
        times = [spent.get(name) for name in ("dft", "dft, chunks", "dense", "dense, chunks")]
        yield row(
            [f"{entry['labels']:,}", entry["degree"], entry["batch"], entry["threads"]]
            + ["" if time is None else f"{time:.2f}" for time in times]
            + [f"{entry['times_faster_than_dense']:.2f}", f"{entry['times_slower_than_memory']:.1f}"]
        )


def training_section(results: dict[str, Any]) -> Iterator[str]:
    yield TRAINING.format(**results)
    for name, epoch in results["epochs"].items():
        seconds = [f"{epoch['seconds'][part]:.3f}" for part in ("batches", "forward", "backward", "optimiser", "other")]
        yield row([name, *seconds, f"{100 * epoch['outside']:.1f} %", epoch["peak_mib"]])
    rows, columns = results["adam"]["table"]
    yield ADAM.format(rows=rows, columns=columns)
    for step in results["adam"]["steps"]:
        times = [f"{milliseconds:.1f}" for milliseconds in step["milliseconds"].values()]
        yield row([f"{step['rows_used']:,}", f"{step['rows_touched']:,}", *times])


def argmax_section(results: dict[str, Any]) -> Iterator[str]:
    solved = [entry["baseline_sets"] for entry in results["comparisons"]]
    yield ARGMAX.format(fewest=min(solved), most=max(solved), sets=results["comparisons"][0]["sets"])
    for entry in results["comparisons"]:
        together, baseline = f"{entry['milliseconds']:.2f}", f"{entry['baseline_milliseconds']:.0f}"
        target, argmaxable = f"{entry['target']} ×", entry["statuses"].get("argmaxable", 0)
        ratio = f"{entry['ratio']:.0f} ×"
        about = [entry["data"], f"{entry['labels']:,}", entry["weights"], entry["dim"]]
        yield row([*about, *_parts(entry), together, baseline, ratio, target, argmaxable])
    yield GROWTH.format(**results["growth"][0])
    for entry in results["growth"]:
        yield row([f"{entry['labels']:,}", *_parts(entry), f"{entry['milliseconds']:.2f}"])
    yield MANY.format(**results["many"])


def _parts(entry: dict[str, Any]) -> list[str]:
    return [f"{entry['parts'].get(part, 0.0):.2f}" for part in ("active set", "scan", "proof")]


def eagle_section(results: dict[str, Any]) -> Iterator[str]:
    yield EAGLE.format(**results)
    for entry in results["ratios"]:
        ratios = [f"{entry[f'times_faster_than_{other}']:.0f} ×" for other in ("scipy", "direct")]
        yield row([entry["data"], f"{entry['seconds']['ours']:.3f}", *ratios])
    yield EAGLE_SCALE
    for entry in results["scale"]:
        yield row([entry["share"], entry["way"], f"{entry['seconds']:.1f}", f"{entry['peak_gib']:.2f}"])


def xrlinear_section(results: dict[str, Any]) -> Iterator[str]:
    yield XRLINEAR.format(**results)
    for entry in results["results"]:
        seconds = [f"{entry['seconds'][who]['whole']:.2f}" for who in ("pecos", "xmckit")]
        ratios = [f"{entry[name]:.3f}" for name in ("ratio", "ratio_of_medians", "target")]
        theirs, ours = (entry["seconds"][who]["predict"] for who in ("pecos", "xmckit"))
        prediction = [f"{theirs:.3f}", f"{ours:.3f} ({theirs / ours:.1f} × as fast)"]
        yield row([entry["data"], f"{entry['labels']:,}", *seconds, *ratios, *prediction, identity_text(entry)])


def sparse_section(results: dict[str, Any]) -> Iterator[str]:
    yield SPARSE
    for entry in results["results"]:
        ours, other = (f"{entry['seconds'][who]:.4f}" for who in ("xmckit", entry["strongest"]))
        yield row([entry["task"], entry["threads"], ours, entry["strongest"], other, f"{entry['ratio']:.2f}"])
