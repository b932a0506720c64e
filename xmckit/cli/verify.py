"""`xmckit verify`"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.errors import printable

if TYPE_CHECKING:
    from xmckit.context import Context
    from xmckit.data.model import Matrix, Split
    from xmckit.model import Model
    from xmckit.recipe import Section
    from xmckit.runs import Run

MOST_NAMED = 5  # label sets that can never be output, for each head


@click.command()
@click.argument("run", required=False)
@click.option("--head", "only", metavar="NAME", help="Only this head of the run.")
@click.option(
    "--assignments",
    metavar="test|train|FILE|random:K:COUNT",
    help="The label sets to ask about: of the data's rows, of a file (one JSON list of label names or numbers a line, "
    "or an .npz with a CSR matrix), or COUNT random sets of K labels.  [default: test]",
)
@click.option("--most", default=1000, show_default=True, type=click.IntRange(min=1), help="Ask about at most so many.")
@click.option("--verifier", default="argmax", show_default=True, help="The verifier to use.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A parameter of the verifier.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of everything that is drawn.")
@click.option("--workers", default=0, type=click.IntRange(min=0), help="Processors to use; 0 is all.")
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="P",
    help="Exit with code 5 when a head is proved able to output less than P percent of the label sets.",
)
@click.option("--registry", "survey", is_flag=True, help="Train and verify every registered head on synthetic data.")
@click.option("--labels", type=click.IntRange(min=2), help="With --registry: labels of the data.  [default: 200]")
@click.option("--dim", type=click.IntRange(min=1), help="With --registry: the heads' `dim` or `slack`.  [default: 8]")
@options.runs_option
@options.json_option
def verify(
    run: str | None,
    only: str | None,
    assignments: str | None,
    most: int,
    verifier: str,
    sets: tuple[str, ...],
    seed: int,
    workers: int,
    fail_under: float | None,
    survey: bool,
    labels: int | None,
    dim: int | None,
    root: str,
    as_json: bool,
) -> None:
    """Prove which label sets the heads of RUN can output and which they never will.

    RUN is a run folder, its name, the name of a recipe for its newest finished run, or a folder that `xmckit labels
    add` wrote. The verdicts and their proofs go into RUN/verify/…, where `xmckit certificates check RUN` checks them.
    """
    if survey == (run is not None):
        raise click.UsageError("name a run (`xmckit runs ls` lists them), or give --registry; not both")
    if survey and only is not None:
        raise click.UsageError("--head picks a head of a run; with --registry every head is verified")
    if not survey and (labels is not None or dim is not None):
        raise click.UsageError("--labels and --dim go with --registry; a run has its own")
    section = _verifier_section(verifier, sets)
    if survey:
        summary = _survey(section, labels or 200, dim or 8, assignments, most, seed, workers)
    else:
        assert run is not None
        summary = _verify_run(run, Path(root), section, only, assignments or "test", most, seed, workers)
    if as_json:
        options.print_json(summary)
    elif survey:
        _print_survey(summary)
    else:
        _print(summary)
    if fail_under is not None:
        _fail_under(fail_under, summary["results"], tolerant=survey)


def _verifier_section(verifier: str, sets: tuple[str, ...]) -> Section:
    from xmckit.errors import UsageError
    from xmckit.recipe import load_section
    from xmckit.recipe.layers import read_sets

    given = read_sets(sets).plain()
    if wrong := {"use", "assignments", "most"} & set(given):
        raise UsageError(f"--set is for the parameters of the verifier: for {', '.join(sorted(wrong))} use the options")
    return load_section("verify", {**given, "use": verifier}, registry=invocation.get_registry())


def _verify_run(
    name: str, root: Path, section: Section, only: str | None, assignments: str, most: int, seed: int, workers: int
) -> dict[str, Any]:
    from xmckit import store
    from xmckit.cli.progress import TerminalProgress
    from xmckit.model import Model, load
    from xmckit.runs import find_run, provenance
    from xmckit.runs.extensions import is_extension, read_extension
    from xmckit.verification.verify import verify

    registry, extension = invocation.get_registry(), read_extension(Path(name)) if is_extension(Path(name)) else None
    run = find_run(name, root) if extension is None else extension.run
    place = run.path if extension is None else extension.path
    with TerminalProgress(quiet=invocation.quiet()) as progress:
        with progress("loading the model"):
            model = load(place, workers=workers, registry=registry)
            assert isinstance(model, Model)
        context = model.context.using(seed=seed, progress=progress)
        heads = _heads(run, model, only)
        split, X = _asked(assignments, run, model, heads, context)
        code = provenance.code_of(registry.component("verifier", section.use))
        unfinished = store.canonical_sha256({"code": code, "seed": seed, "versions": provenance.library_versions()})
        folder = place / "verify" / _folder_name(assignments, only, seed)
        # Finished blocks stay here when this process is killed, for the next that asks the same.
        scratch = folder.parent / f".unfinished-{unfinished[:16]}"
        with _replaced(folder) as fresh:
            summary = verify(
                fresh,
                registry.resolve("verifier", section.use)(**section.params),
                heads,
                split,
                X=X,
                most=most,
                context=context.using(folder=scratch),
            )
        shutil.rmtree(scratch, ignore_errors=True)
    return {"run": str(place), "folder": str(folder), **_told(summary, model.label_names)}


def _heads(run: Run, model: Model, only: str | None) -> list[tuple[str, Any]]:
    from xmckit.errors import UsageError, nearest

    names = run.head_names
    if only is not None and only not in names:
        raise UsageError(f"{run.path} has no head '{only}'{nearest(only, names)} (heads: {', '.join(names)})")
    return [pair for pair in zip(names, model.heads, strict=True) if only in (None, pair[0])]


def _asked(
    assignments: str, run: Run, model: Model, heads: Sequence[tuple[str, Any]], context: Context
) -> tuple[Split, dict[str, Matrix]]:
    """The label sets in question, and the rows' features for each head whose candidates follow from them."""
    from xmckit.data.model import Split
    from xmckit.protocols import ShortlistHead

    if assignments not in ("test", "train"):
        return _split_of(assignments, model.label_names, context), {}
    dataset = run.dataset()
    split = dataset.test if assignments == "test" else dataset.train
    shortlisted = [name for name, head in heads if isinstance(head, ShortlistHead)]
    X = dict(zip(run.head_names, model.all_features(split), strict=True)) if shortlisted else {}
    Y = split.Y.copy()
    Y.resize(split.rows, len(model.label_names))  # rows have none of the labels that were added later
    return Split(X=None, Y=Y), {name: X[name] for name in shortlisted}


def _split_of(assignments: str, label_names: Sequence[str], context: Context) -> Split:
    """Label sets that are of no rows: at random, or of a file."""
    from xmckit.data.model import Split
    from xmckit.verification.label_sets import RANDOM, random_label_sets, read_label_sets

    if assignments.startswith(RANDOM):
        Y = random_label_sets(assignments, len(label_names), context.rng("assignments", assignments))
    else:
        Y = read_label_sets(Path(assignments), label_names)
    return Split(X=None, Y=Y)


def _folder_name(assignments: str, only: str | None, seed: int) -> str:
    rows_or_random = assignments in ("test", "train") or assignments.startswith("random:")
    asked = assignments if rows_or_random else f"file-{Path(assignments).stem}"
    parts = [asked, *([only] if only else []), *([f"seed-{seed}"] if seed else [])]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.") or "asked"


@contextlib.contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A fresh folder that takes the place of `folder` when it is complete."""
    from xmckit import store

    folder.parent.mkdir(exist_ok=True)
    store.remove_stale(folder.parent)
    old = store.temporary_beside(folder)
    fresh = store.temporary_beside(folder)
    fresh.mkdir()
    try:
        yield fresh
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)
        fresh.rename(folder)
    finally:
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _survey(
    section: Section, labels: int, dim: int, assignments: str | None, most: int, seed: int, workers: int
) -> dict[str, Any]:
    from xmckit.cli.progress import TerminalProgress
    from xmckit.errors import UsageError
    from xmckit.registry import make_context
    from xmckit.verification.survey import survey

    if assignments in ("test", "train"):
        raise UsageError("--registry has rows of its own: leave out --assignments, or give a FILE or random:K:COUNT")
    with TerminalProgress(quiet=invocation.quiet()) as progress:
        context = make_context(seed=seed, workers=workers, progress=progress, registry=invocation.get_registry())
        names = [str(label) for label in range(labels)]
        asked = None if assignments is None else _split_of(assignments, names, context)
        return _told(survey(section.use, section.params, labels, dim, asked, most=most, context=context), names)


def _told(summary: Mapping[str, Any], label_names: Sequence[str]) -> dict[str, Any]:
    """The summary without the verdict on each label set, and with names of labels."""
    results = []
    for result in summary["results"]:
        told = {key: value for key, value in result.items() if key != "verdicts"}
        if result["verifiable"]:
            told["never"] = [
                {**item, "labels": [label_names[label] for label in item["labels"]]} for item in result["never"]
            ]
        results.append(told)
    return {"assignments": summary["assignments"], "of": summary["of"], "results": results}


def _print(summary: Mapping[str, Any]) -> None:
    from xmckit.cli.tables import print_table

    columns = [
        "head", "scope", "rule", "argmaxable", "unargmaxable", "unresolved", "share", "smallest margin", "replayed",
    ]  # fmt: skip
    print_table(
        [_row(result) for result in summary["results"]],
        columns,
        left=3,
        title=f"{summary['assignments']:,} of {summary['of']:,} label sets",
    )
    _print_why_not(summary["results"])
    for result in summary["results"]:
        if result["verifiable"] and result["never"]:
            _print_never(result)
    _print_caveats(summary["results"])
    click.echo(
        "argmaxable: proved for some feature vector, not for some document; unargmaxable: proved for every input."
    )
    if "folder" in summary:
        click.echo(f"proofs: {summary['folder']}")


def _print_why_not(results: Sequence[Mapping[str, Any]]) -> None:
    for result in results:
        if not result["verifiable"]:
            click.echo(printable(f"{result['head']}: not verifiable: {result['why']}"))


def _print_caveats(results: Sequence[Mapping[str, Any]]) -> None:
    told = {result["head"]: result["caveat"] for result in results if result["verifiable"] and result["caveat"]}
    for head, caveat in told.items():
        click.echo(printable(f"{head}: {caveat}"))


def _row(result: Mapping[str, Any]) -> list[str]:
    if not result["verifiable"]:
        return [result["head"], result["scope"], *["–"] * 7]
    replayed = result["replayed"]
    tried = replayed["yes"] + replayed["no"]
    return [
        result["head"],
        result["scope"],
        result["rule"],
        *(str(count) for count in result["counts"].values()),
        *_share_and_margin(result),
        f"{replayed['yes']} of {tried}" if tried else "–",
    ]


def _share_and_margin(result: Mapping[str, Any]) -> list[str]:
    share, margin = result["share"], result["smallest_margin"]
    return ["–" if share is None else f"{100 * share:.1f} %", "–" if margin is None else f"{margin:.3g}"]


def _print_survey(summary: Mapping[str, Any]) -> None:
    from xmckit.cli.tables import print_table

    rows = [
        [result["head"], result["scope"], result["rule"], "yes", *_share_and_margin(result)]
        if result["verifiable"]
        else [result["head"], "–", "–", "no", "–", "–"]
        for result in summary["results"]
    ]
    columns = ["head", "scope", "rule", "verifiable", "argmaxable", "smallest margin"]
    print_table(rows, columns, left=4, title=f"{summary['assignments']:,} label sets for each head")
    _print_why_not(summary["results"])
    _print_caveats(summary["results"])


def _print_never(result: Mapping[str, Any]) -> None:
    scope = "" if result["scope"] == "full" else " for these rows' candidates"
    click.echo(printable(f"{result['head']} can never output{scope}:"))
    for item in result["never"][:MOST_NAMED]:
        times = f" ({item['times']} times)" if item["times"] > 1 else ""
        missed = " – the shortlist leaves out some of them" if item["missed"] else ""
        click.echo(printable(f"  {{{', '.join(item['labels'])}}}{times}{missed}"))
    others = result["counts"]["unargmaxable"] - sum(item["times"] for item in result["never"][:MOST_NAMED])
    if others > 0:
        click.echo(f"  and {others} more label sets")


def _fail_under(percent: float, results: Sequence[Mapping[str, Any]], *, tolerant: bool) -> None:
    """VerificationError unless every head is above; a head of a run that cannot be verified is not."""
    from xmckit.errors import VerificationError

    below = []
    for result in results:
        if not result["verifiable"]:
            below += [] if tolerant else [f"{result['head']}: not verifiable: {result['why']}; --head picks another"]
        elif result["share"] is not None and 100 * result["share"] < percent:
            below.append(
                f"{result['head']}, {result['scope']}: {100 * result['share']:.2f} % of the label sets are proved "
                f"argmaxable, expected at least {percent:g} %"
            )
    if below:
        raise VerificationError("\n".join(below))
