"""The core's own components, offered through the same hooks as those of any plugin."""

from __future__ import annotations

from collections.abc import Iterator

from xmckit.hookspecs import Component, hookimpl

# Each is the function of its name in the module of its name: `xmckit.cli.run:run`.
_COMMANDS = {
    "run": "Run a recipe: data, features, labels, index, head, score, verify, report.",
    "predict": "Label texts or feature rows with the model of a run.",
    "evaluate": "Score the model of a run on other data.",
    "ensemble": "Combine finished runs, and score the combination.",
    "compare": "Compare finished runs, with tests of significance.",
    "bench": "Run suites of recipes and peers over data sets and seeds.",
    "verify": "Prove which label sets a head can output and which it can never output.",
    "runs": "List runs, show one, write its report, empty the cache.",
    "recipes": "List, show, copy and check recipes.",
    "data": "List, fetch, describe and convert data sets.",
    "plugins": "List, show, check, trace and create plugins.",
    "doctor": "Check this installation.",
    "completion": "Print a script that completes commands and names in a shell.",
}


@hookimpl
def xmckit_heads() -> Iterator[Component]:
    yield Component(
        "popularity",
        "xmckit.components.popularity:PopularityHead",
        "Predicts the most frequent labels for every row: the baseline.",
    )


@hookimpl
def xmckit_datasets() -> Iterator[Component]:
    yield Component("files", "xmckit.data.files:Files", "A file or folder in any format that has a reader.")
    yield Component(
        "repository", "xmckit.data.catalogue:Repository", "A published data set by name, with known checksums."
    )
    source = "xmckit.data.python_source"
    called = "labelled with the names that they call"
    yield Component("stdlib-calls", f"{source}:StdlibCalls", f"Functions of Python's standard library, {called}.")
    yield Component("python-source", f"{source}:PythonSource", f"Functions in a folder of Python source, {called}.")
    yield Component(
        "synthetic",
        "xmckit.data.synthetic:Synthetic",
        "Random data of any size with power-law labels; optionally labels with two meanings, and groups.",
    )


@hookimpl
def xmckit_readers() -> Iterator[Component]:
    yield Component("xmc", "xmckit.data.xmc_text:XmcText", "The XMC repository's text format (N D L header).")
    yield Component("svmlight", "xmckit.data.svmlight:Svmlight", "Multi-label svmlight text.")
    yield Component("npz", "xmckit.data.npz:NpzFolder", "X.trn.npz, Y.trn.npz, X.tst.npz, Y.tst.npz in a folder.")
    yield Component("jsonl", "xmckit.data.jsonl:JsonLines", "JSON lines with a text and its labels.")


@hookimpl
def xmckit_featurizers() -> Iterator[Component]:
    module = "xmckit.components.featurizers"
    yield Component("blocks", f"{module}:Blocks", "The data's feature blocks, normalised, weighted and joined.")
    yield Component("tfidf", f"{module}:Tfidf", "Words of the texts, weighted by tf-idf.")


@hookimpl
def xmckit_encoders() -> Iterator[Component]:
    yield Component("sparse-linear", "xmckit.nn.encoders:SparseLinear", "One linear layer over the features.")
    yield Component("sparse-mlp", "xmckit.nn.encoders:SparseMLP", "A linear layer, ReLU, and a second linear layer.")


@hookimpl
def xmckit_metrics() -> Iterator[Component]:
    module = "xmckit.components.metrics"
    yield Component("ranking", f"{module}:RankingMetrics", "P, nDCG, R, F1, PSP, PSnDCG and coverage at each k.")
    yield Component("sets", f"{module}:SetMetrics", "Micro and macro F1 of the label sets that a head outputs.")


@hookimpl
def xmckit_executors() -> Iterator[Component]:
    module = "xmckit.components.executors"
    yield Component("serial", f"{module}:SerialExecutor", "One item after the other, in this process.")
    yield Component(
        "threads", f"{module}:ThreadExecutor", "Threads, for work in numba and torch, which release the GIL."
    )
    yield Component("processes", f"{module}:ProcessExecutor", "Processes, for work in pure Python.")


@hookimpl
def xmckit_commands() -> Iterator[Component]:
    for name, summary in _COMMANDS.items():
        yield Component(name, f"xmckit.cli.{name}:{name}", summary)
