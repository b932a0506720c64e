"""The core's own components, offered through the same hooks as those of any plugin."""

from __future__ import annotations

from collections.abc import Iterator

from xmckit.hookspecs import Component, hookimpl


@hookimpl
def xmckit_heads() -> Iterator[Component]:
    yield Component(
        "popularity",
        "xmckit.components.popularity:PopularityHead",
        summary="The most frequent labels for every row: the baseline.",
    )


@hookimpl
def xmckit_datasets() -> Iterator[Component]:
    yield Component("files", "xmckit.data.files:Files", summary="A file or folder in any format that a reader knows.")
    yield Component(
        "repository",
        "xmckit.data.catalogue:Repository",
        summary="A published data set by its name, checked against what is known of its files.",
    )
    yield Component(
        "stdlib-calls",
        "xmckit.data.python_source:StdlibCalls",
        summary="Functions of the running Python's standard library, labelled with the names they call.",
    )
    yield Component(
        "python-source",
        "xmckit.data.python_source:PythonSource",
        summary="Functions of any folder of Python source, labelled with the names they call.",
    )
    yield Component(
        "synthetic",
        "xmckit.data.synthetic:Synthetic",
        summary="Power-law labels over topics, of any size, with planted two-meaning labels and groups on request.",
    )


@hookimpl
def xmckit_readers() -> Iterator[Component]:
    yield Component("xmc", "xmckit.data.xmc_text:XmcText", summary="The XMC repository's text format (N D L header).")
    yield Component("svmlight", "xmckit.data.svmlight:Svmlight", summary="Multi-label svmlight text.")
    yield Component(
        "npz", "xmckit.data.npz:NpzFolder", summary="X.trn.npz, Y.trn.npz, X.tst.npz, Y.tst.npz in a folder."
    )
    yield Component("jsonl", "xmckit.data.jsonl:JsonLines", summary="JSON lines with a text and its labels.")


@hookimpl
def xmckit_featurizers() -> Iterator[Component]:
    yield Component(
        "blocks",
        "xmckit.components.featurizers:Blocks",
        summary="Feature blocks as they come, each normalised and weighted, side by side.",
    )
    yield Component("tfidf", "xmckit.components.featurizers:Tfidf", summary="Words of the texts, weighted by tf-idf.")


@hookimpl
def xmckit_encoders() -> Iterator[Component]:
    yield Component("sparse-linear", "xmckit.nn.encoders:SparseLinear", summary="One linear layer over the features.")
    yield Component(
        "sparse-mlp", "xmckit.nn.encoders:SparseMLP", summary="A linear layer, ReLU, and a second linear layer."
    )


@hookimpl
def xmckit_metrics() -> Iterator[Component]:
    yield Component(
        "ranking",
        "xmckit.components.metrics:RankingMetrics",
        summary="P, nDCG, R, F1, PSP, PSnDCG and coverage at k of the ranking.",
    )
    yield Component(
        "sets",
        "xmckit.components.metrics:SetMetrics",
        summary="Micro and macro F1 of the label sets that the rule outputs.",
    )


@hookimpl
def xmckit_executors() -> Iterator[Component]:
    yield Component(
        "serial", "xmckit.components.executors:SerialExecutor", summary="One item after the other, in this process."
    )
    yield Component(
        "threads",
        "xmckit.components.executors:ThreadExecutor",
        summary="Threads of this process; numba and torch release the GIL.",
    )
    yield Component(
        "processes",
        "xmckit.components.executors:ProcessExecutor",
        summary="Processes of this machine, for pure Python work.",
    )


@hookimpl
def xmckit_commands() -> Iterator[Component]:
    yield Component(
        "run", "xmckit.cli.run:run", summary="Run a recipe: data, features, labels, index, head, score, verify, report."
    )
    yield Component(
        "predict", "xmckit.cli.predict:predict", summary="Label texts or feature rows with the model of a run."
    )
    yield Component("evaluate", "xmckit.cli.evaluate:evaluate", summary="Score the model of a run on other data.")
    yield Component(
        "ensemble", "xmckit.cli.ensemble:ensemble", summary="Combine finished runs, and score the combination."
    )
    yield Component(
        "compare", "xmckit.cli.compare:compare", summary="Compare finished runs, with tests of significance."
    )
    yield Component(
        "bench", "xmckit.cli.bench:bench", summary="Run suites of recipes and peers over data sets and seeds."
    )
    yield Component(
        "verify",
        "xmckit.cli.verify:verify",
        summary="Prove which label sets a head can output and which it can never output.",
    )
    yield Component("runs", "xmckit.cli.runs:runs", summary="List runs, show one, write its report, empty the cache.")
    yield Component("recipes", "xmckit.cli.recipes:recipes", summary="List, show, copy and check recipes.")
    yield Component("data", "xmckit.cli.data:data", summary="List, fetch, describe and convert data sets.")
    yield Component("plugins", "xmckit.cli.plugins:plugins", summary="List, show, check, trace and create plugins.")
    yield Component("doctor", "xmckit.cli.doctor:doctor", summary="Check this installation.")
    yield Component(
        "completion",
        "xmckit.cli.completion:completion",
        summary="Print a script that completes commands and names in a shell.",
    )
