"""`xmckit evaluate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.errors import printable

if TYPE_CHECKING:
    from xmckit.analysis.evaluate import FeatureRows, Labelled
    from xmckit.context import Context


@click.command()
@click.argument("run")
@click.argument("source", metavar="DATA")
@click.option(
    "--split",
    "part",
    type=click.Choice(["test", "train", "all"]),
    help="Which rows of DATA [default: test; all of a single file].",
)
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A parameter of the data set.")
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
    """Score the model of RUN on DATA, which it was not trained on: a data set's name, a folder or a labelled file.

    Labels are matched by name. Those that the model does not know are misses, and are counted. Propensities are those
    of the rows that the model was trained on.
    """
    from xmckit.analysis.evaluate import evaluate as score
    from xmckit.analysis.evaluate import feature_rows, training_run
    from xmckit.cli.progress import TerminalProgress
    from xmckit.model import load
    from xmckit.registry import make_context

    registry = invocation.get_registry()
    trained = training_run(run, Path(root))
    with TerminalProgress(quiet=invocation.quiet()) as progress:
        context = make_context(progress=progress, registry=registry)
        rows = _labelled(source, part, params, data_folders, feature_rows(trained), context)
        model = load(run, root=root, registry=registry)
        name = Path(run).name if Path(run).is_dir() and trained.path != Path(run).resolve() else trained.name
        metrics = score(model, trained, rows, name=name, context=context)
    if as_json:
        options.print_json(metrics)
        return
    from xmckit.cli.tables import print_metrics

    print_metrics(metrics)
    if told := _strangers(metrics["unknown"]):
        click.echo(told)


def _labelled(
    source: str,
    part: str | None,
    params: tuple[str, ...],
    data_folders: tuple[str, ...],
    features: FeatureRows | None,
    context: Context,
) -> Labelled:
    from xmckit.analysis.evaluate import Labelled, joined, read_file
    from xmckit.cli.data import read_dataset

    if Path(source).is_file() and part is None and not params:
        found = read_file(Path(source), features, context=context)
        if found is not None:
            return found
    dataset = read_dataset(source, params, data_folders, context)
    rows = {"test": lambda: dataset.test, "train": lambda: dataset.train}.get(
        part or "test", lambda: joined(dataset.train, dataset.test)
    )()
    return Labelled(dataset.name, rows, dataset.label_names)


def _strangers(unknown: dict[str, Any]) -> str:
    if not unknown["labels"]:
        return ""
    labels = "label is" if unknown["labels"] == 1 else "labels are"
    more = " …" if unknown["labels"] > len(unknown["examples"]) else ""
    examples = ", ".join(printable(name, keep="") for name in unknown["examples"]) + more
    told = (
        f"{unknown['labels']:,} {labels} unknown to the model ({examples}): {unknown['pairs']:,} of "
        f"{unknown['of_pairs']:,} true labels ({100 * unknown['share']:.1f} %), which count as misses. "
        f"Rows with one: {unknown['rows']:,}; with no other label: {unknown['rows_with_no_other']:,}."
    )
    return told + _written_otherwise(unknown["written_otherwise"])


def _written_otherwise(found: dict[str, Any]) -> str:
    if not found["labels"]:
        return ""
    pairs = [(printable(one["label"], keep=""), printable(one["known_as"], keep="")) for one in found["examples"]]
    first = ", ".join(f"'{own}' by '{name}'" for name, own in pairs)
    count = f"\n{found['labels']:,} of them are written otherwise than the model's"
    return f"{count}; did you mean {first}{' …' if found['labels'] > len(pairs) else ''}?"
