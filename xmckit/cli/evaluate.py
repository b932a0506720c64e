"""`xmckit evaluate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import print_metrics
from xmckit.errors import printable

if TYPE_CHECKING:
    from xmckit.analysis.evaluate import LabelledRows
    from xmckit.data.model import Dataset


@click.command()
@click.argument("run")
@click.argument("source", metavar="DATA")
@click.option(
    "--split",
    "part",
    type=click.Choice(["test", "train", "all"]),
    help="Rows of DATA to use [default: test; all rows of a single file].",
)
@options.param_option
@options.runs_option
@options.data_option
@options.json_option
def evaluate(
    run: str,
    source: str,
    part: str | None,
    params: tuple[str, ...],
    root: str,
    data_folders: tuple[str, ...],
    as_json: bool,
) -> None:
    """Score the model of RUN on other data. DATA is the name of a data set, a folder or a labelled file.

    Labels are matched by name. Labels that the model does not know count as misses; their number is printed.
    Propensities are those of the model's training rows.
    """
    from xmckit.analysis.evaluate import evaluate as score
    from xmckit.analysis.evaluate import read_file, training_run
    from xmckit.cli.data import read_dataset
    from xmckit.data.saved import read_feature_rows
    from xmckit.model import load
    from xmckit.registry import make_context

    registry = invocation.get_registry()
    trained = training_run(run, Path(root))
    with invocation.terminal_progress() as progress:
        context = make_context(progress=progress, registry=registry)
        rows = None
        if Path(source).is_file() and part is None and not params:
            rows = read_file(Path(source), read_feature_rows(trained.train_folder), context=context)
        if rows is None:
            rows = _rows_of(read_dataset(source, params, data_folders, context), part)
        model = load(run, root=root, registry=registry)
        name = Path(run).name if Path(run).is_dir() and trained.path != Path(run).resolve() else trained.name
        metrics = score(model, trained, rows, name=name, context=context)
    if as_json:
        options.print_json(metrics)
        return
    print_metrics(metrics)
    if metrics["unknown"]["labels"]:
        click.echo(_unknown_labels(metrics["unknown"]))


def _rows_of(dataset: Dataset, part: str | None) -> LabelledRows:
    from xmckit.analysis.evaluate import LabelledRows, concatenate

    if part == "all":
        rows = concatenate(dataset.train, dataset.test)
    else:
        rows = dataset.train if part == "train" else dataset.test
    return LabelledRows(dataset.name, rows, dataset.label_names)


def _unknown_labels(unknown: dict[str, Any]) -> str:
    labels = "label is" if unknown["labels"] == 1 else "labels are"
    more = " …" if unknown["labels"] > len(unknown["examples"]) else ""
    examples = ", ".join(printable(name, keep="") for name in unknown["examples"]) + more
    text = (
        f"{unknown['labels']:,} {labels} unknown to the model ({examples}): {unknown['pairs']:,} of "
        f"{unknown['of_pairs']:,} true labels ({100 * unknown['share']:.1f} %), which count as misses. "
        f"Rows with one: {unknown['rows']:,}; with no other label: {unknown['rows_with_no_other']:,}."
    )
    return text + _other_spellings(unknown["written_otherwise"])


def _other_spellings(known: dict[str, Any]) -> str:
    if not known["labels"]:
        return ""
    pairs = [(printable(one["label"], keep=""), printable(one["known_as"], keep="")) for one in known["examples"]]
    first = ", ".join(f"'{own}' by '{name}'" for name, own in pairs)
    count = f"\n{known['labels']:,} of them are spelled differently from the model's labels"
    return f"{count}; did you mean {first}{' …' if known['labels'] > len(pairs) else ''}?"
