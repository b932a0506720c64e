"""`xmckit verify`"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import print_report_table
from xmckit.errors import UsageError, VerificationError, counted, printable

if TYPE_CHECKING:
    from xmckit.recipe import Section

MOST_NAMED = 5  # label sets that can never be output, for each head


@click.command()
@click.argument("run", required=False)
@click.option("--head", "only", metavar="NAME", help="Verify only this head of the run.")
@click.option(
    "--assignments",
    metavar="test|train|predicted|FILE|random:K:COUNT",
    help="Label sets to verify: those of the data's rows, those that the head outputs for the test rows, those of a "
    "file (one JSON list of label names or numbers per line, or an .npz with a CSR matrix), or COUNT random sets of K "
    "labels.  [default: test]",
)
@click.option(
    "--most",
    default=1000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Largest number of label sets to verify.",
)
@click.option("--verifier", default="argmax", show_default=True, help="Verifier to use.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a parameter of the verifier.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Random seed.")
@options.workers_option
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="P",
    help="Exit with code 5 if less than P percent of the label sets are proved argmaxable for a head.",
)
@click.option("--registry", "survey", is_flag=True, help="Train and verify every registered head on synthetic data.")
@click.option("--labels", type=click.IntRange(min=2), help="With --registry: number of labels.  [default: 200]")
@click.option("--dim", type=click.IntRange(min=1), help="With --registry: `dim` or `slack` of the heads.  [default: 8]")
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
    """Prove which label sets the heads of RUN can output and which they can never output.

    RUN is a run folder, its name, the name of a recipe for its newest finished run, or a folder that `xmckit labels
    add` wrote. Verdicts and proofs are written to RUN/verify/…; `xmckit certificates check RUN` checks them.

    First the outputs of each head for some test rows are compared with its decision. If they differ by more than the
    rounding of its arithmetic, the head is not verifiable, and --fail-under fails.
    """
    if survey == (run is not None):
        raise click.UsageError("name a run (`xmckit runs ls` lists them), or give --registry; not both")
    if survey and only is not None:
        raise click.UsageError("--head chooses a head of a run; --registry verifies every head")
    if not survey and (labels is not None or dim is not None):
        raise click.UsageError("--labels and --dim need --registry; a run has its own labels and dim")
    section = _verifier_section(verifier, sets)
    if survey:
        summary = _survey(section, labels or 200, dim or 8, assignments, most, seed, workers)
    else:
        assert run is not None
        summary = _verify_run(run, Path(root), section, only, assignments or "test", most, seed, workers)
    if as_json:
        options.print_json(summary)
    elif survey:
        _print(summary, f"{counted(summary['assignments'], 'label set')} for each head")
    else:
        _print(summary, f"{summary['assignments']:,} of {counted(summary['of'], 'label set')}")
    if fail_under is not None:
        _fail_under(fail_under, summary["results"], tolerant=survey)


def _verifier_section(verifier: str, sets: tuple[str, ...]) -> Section:
    from xmckit.recipe import load_section
    from xmckit.recipe.layers import read_sets

    params = read_sets(sets).plain()
    if wrong := {"use", "assignments", "most"} & set(params):
        raise UsageError(f"--set is for the parameters of the verifier: for {', '.join(sorted(wrong))} use the options")
    return load_section("verify", {**params, "use": verifier}, registry=invocation.get_registry())


def _verify_run(
    name: str, root: Path, section: Section, only: str | None, assignments: str, most: int, seed: int, workers: int
) -> dict[str, Any]:
    from xmckit.model import Model, load
    from xmckit.runs import find_run, provenance
    from xmckit.runs.extensions import is_extension, read_extension
    from xmckit.verification.verify_run import verify_run

    registry, extension = invocation.get_registry(), read_extension(Path(name)) if is_extension(Path(name)) else None
    run = find_run(name, root) if extension is None else extension.run
    folder = run.path if extension is None else extension.path
    with invocation.terminal_progress() as progress:
        with progress("loading the model"):
            model = load(folder, workers=workers, registry=registry)
            assert isinstance(model, Model)
        return verify_run(
            run,
            model,
            registry.resolve("verifier", section.use)(**section.params),
            folder=folder,
            only=only,
            assignments=assignments,
            most=most,
            code=provenance.code_of(registry.component("verifier", section.use)),
            context=model.context.using(seed=seed, progress=progress),
        )


def _survey(
    section: Section, labels: int, dim: int, assignments: str | None, most: int, seed: int, workers: int
) -> dict[str, Any]:
    from xmckit.registry import make_context
    from xmckit.verification.survey import survey
    from xmckit.verification.verify_run import PREDICTED, given_label_sets, named_summary

    if assignments in ("test", "train"):
        raise UsageError(
            "--registry has rows of its own: leave out --assignments, or give predicted, a FILE or random:K:COUNT"
        )
    with invocation.terminal_progress() as progress:
        context = make_context(seed=seed, workers=workers, progress=progress, registry=invocation.get_registry())
        names = [str(label) for label in range(labels)]
        predicted = assignments == PREDICTED
        sets = None if assignments is None or predicted else given_label_sets(assignments, names, context)
        verifier = context.build("verifier", {"use": section.use, **section.params})
        summary = survey(verifier, labels, dim, sets, predicted=predicted, most=most, context=context)
        return named_summary(summary, names)


def _print(summary: Mapping[str, Any], title: str) -> None:
    from xmckit.report.verdict_section import caveats, rounding_notes, split_results, verdict_table

    proved, not_verifiable = split_results(summary["results"])
    if proved:
        print_report_table(verdict_table(proved), title)
    for line in not_verifiable:
        click.echo(printable(line))
    for result in proved if "folder" in summary else ():
        if result["never"]:
            _print_never(result)
    for line in [*rounding_notes(proved), *caveats(proved)]:
        click.echo(printable(line))
    if "folder" in summary:
        click.echo(
            "argmaxable: proved for some feature vector, not for some document; unargmaxable: proved for every input."
        )
        click.echo(f"proofs: {summary['folder']}")


def _print_never(result: Mapping[str, Any]) -> None:
    scope = "" if result["scope"] == "full" else " for these rows' candidates"
    click.echo(printable(f"{result['head']} can never output{scope}:"))
    for item in result["never"][:MOST_NAMED]:
        times = f" ({item['times']} times)" if item["times"] > 1 else ""
        missed = " – the shortlist leaves out some of them" if item["missed"] else ""
        rounded = " – output only by rounding" if item["by_rounding"] else ""
        click.echo(printable(f"  {{{', '.join(item['labels'])}}}{times}{missed}{rounded}"))
    others = result["counts"]["unargmaxable"] - sum(item["times"] for item in result["never"][:MOST_NAMED])
    if others > 0:
        click.echo(f"  and {counted(others, 'more label set')}")


def _fail_under(percent: float, results: Sequence[Mapping[str, Any]], *, tolerant: bool) -> None:
    """Raise VerificationError if a head is below; a head that cannot be verified is below unless `tolerant`.

    A head whose decision is not what it outputs is below in any case.
    """
    below = []
    for result in results:
        if "mismatch" in result:
            below.append(f"{result['head']}: not verifiable: {result['why']}")
        elif not result["verifiable"]:
            below += [] if tolerant else [f"{result['head']}: not verifiable: {result['why']}; --head picks another"]
        elif result["share"] is not None and 100 * result["share"] < percent:
            below.append(
                f"{result['head']}, {result['scope']}: {100 * result['share']:.2f} % of the label sets are proved "
                f"argmaxable, expected at least {percent:g} %"
            )
    if below:
        raise VerificationError("\n".join(below))
