"""The report of a run: one HTML file that needs nothing else, and its pictures in `plots/`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from xmckit import __version__, store
from xmckit.relabelling import label_stages
from xmckit.report.facts import flat_facts
from xmckit.runs import Run

FIRST_TABLE = ("P", "nDCG", "PSP", "PSnDCG")
SCOPES = {"full": "full layer", "shortlist": "with each row's candidates"}


def write_report(run: Run) -> Path:
    """Write `plots/*.svg` and `report.html` of a finished run; return the report's path."""
    from xmckit.report.plots import PLOTS, draw

    curves = store.read_json(run.stage_folder("score") / "curves.json")
    curves["training"] = [head for head in store.read_json(run.path / "facts.json") if head["training"]]
    stages = run.manifest["stages"]
    (run.path / "plots").mkdir(exist_ok=True)
    pictures = []
    for name, (title, _) in PLOTS.items():
        if name == "training" and not curves["training"]:
            continue
        svg = draw(name, curves, stages)
        store.write_text(run.path / "plots" / f"{name}.svg", svg)
        pictures.append({"name": name, "title": title, "svg": svg})
    margins = draw_margins(run) if (run.path / "verdicts.json").is_file() else []
    path = run.path / "report.html"
    store.write_text(path, render(run, pictures, margins))
    return path


def draw_margins(run: Run) -> list[dict[str, str]]:
    """A picture of the margins for each head and scope that was verified, written to `plots/` too."""
    from xmckit.report.margins import margin_histogram

    pictures = []
    for result in store.read_json(run.path / "verdicts.json")["results"]:
        if result["verifiable"] and any(verdict["margin"] for verdict in result["verdicts"]):
            svg = margin_histogram(result["verdicts"])
            store.write_text(run.path / "plots" / f"margins-{result['head']}-{result['scope']}.svg", svg)
            pictures.append(
                {"title": f"{result['head']}, {SCOPES[result['scope']]}: margins of what it can produce", "svg": svg}
            )
    return pictures


def render(run: Run, pictures: list[dict[str, str]], margins: list[dict[str, str]]) -> str:
    """The page as text. Everything that comes from data is escaped; only our own SVG is put in as it is."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(percent=_percent, mebibytes=lambda value: f"{value / 2**20:,.0f}")
    template = environment.from_string(resources.files("xmckit.report").joinpath("report.html.j2").read_text("utf-8"))
    metrics = store.read_json(run.path / "metrics.json")
    data = store.read_json(run.stage_folder("data") / "description.json")
    return template.render(
        version=__version__,
        manifest=run.manifest,
        run_name=run.path.name,
        metrics=metrics,
        tables=metric_tables(metrics),
        pictures=[{**picture, "svg": Markup(picture["svg"])} for picture in pictures],
        margins=[{**picture, "svg": Markup(picture["svg"])} for picture in margins],
        examples=store.read_json(run.stage_folder("score") / "examples.json"),
        data={part: dict(flat_facts(data.pop(part))) for part in ("train", "test")},
        facts=flat_facts(data),
        label_stages=[_told(stage) | {"agreement": stage["agreement"]} for stage in label_stages(run)],
        heads=[_told(head) for head in store.read_json(run.path / "facts.json") if head["facts"]],
        verdicts=verdict_facts(run) if (run.path / "verdicts.json").is_file() else None,
        recipe=(run.path / "recipe.toml").read_text("utf-8"),
        resolved=(run.path / "resolved.toml").read_text("utf-8"),
    )


def _told(by: dict[str, Any]) -> dict[str, Any]:
    facts = dict(by["facts"])
    return {"name": by["name"], "warnings": facts.pop("warnings", []), "facts": flat_facts(facts)}


def verdict_facts(run: Run) -> dict[str, Any]:
    """What the report says about verdicts: the results as they are stored, with the names of labels."""
    from xmckit.data.saved import load_label_names

    verdicts: dict[str, Any] = store.read_json(run.path / "verdicts.json")
    proved = [result for result in verdicts["results"] if result["verifiable"]]
    names = load_label_names(run.stage_folder("data")) if any(result["never"] for result in proved) else []
    for result in proved:
        result["scope"] = SCOPES[result["scope"]]
        result["tried"] = result["replayed"]["yes"] + result["replayed"]["no"]
        for item in result["never"]:
            item["missed"] = [names[label] for label in item["missed"]]
            item["labels"] = [names[label] for label in item["labels"]]
    # Columns that only some verifiers and layers fill.
    verdicts["also"] = [key for key in ("ideal", "eps") if any(any(result[key].values()) for result in proved)]
    verdicts["caveats"] = {result["head"]: result["caveat"] for result in proved if result["caveat"]}
    verdicts["shortlisted"] = any(result["scope"] != "full layer" for result in proved)
    return verdicts


def metric_tables(metrics: dict[str, Any]) -> list[list[tuple[str, list[tuple[str, str]]]]]:
    """Metrics by family for the heads of two tables that fit a page: [[(P, [(P@1, @1), …]), …], …]."""
    families: dict[str, list[tuple[str, str]]] = {}
    for name in metrics["results"][0]["metrics"]:
        family, at, k = name.partition("@")
        families.setdefault(family if at else name, []).append((name, f"@{k}" if at else ""))
    first = [(family, families.pop(family)) for family in FIRST_TABLE if family in families]
    return [table for table in (first, list(families.items())) if table]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
