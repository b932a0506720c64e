"""Write docs/speed.md from benchmarks/results/speed.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.common import paths
from benchmarks.common.study import row

PAGE = paths.DOCS / "speed.md"


def write(found: dict[str, Any]) -> None:
    PAGE.write_text("\n".join(page(found)) + "\n", "utf-8")
    print(PAGE.read_text("utf-8"))


def page(found: dict[str, Any]) -> Iterator[str]:
    where, versions = found["machine"], found["versions"]
    yield from ["# Speed", ""]
    yield "Written by `make bench`. Every table is one run of its script on one machine; no ratio is across runs. Here:"
    yield f"{where['processor']}, {where['processors']} processors, " + ", ".join(
        f"{name} {version}" for name, version in versions.items()
    ) + "."  # fmt: skip
    yield from ["", "## Start", "", "| command | seconds | ratio |", "|---|---|---|"]
    start = found["startup"]
    for name, seconds in start["seconds"].items():
        yield f"| `{name}` | {seconds:.3f} | {seconds / start['seconds']['import click']:.2f} |"
    text = found["parse_text"]
    same = "identical" if text["identical"] else "DIFFERENT"
    yield from ["", "## XMC text to CSR", ""]
    yield f"{text['megabytes']:.0f} MB, {text['rows']:,} rows, {text['nonzeros']:,} values, one thread each. The"
    yield f'matrices are {same}. "memory" sums up the bytes of the mapped file, which no reader can beat.'
    yield from ["", "| reader | seconds | MB/s | ÷ xmckit |", "|---|---|---|---|"]
    for name, spent in text["seconds"].items():
        ratio = spent["wall"] / text["seconds"]["xmckit"]["wall"]
        yield f"| {name} | {spent['wall']:.3f} | {text['megabytes_per_second'][name]:.0f} | {ratio:.2f} |"
    scores = found["metrics"]
    yield from ["", "## Metrics and top k", ""]
    yield f"{scores['rows']:,} rows × {scores['labels']:,} labels, top {scores['width']}. What each row is, is said in"
    yield '`benchmarks/speed/metrics.py`; "÷ floor" compares with the time to read the input once.'
    yield from ["", "| task | who | seconds | ÷ xmckit | ÷ xmckit, all threads | ÷ floor | extra MiB |"]
    yield "|---|---|---|---|---|---|---|"
    for entry in scores["results"]:
        cells = [entry["task"], entry["who"], f"{entry['seconds']:.4f}", f"{entry['ratio']:.1f}"]
        for key, form in (("ratio_threads", "{:.1f}"), ("bandwidth_floors", "{:.1f}"), ("extra_mib", "{:.0f}")):
            cells.append("" if entry.get(key) is None else form.format(entry[key]))
        yield f"| {' | '.join(cells)} |"
    yield from lml_section(found["lml"])
    yield from dft_section(found["dft"]["results"])
    yield from training_section(found["training"])
    yield from argmax_section(found["argmax"])
    yield from eagle_section(found["eagle_speed"])
    if "xrlinear" in found:
        yield from xrlinear_section(found["xrlinear"])
    if "sparse" in found:
        yield from sparse_section(found["sparse"])


LML = """
## LML

Forward and backward of the projection with k = {k}, divided by those of `torch.softmax`; of the fused loss, divided by
those of `cross_entropy`; and how many times faster than the paper's bracketing in torch. *scale* multiplies the logits.

| labels | rows | scale | threads | softmax ms | lml ms | lml ÷ softmax | loss ÷ cross-entropy | bracketing ÷ lml |
|---|---|---|---|---|---|---|---|---|"""
LML_TARGETS = """\
{threads} thread(s): geometric mean over n ≥ 1000 {geometric_mean:.2f}, the largest {largest:.2f}, at n = 100
{largest_at_100:.2f}; at least {least_speed_up:.0f} × bracketing.
"""
DFT = """
## DFT layer

Logits and the gradient for their input, against the dense product with the same 2k + 1 columns. *chunks*: by 16, 32 or
64 rows, whichever is fastest, forward and backward of one before the next, as training does it. Ratios compare the
faster way of each; *memory* writes and reads the logits of all rows once.

| n | k | batch | threads | dft ms | chunks | dense ms | chunks | dense ÷ dft | dft ÷ memory |
|---|---|---|---|---|---|---|---|---|---|"""
TRAINING = """
## Training

Seconds of an epoch of BSL, {workers} workers. *outside*: the share that is not forward, backward or optimiser.

| data | batches | forward | backward | optimiser | other | outside | peak MiB |
|---|---|---|---|---|---|---|---|"""
ADAM = """
A step of Adam over a table of {rows:,} × {columns} of which a batch uses some rows, milliseconds, one thread:

| rows used | rows touched | xmckit | torch SparseAdam | torch Adam, dense |
|---|---|---|---|---|"""

ARGMAX = """
## The verifier

Processor milliseconds per label set, one thread, proofs included, against scipy's HiGHS on the paper's linear programme
(no proof, {fewest} to {most} of the {sets} label sets, as many as ten seconds are enough for; *ratio* is its time over
ours). *trained*: a BSL head with biases, after a few epochs.

| data | labels | weights | d | active set | scans | proofs | together | HiGHS | ratio | asked for | argmaxable |
|---|---|---|---|---|---|---|---|---|---|---|---|"""
GROWTH = """
With the number of labels (d = {dim}, random weights) only scans grow:

| labels | active set | scans | proofs | together |
|---|---|---|---|---|"""
MANY = """
{sets:,} label sets of test rows of {data} at d = {dim} on {workers} processors: {seconds:.1f} s."""
EAGLE = """
## EAGLE

20 iterations on {threads} threads, the same rows given by all. *scipy*: label by label, one process; *direct*: the
paper's update, compiled, on as many threads.

| data | seconds | scipy ÷ xmckit | direct ÷ xmckit |
|---|---|---|---|"""
EAGLE_SCALE = """
Data shaped like Wiki-325K, made up (1.8 million rows, 325 thousand labels), and shares of it; at most 360 s and 6 GiB
are asked for:

| share | way | seconds | peak GiB |
|---|---|---|---|"""

XRLINEAR = """
## XR-Linear

The head `xrlinear` against calling PECOS directly with the same parameters, {threads} threads each: tree, training,
loading, the best 100 labels of all test rows. The best of {turns} turns each; beside it the ratio of the medians.
*prediction*: that alone, of all test rows, by PECOS with a model that is loaded and by xmckit with one that is not yet
laid out for its own search.

| data | labels | PECOS s | xmckit s | xmckit ÷ PECOS | of medians | asked for | prediction: PECOS s | xmckit s | both |
|---|---|---|---|---|---|---|---|---|---|"""

SPARSE = """
## Sparse kernels

Seconds of one run, of the processor for one thread and of the clock for two, against the strongest of the alternatives
that `benchmarks/speed/sparse.py` describes, some of which do less than is asked for. A product of less than half a ms
stays on one thread: waking another takes some 50 µs here, each time, while the threads of torch's EmbeddingBag spin.

| task | threads | xmckit s | strongest other | its s | other ÷ xmckit |
|---|---|---|---|---|---|"""


def lml_section(found: dict[str, Any]) -> Iterator[str]:
    yield LML.format(k=found["k"])
    for entry in found["results"]:
        times = (1000 * entry["seconds"][who] for who in ("softmax", "lml"))
        speed_up = "" if entry["speed_up"] is None else f"{entry['speed_up']:.0f}"
        yield row(
            [f"{entry['labels']:,}", f"{entry['rows']:,}", f"{entry['scale']:g}", entry["threads"]]
            + [f"{time:.2f}" for time in times]
            + [f"{entry['ratio']:.2f}", f"{entry['loss_ratio']:.2f}", speed_up]
        )
    yield ""
    for line in found["targets"]:
        yield LML_TARGETS.format(**line)


def dft_section(found: list[dict[str, Any]]) -> Iterator[str]:
    yield DFT
    for entry in found:
        spent = entry["milliseconds"]
        times = [spent.get(name) for name in ("dft", "dft, chunks", "dense", "dense, chunks")]
        yield row(
            [f"{entry['labels']:,}", entry["degree"], entry["batch"], entry["threads"]]
            + ["" if time is None else f"{time:.2f}" for time in times]
            + [f"{entry['times_faster_than_dense']:.2f}", f"{entry['times_slower_than_memory']:.1f}"]
        )


def training_section(found: dict[str, Any]) -> Iterator[str]:
    yield TRAINING.format(**found)
    for name, epoch in found["epochs"].items():
        seconds = [f"{epoch['seconds'][part]:.3f}" for part in ("batches", "forward", "backward", "optimiser", "other")]
        yield row([name, *seconds, f"{100 * epoch['outside']:.1f} %", epoch["peak_mib"]])
    rows, columns = found["adam"]["table"]
    yield ADAM.format(rows=rows, columns=columns)
    for step in found["adam"]["steps"]:
        times = [f"{milliseconds:.1f}" for milliseconds in step["milliseconds"].values()]
        yield row([f"{step['rows_used']:,}", f"{step['rows_touched']:,}", *times])


def argmax_section(found: dict[str, Any]) -> Iterator[str]:
    solved = [entry["baseline_sets"] for entry in found["comparisons"]]
    yield ARGMAX.format(fewest=min(solved), most=max(solved), sets=found["comparisons"][0]["sets"])
    for entry in found["comparisons"]:
        together, baseline = f"{entry['milliseconds']:.2f}", f"{entry['baseline_milliseconds']:.0f}"
        asked, can = f"{entry['target']} ×", entry["statuses"].get("argmaxable", 0)
        ratio = f"{entry['ratio']:.0f} ×"
        about = [entry["data"], f"{entry['labels']:,}", entry["weights"], entry["dim"]]
        yield row([*about, *_parts(entry), together, baseline, ratio, asked, can])
    yield GROWTH.format(**found["growth"][0])
    for entry in found["growth"]:
        yield row([f"{entry['labels']:,}", *_parts(entry), f"{entry['milliseconds']:.2f}"])
    yield MANY.format(**found["many"])


def _parts(entry: dict[str, Any]) -> list[str]:
    return [f"{entry['parts'].get(part, 0.0):.2f}" for part in ("active set", "scan", "proof")]


def eagle_section(found: dict[str, Any]) -> Iterator[str]:
    yield EAGLE.format(**found)
    for entry in found["ratios"]:
        ratios = [f"{entry[f'times_faster_than_{other}']:.0f} ×" for other in ("scipy", "direct")]
        yield row([entry["data"], f"{entry['seconds']['ours']:.3f}", *ratios])
    yield EAGLE_SCALE
    for entry in found["scale"]:
        yield row([entry["share"], entry["way"], f"{entry['seconds']:.1f}", f"{entry['peak_gib']:.2f}"])


def xrlinear_section(found: dict[str, Any]) -> Iterator[str]:
    yield XRLINEAR.format(**found)
    for entry in found["results"]:
        seconds = [f"{entry['seconds'][who]['whole']:.2f}" for who in ("pecos", "xmckit")]
        ratios = [f"{entry[name]:.3f}" for name in ("ratio", "ratio_of_medians", "target")]
        theirs, ours = (entry["seconds"][who]["predict"] for who in ("pecos", "xmckit"))
        prediction = [f"{theirs:.3f}", f"{ours:.3f} ({theirs / ours:.1f} × as fast)"]
        same = "identical" if entry["identical"] else "DIFFERENT"
        yield row([entry["data"], f"{entry['labels']:,}", *seconds, *ratios, *prediction, same])


def sparse_section(found: dict[str, Any]) -> Iterator[str]:
    yield SPARSE
    for entry in found["results"]:
        ours, other = (f"{entry['seconds'][who]:.4f}" for who in ("xmckit", entry["strongest"]))
        yield row([entry["task"], entry["threads"], ours, entry["strongest"], other, f"{entry['ratio']:.2f}"])
