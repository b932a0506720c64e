import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from xmckit.errors import PluginError, RecipeError, nearest
from xmckit.params import Configured, DataPath, EncoderSpec, HeadSpec, InputPath, Params, Spec
from xmckit.recipe import Recipe, load_recipe, load_section, nested_specs_and_paths, parse_sweep, shipped_recipes
from xmckit.recipe.layers import LONGEST_CHAIN
from xmckit.recipe.schema import recipe_schema
from xmckit.recipe.text import leaves

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROPERTY = settings(
    deadline=None, derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class LinearParams(Params):
    width: int = Field(64, ge=1, description="Width of the vectors.")
    bias: bool = True


class DftParams(Params):
    active: int = Field(8, ge=1, description="Largest number of active labels.")
    slack: int = Field(0, ge=0)
    rate: float = Field(0.1, gt=0, le=1)
    encoder: EncoderSpec = Spec(use="linear")
    second: EncoderSpec | None = None
    dropout: float | None = Field(None, ge=0, lt=1)
    mode: Literal["fft", "dense"] = "fft"


class EnsembleParams(Params):
    members: list[HeadSpec] = []
    byname: dict[str, HeadSpec] = {}


class BlockParams(Params):
    weight: float = 1.0
    idf: bool | None = None


class BlocksParams(Params):
    blocks: dict[str, BlockParams] = {}


class FilesParams(Params):
    path: DataPath
    more: list[DataPath] = []
    either: Annotated[list[Path], InputPath()] = []
    labels: DataPath | None = None


class SpanParams(Params):
    low: int = 0
    high: int = 1

    @model_validator(mode="after")
    def in_order(self):
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class DepthParams(Params):
    k: list[int] = [1]


class ForgetfulParams(Params):
    size: int | None = 3

    @model_validator(mode="before")
    @classmethod
    def none_for_zero(cls, values):
        return {"size": None} if values.get("size") == 0 else values


def fake(params=Params, **attributes):
    return type("Fake", (Configured,), {"Params": params, **attributes})


class FakeRegistry:
    """The part of a Registry that recipes use."""

    problems = plugins = ()

    def __init__(self):
        self.components = {
            "dataset": {"toy": fake(), "files": fake(FilesParams)},
            "featurizer": {"blocks": fake(BlocksParams), "tfidf": fake()},
            "label-preprocessor": {"eagle": fake(SpanParams)},
            "indexer": {
                "tree": fake(provides=frozenset({"shortlist", "clusters"})),
                "faiss": fake(provides=frozenset({"shortlist", "rebuild"})),
            },
            "head": {
                "dft": fake(DftParams, needs=frozenset({"shortlist"})),
                "xrlinear": fake(needs=frozenset({"clusters"})),
                "popularity": fake(needs=frozenset()),
                "ensemble": fake(EnsembleParams, needs=frozenset()),
                "forgetful": fake(ForgetfulParams, needs=frozenset()),
            },
            "encoder": {"linear": fake(LinearParams)},
            "metric": {"ranking": fake(DepthParams), "sets": fake()},
            "verifier": {"argmax": fake()},
            "executor": {"threads": fake(), "serial": fake()},
        }
        self.broken = {}

    def names(self, kind):
        return sorted([*self.components[kind], *(name for of, name in self.broken if of == kind)])

    def resolve(self, kind, name):
        if (kind, name) in self.broken:
            raise PluginError(self.broken[kind, name])
        if name not in self.components[kind]:
            raise PluginError(f"no {kind} named '{name}'{nearest(name, self.names(kind))}")
        return self.components[kind][name]

    def component(self, kind, name):
        return SimpleNamespace(component=SimpleNamespace(name=name, summary=f"the {name} {kind}"))


MINIMAL = '[data]\nuse = "toy"\n[head]\nuse = "dft"\n'


@pytest.fixture
def registry():
    return FakeRegistry()


@pytest.fixture
def load(tmp_path, monkeypatch, registry):
    """Write files into an empty working folder and load the first of them."""
    monkeypatch.chdir(tmp_path)

    def write_and_load(text, *sets, **others):
        for name, content in {"recipe": text, **others}.items():
            mode = "wb" if isinstance(content, bytes) else "w"
            with open(tmp_path / f"{name}.toml", mode, encoding=None if mode == "wb" else "utf-8") as stream:
                stream.write(content)
        return load_recipe("recipe.toml", sets=sets, registry=registry)

    return write_and_load


@pytest.fixture
def mistakes(load):
    def mistakes_of(text, *sets, **others):
        with pytest.raises(RecipeError) as raised:
            load(text, *sets, **others)
        assert all("\n" not in mistake for mistake in raised.value.mistakes)
        return raised.value.mistakes

    return mistakes_of


# -- what a recipe says ----------------------------------------------------------------------------------------------


def test_a_minimal_recipe_is_completed_with_defaults(load):
    recipe = load(MINIMAL)
    assert (recipe.name, recipe.seed, recipe.validation, recipe.workers) == ("recipe", 0, 0.1, 0)
    (features,) = recipe.features
    assert (recipe.executor.use, features.use, features.kind) == ("threads", "blocks", "featurizer")
    assert recipe.labels == recipe.index == ()
    assert recipe.verify is None
    assert [metric.use for metric in recipe.score.metrics] == ["ranking", "sets"]
    assert (recipe.score.k, recipe.score.top, recipe.score.propensity) == ((1, 3, 5), 100, None)
    assert recipe.score.baseline.use == "popularity"
    (head,) = recipe.heads
    assert (head.kind, head.use, head.name, head.extra) == ("head", "dft", "dft", {})
    assert head.params == {
        "active": 8,
        "slack": 0,
        "rate": 0.1,
        "encoder": {"use": "linear", "width": 64, "bias": True},
        "mode": "fft",
    }


def test_nested_components_are_completed_wherever_they_are(load):
    text = """
        [data]
        use = "toy"
        [head]
        use = "ensemble"
        members = [{use = "dft", second = {use = "linear", width = 3}}]
        [head.byname.x]
        use = "popularity"
    """
    (head,) = load(text).heads
    (member,) = head.params["members"]
    assert member["second"] == {"use": "linear", "width": 3, "bias": True}
    assert member["encoder"]["width"] == 64
    assert nested_specs_and_paths(EnsembleParams, head.params, FakeRegistry())[0] == [
        ("head", "dft"),
        ("encoder", "linear"),
        ("encoder", "linear"),
        ("head", "popularity"),
    ]


def test_repeated_sections_have_names_and_heads_their_indexes(load):
    text = """
        [data]
        use = "toy"
        [[index]]
        use = "tree"
        [[index]]
        use = "tree"
        name = "second"
        [[head]]
        use = "dft"
        [[head]]
        use = "xrlinear"
        index = ["second"]
        [verify]
        use = "argmax"
        assignments = "train"
    """
    recipe = load(text)
    assert [index.name for index in recipe.index] == ["tree", "second"]
    assert [head.extra for head in recipe.heads] == [{"index": ["tree", "second"]}, {"index": ["second"]}]
    assert recipe.verify.extra == {"assignments": "train", "most": 1000}


def test_metrics_take_the_depths_of_score_unless_they_have_their_own(load):
    recipe = load(
        MINIMAL + "[score]\nk = [1, 10]\n[[score.metrics]]\nuse = 'ranking'\n[[score.metrics]]\nuse = 'sets'\n"
    )
    assert [metric.params for metric in recipe.score.metrics] == [{"k": [1, 10]}, {}]
    assert str(recipe.origin(("score", "metrics", 0, "k"))) == "recipe.toml:6"
    own = load(MINIMAL + "[score.metrics]\nuse = 'ranking'\nk = [2]\n")
    assert [metric.params for metric in own.score.metrics] == [{"k": [2]}]


def test_false_turns_off_what_is_optional(load):
    recipe = load(MINIMAL + "[verify]\nuse = 'argmax'\n", "verify=false", "score.baseline=false", "score.metrics=[]")
    assert recipe.verify is None
    assert recipe.score.baseline is None
    assert recipe.score.metrics == ()


@pytest.mark.parametrize("value", ['"amazon"', "[0.5, 1]"])
def test_propensity_is_a_family_or_a_pair(load, value):
    propensity = load(MINIMAL, f"score.propensity={value}").score.propensity
    assert propensity in ("amazon", (0.5, 1.0))


def test_the_name_is_safe_as_a_folder(tmp_path, registry):
    for file, name in {"my recipe.toml": "my-recipe", "..odd.toml": "odd", "ü.toml": "recipe"}.items():
        (tmp_path / file).write_text(MINIMAL)
        assert load_recipe(tmp_path / file, registry=registry).name == name


# -- origins, text, round trip ---------------------------------------------------------------------------------------


def test_every_value_knows_where_it_was_written(load):
    recipe = load(
        'extends = "base.toml"\n[head]\nslack = 3\n',
        "head.encoder.width=7",
        base='seed = 5\n[data]\nuse = "toy"\n\n[head]\nuse = "dft"\nslack = 1\nactive = 2\n',
    )
    origins = {path: str(recipe.origin(path)) for path, _ in leaves(recipe.resolved())}
    assert origins["seed",] == "base.toml:1"
    assert origins["head", 0, "use"] == "base.toml:6"
    assert origins["head", 0, "active"] == "base.toml:8"
    assert origins["head", 0, "slack"] == "recipe.toml:3"
    assert origins["head", 0, "encoder", "width"] == "--set head.encoder.width=7"
    assert origins["head", 0, "rate"] == origins["workers",] == "default"
    shown = recipe.to_toml(with_origins=True).splitlines()
    assert "slack = 3  # recipe.toml:3" in shown
    assert "width = 7  # --set head.encoder.width=7" in shown
    assert tomllib.loads("\n".join(shown)) == recipe.resolved()
    assert list(recipe.sources) == ["base.toml", "recipe.toml"]
    assert recipe.text.startswith("extends")


def names():
    return st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)


def texts():
    return st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)


HEADS = st.one_of(
    st.fixed_dictionaries(
        {"use": st.just("dft")},
        optional={
            "slack": st.integers(0, 2**63 - 1),
            "rate": st.floats(1e-300, 1.0),
            "dropout": st.floats(0, 0.99),
            "second": st.fixed_dictionaries({"use": st.just("linear")}, optional={"width": st.integers(1, 9)}),
            "mode": st.sampled_from(["fft", "dense"]),
        },
    ),
    st.fixed_dictionaries(
        {"use": st.just("ensemble")}, optional={"members": st.lists(st.just({"use": "dft", "slack": 1}), max_size=2)}
    ),
)
FEATURES = st.fixed_dictionaries(
    {"use": st.just("blocks")},
    optional={"blocks": st.dictionaries(texts(), st.just({"weight": 2.0}), max_size=2), "name": names()},
)
DOCUMENTS = st.fixed_dictionaries(
    {"data": st.just({"use": "toy"}), "head": st.lists(HEADS, min_size=1, max_size=3)},
    optional={
        "title": texts(),
        "description": texts(),
        "seed": st.integers(0, 2**31),
        "validation": st.floats(0, 0.999),
        "features": st.one_of(FEATURES, st.lists(FEATURES, min_size=1, max_size=3)),
        "index": st.lists(names(), unique=True, max_size=2).map(
            lambda given: [{"use": "tree", "name": name} for name in given]
        ),
        "score": st.fixed_dictionaries(
            {},
            optional={
                "k": st.lists(st.integers(1, 100), min_size=1, max_size=3, unique=True),
                "propensity": st.sampled_from(["amazon", [0.5, 2.5]]),
                "baseline": st.just(False),
            },
        ),
        "verify": st.just({"use": "argmax", "most": 3}),
    },
)


def test_a_nested_table_without_use_changes_the_default_component(load):
    assert load(MINIMAL, "head.encoder.width=7").heads[0].params["encoder"] == {
        "use": "linear",
        "width": 7,
        "bias": True,
    }


@PROPERTY
@given(document=DOCUMENTS)
def test_a_recipe_written_as_toml_loads_to_an_equal_recipe(load, document):
    for position, head in enumerate(document["head"]):
        head["name"] = f"head-{position}"
    if isinstance(views := document.get("features"), list):
        for position, view in enumerate(views):
            view["name"] = f"view-{position}"
        document["head"] = [
            *document["head"],
            *({"use": "dft", "name": view["name"], "features": view["name"]} for view in views),
        ]
    recipe = load(tomli_w.dumps(document))
    resolved = recipe.resolved()
    assert resolved["head"][0]["use"] == document["head"][0]["use"]
    assert tomllib.loads(recipe.to_toml()) == resolved
    assert tomllib.loads(recipe.to_toml(with_origins=True)) == resolved
    again = load("seed = 99", recipe=recipe.to_toml())
    assert again == recipe
    assert again.resolved() == resolved == json.loads(json.dumps(resolved))


# -- extends and --set -----------------------------------------------------------------------------------------------


def test_tables_merge_and_another_use_replaces(load):
    base = MINIMAL + 'slack = 4\n[head.encoder]\nuse = "linear"\nwidth = 9\n'
    merged = load('extends = "base.toml"\n[head]\nactive = 3\n', base=base).heads[0]
    assert (merged.params["slack"], merged.params["active"], merged.params["encoder"]["width"]) == (4, 3, 9)
    replaced = load('extends = "base.toml"\n[head]\nuse = "xrlinear"\n', base=base).heads[0]
    assert (replaced.use, replaced.params) == ("xrlinear", {})


def test_a_list_replaces_a_list_and_a_table_merges_onto_a_list_of_one(load, mistakes):
    two = '[data]\nuse = "toy"\n[[head]]\nuse = "dft"\nslack = 1\n[[head]]\nuse = "popularity"\n'
    child = 'extends = "base.toml"\n[[head]]\nuse = "xrlinear"\n'
    assert [head.use for head in load(child, base=two).heads] == ["xrlinear"]
    one = '[data]\nuse = "toy"\n[[head]]\nuse = "dft"\nslack = 1\n'
    assert load('extends = "base.toml"\n[head]\nactive = 2\n', base=one).heads[0].params["slack"] == 1
    (mistake,) = mistakes('extends = "base.toml"\n[head]\nslack = 2\n', base=two)
    assert mistake == "recipe.toml:3: head.slack: there are 2 of head; say which: head.0.slack"
    assert load(two, "head.0.slack=7").heads[0].params["slack"] == 7
    (mistake,) = mistakes(two, "head.2.slack=7")
    assert mistake == "--set head.2.slack=7: head.2: there is no such item (there are 0 to 1)"


def test_all_sets_are_one_child(load):
    both = [load(MINIMAL, *sets) for sets in (("head.use=xrlinear",), ("head.slack=3", "head.use=dft"))]
    assert both[0].heads[0].use == "xrlinear"
    assert both[1].heads[0].params["slack"] == 3
    assert (
        load(MINIMAL, "head.use=ensemble", 'head.byname."a b".use=dft').heads[0].params["byname"]["a b"]["slack"] == 0
    )
    assert load(MINIMAL, "seed=1", "seed=2").seed == 2
    assert load(MINIMAL, "head.0.slack=1", "head.active=2").heads[0].params["active"] == 2


@pytest.mark.parametrize(
    ("value", "title"),
    [
        ("word", "word"),
        ("a/b-c_d.e:f", "a/b-c_d.e:f"),
        ("~/données+1", "~/données+1"),
        ('"two words"', "two words"),
        ("'x=y'", "x=y"),
        ('""', ""),
    ],
)
def test_set_takes_toml_or_a_bare_word(load, value, title):
    assert load(MINIMAL, f"title={value}").title == title


@pytest.mark.parametrize("value", ["two words", "1 # x", "", "[1", "a\nb", "1\nseed = 2", "é!", "[" * 5000])
def test_set_refuses_what_it_could_misread_and_shows_how_to_quote(mistakes, value):
    (mistake,) = mistakes(MINIMAL, f"title={value}")
    assert "expected a TOML value" in mistake
    assert "--set 'title=\"" in mistake
    with pytest.raises(RecipeError):
        parse_sweep([f"title={value}"])


def test_set_shows_how_to_write_a_list(mistakes):
    assert mistakes(MINIMAL, "score.k=1, 3")[0].endswith("a list needs brackets: --set 'score.k=[1, 3]'")


def test_set_rejects_values_that_are_not_text(mistakes):
    assert mistakes(MINIMAL, "title=\udc80") == ["--set 'title=\\udc80': not UTF-8 text"]


@pytest.mark.parametrize("text", ["seed", "=1", "a..b=1", "a b=1", "extends=x"])
def test_set_needs_a_key(mistakes, text):
    (mistake,) = mistakes(MINIMAL, text)
    assert mistake.startswith(f"--set {text}: ")


def test_extends_finds_shipped_recipes_by_name_and_files_beside_the_file(load, tmp_path, registry):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "base.toml").write_text('extends = "../root.toml"\nseed = 2\n')
    (tmp_path / "root.toml").write_text(MINIMAL + "[score]\ntop = 7\n")
    recipe = load('extends = "deep/base.toml"\nname = "mine"\n')
    assert (recipe.name, recipe.seed, recipe.score.top) == ("mine", 2, 7)


def test_extends_mistakes(mistakes):
    circle = mistakes('extends = "b.toml"\n', b='extends = "recipe.toml"\n')
    assert circle == ["b.toml:1: extends: this recipe extends itself: recipe.toml → b.toml → recipe.toml"]
    assert mistakes('\nextends = "none.toml"\n') == ["recipe.toml:2: extends: none.toml: there is no such file"]
    assert mistakes("extends = 3\n") == ["recipe.toml:1: extends: expected the name or the path of a recipe"]
    assert "did you mean 'quickstart'?" in mistakes('extends = "quickstrat"\n')[0]
    links = {f"l{depth}": f'extends = "l{depth + 1}.toml"\n' for depth in range(LONGEST_CHAIN + 2)}
    assert f"at most {LONGEST_CHAIN}" in mistakes('extends = "l0.toml"\n', **links)[0]
    (broken,) = mistakes('extends = "b.toml"\n', b="a = \n")
    assert broken.startswith("recipe.toml:1: extends: b.toml:1: not TOML: ")


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_all_mistakes_at_once_with_file_line_key_expectation_and_nearest_name(mistakes):
    text = """seed = "abc"
validation = 1.0
sed = 3
[data]
use = "tyo"
[features]
use = "tfidf"
depth = 2
[head]
use = "dft"
slak = 3
rate = 0
mode = "fast"
active = 2.0
[head.encoder]
use = "linear"
widht = 3
bias = 1
[head.second]
width = 3
[score]
k = [0, "a"]
propensity = ["x", 1]
[verify]
use = "argmax"
most = true
"""
    assert mistakes(text, "workers=-1") == [
        'recipe.toml:1: seed: expected a whole number of 0 or more, found "abc"',
        "recipe.toml:2: validation: expected a number of 0 or more and below 1, found 1.0",
        "recipe.toml:3: sed: unknown key; did you mean 'seed'? (keys: name, title, description, seed, validation, "
        "refit, workers, extends, executor, data, features, labels, index, head, verify, score, ensemble, report)",
        "recipe.toml:5: data.use: no dataset named 'tyo'; did you mean 'toy'? (known: files, toy)",
        "recipe.toml:8: features.depth: unknown key (keys: use, name)",
        "recipe.toml:11: head.slak: unknown key; did you mean 'slack'? (keys: active, slack, rate, encoder, second, "
        "dropout, mode, use, features, index, name)",
        "recipe.toml:12: head.rate: expected a number above 0 and at most 1, found 0",
        "recipe.toml:13: head.mode: expected 'fft' or 'dense', found \"fast\"",
        "recipe.toml:14: head.active: expected a whole number of 1 or more, found 2.0",
        "recipe.toml:17: head.encoder.widht: unknown key; did you mean 'width'? (keys: width, bias, use)",
        "recipe.toml:18: head.encoder.bias: expected true or false, found 1",
        "recipe.toml:19: head.second.use: required: the name of an encoder (known: linear)",
        "recipe.toml:22: score.k.0: expected a whole number of 1 or more, found 0",
        'recipe.toml:22: score.k.1: expected a whole number of 1 or more, found "a"',
        "recipe.toml:23: score.propensity: expected 'wikipedia', 'amazon' or 'other' or a list of 2: a number above "
        '0, a number above 0, found ["x", 1]',
        "recipe.toml:26: verify.most: expected a whole number of 1 or more, found true",
        "--set workers=-1: workers: expected a whole number of 0 or more, found -1",
    ]


def test_a_general_key_below_a_section_is_sent_to_the_top(mistakes):
    (mistake,) = mistakes(MINIMAL + "seed = 3\n")
    assert mistake.startswith(
        "recipe.toml:5: head.seed: unknown key; 'seed' is a key of the recipe itself: write it above"
    )


def test_a_propensity_constant_of_zero_is_found_before_the_run(mistakes):
    assert "score.propensity" in mistakes(MINIMAL + "[score]\npropensity = [0, 1.5]\n")[0]


def test_what_is_required(mistakes):
    assert mistakes("") == [
        "recipe.toml: data: required: a table with `use`, the name of a dataset (known: files, toy)",
        "recipe.toml: head: required: at least one table with `use`, the name of a head (known: dft, ensemble, "
        "forgetful, popularity, xrlinear)",
    ]
    assert mistakes("[data]\nuse = 'files'\n[head]\nuse = 'dft'\n") == ["recipe.toml:1: data.path: required: a path"]


@pytest.mark.parametrize(
    "section", ["data", "features", "head", "labels", "index", "score", "report", "verify", "executor"]
)
def test_a_section_that_is_no_table(mistakes, section):
    (mistake,) = mistakes(MINIMAL, f"{section}=3")
    assert mistake.startswith(f"--set {section}=3: {section}: expected a table")
    (mistake,) = mistakes(MINIMAL, f"{section}=[3]")
    assert mistake.startswith(f"--set {section}=[3]: {section}: expected a table")


def test_odd_values_of_toml(mistakes):
    assert mistakes("title = 1979-05-27\nvalidation = nan\nseed = 0x" + "f" * 9000 + "\n" + MINIMAL) == [
        'recipe.toml:1: title: found a date or time; write it as text: "1979-05-27"',
        "recipe.toml:2: validation: expected a finite number, found nan",
        "recipe.toml:3: seed: expected a number of at most 64 bits",
    ]
    assert "not TOML" in mistakes("seed = " + "9" * 5000 + "\n" + MINIMAL)[0]


def test_countless_mistakes_are_counted(mistakes):
    lines = mistakes(MINIMAL + f"[score]\nk = {[0] * 1000}\n")
    assert lines[-1] == "… and 800 more mistakes"
    assert len(lines) == 201


def test_checks_between_values(mistakes):
    assert mistakes(MINIMAL + "[score]\nk = [1, 200]\n") == [
        "recipe.toml:6: score.k: top is 100, expected at least the largest k, 200"
    ]
    assert mistakes(MINIMAL + "[score]\nk = [1, 1]\n") == [
        "recipe.toml:6: score.k: expected each number once, found [1, 1]"
    ]
    assert mistakes(MINIMAL + "[labels]\nuse = 'eagle'\nlow = 3\n") == ["recipe.toml:5: labels: low is above high"]


def test_names_and_pairs(mistakes):
    text = (
        '[data]\nuse = "toy"\n' + '[[index]]\nuse = "faiss"\n' * 2 + '[[head]]\nuse = "xrlinear"\nindex = ["faiss"]\n'
    )
    assert mistakes(text) == [
        "recipe.toml:5: index.1.name: 'faiss' is the name of another [[index]]; give each its own",
        "recipe.toml:9: head.index: head 'xrlinear' needs an index with clusters, and 'faiss' (faiss) offers rebuild, "
        "shortlist",
    ]
    one = '[data]\nuse = "toy"\n[index]\nuse = "tree"\n[head]\nuse = "dft"\nindex = ["tre", "tree", "tree"]\n'
    assert mistakes(one) == [
        "recipe.toml:7: head.index.0: no index named 'tre'; did you mean 'tree'? (known: tree)",
        "recipe.toml:7: head.index.2: 'tree' is listed twice",
    ]
    assert "head.name: expected" in mistakes(MINIMAL, 'head.name="../x"')[0]


# -- features of several kinds ---------------------------------------------------------------------------------------

VIEWS = """[data]
use = "toy"
[[features]]
use = "blocks"
name = "words"
[[features]]
use = "tfidf"
[[index]]
use = "tree"
[[index]]
use = "tree"
name = "of-tfidf"
features = "tfidf"
[[head]]
use = "xrlinear"
[[head]]
use = "dft"
features = "tfidf"
"""


def test_indexes_and_heads_see_the_first_features_or_those_they_name(load):
    recipe = load(VIEWS)
    assert [section.name for section in recipe.features] == ["words", "tfidf"]
    assert [index.extra for index in recipe.index] == [{"features": "words"}, {"features": "tfidf"}]
    assert [head.extra for head in recipe.heads] == [
        {"features": "words", "index": ["tree"]},
        {"features": "tfidf", "index": ["of-tfidf"]},
    ]
    assert [recipe.seen_by(section) for section in (*recipe.index, *recipe.heads)] == ["words", "tfidf"] * 2
    again = load(recipe.to_toml())
    assert again == recipe
    assert again.resolved()["features"] == [
        {"use": "blocks", "name": "words", "blocks": {}},
        {"use": "tfidf", "name": "tfidf"},
    ]
    assert str(recipe.origin(("features", 1, "use"))) == "recipe.toml:7"


def test_one_table_of_features_is_as_it_always_was(load):
    plain = load(MINIMAL + "[features]\nuse = 'tfidf'\n[index]\nuse = 'tree'\n")
    assert plain.resolved()["features"] == {"use": "tfidf"}
    assert plain.index[0].extra == {}
    assert plain.heads[0].extra == {"index": ["tree"]}
    assert str(plain.origin(("features", "use"))) == "recipe.toml:6"
    assert '\n[features]\nuse = "tfidf"\n' in plain.to_toml()
    listed = load(MINIMAL + "[[features]]\nuse = 'tfidf'\n[index]\nuse = 'tree'\nfeatures = 'tfidf'\n")
    assert listed.resolved() == plain.resolved()
    named = load(MINIMAL + "features = 'words'\n[features]\nuse = 'tfidf'\nname = 'words'\n")
    assert named.heads[0].extra == {}
    assert named.resolved()["features"] == {"use": "tfidf", "name": "words"}
    assert load(named.to_toml()) == named


def test_features_are_layered_as_heads_are(load, mistakes):
    block = "features.0.blocks.a.weight=3.0"
    assert load(VIEWS, block).features[0].params["blocks"]["a"]["weight"] == 3
    one = MINIMAL + "[features]\nuse = 'blocks'\n"
    assert load(one, block).features[0].params["blocks"]["a"]["weight"] == 3
    assert load(MINIMAL, "features.blocks.a.weight=3.0").features[0].params["blocks"]["a"]["weight"] == 3
    child = 'extends = "base.toml"\n[features]\nname = "mine"\n'
    assert load(child, base=MINIMAL + "[features]\nuse = 'tfidf'\n").features[0].use == "tfidf"
    assert mistakes(child, base=VIEWS) == [
        "recipe.toml:3: features.name: there are 2 of features; say which: features.0.name"
    ]
    both = 'extends = "base.toml"\n[[features]]\nuse = "tfidf"\n[[features]]\nname = "words"\n'
    assert [section.use for section in load(both, "head.0.features=words", base=VIEWS).features] == ["tfidf", "blocks"]


def test_mistakes_with_several_features(mistakes):
    assert mistakes(
        VIEWS.replace('"dft"\nfeatures = "tfidf"', '"dft"\nfeatures = "tfdif"'), "index.0.features=word"
    ) == [
        "recipe.toml:18: head.1.features: no features named 'tfdif'; did you mean 'tfidf'? (known: words, tfidf)",
        "--set index.0.features=word: index.0.features: no features named 'word'; did you mean 'words'? (known: words, "
        "tfidf)",
    ]
    assert mistakes(MINIMAL, "head.features=words") == [
        "--set head.features=words: head.features: no features named 'words' (known: blocks)"
    ]
    assert mistakes(VIEWS + 'index = ["tree"]\n') == [
        "recipe.toml:19: head.1.index.0: index 'tree' sees the features 'words' and this head 'tfidf': expected an "
        "index that sees the same (those are of-tfidf)"
    ]
    assert mistakes(VIEWS, "features.1.name=words", "index.1.features=words", "head.1.features=words") == [
        "--set features.1.name=words: features.1.name: 'words' is the name of another [[features]]; give each its own"
    ]
    assert mistakes(VIEWS, "features=[]")[0].startswith("--set features=[]: features: required: at least one table")


def test_a_mistake_with_features_is_reported_once(mistakes):
    """What a wrong name, or features that have a mistake of their own, would lead to is not."""
    alone = [f"{key}.{place}.features=wrds" for key in ("index", "head") for place in (0, 1)]
    assert [mistake.split(": ")[1] for mistake in mistakes(VIEWS, *alone)] == [path.partition("=")[0] for path in alone]
    for wanted in ("tree", "of-tfidf"):
        (mistake,) = mistakes(VIEWS, "features.0.use=bloks", f'head.1.index=["{wanted}"]', f'head.0.index=["{wanted}"]')
        assert "no featurizer named 'bloks'" in mistake


def test_features_that_nothing_sees_are_a_mistake(load, mistakes):
    unseen = 'no index or head sees these: write features = "{}" into one, or leave them out'
    text = VIEWS.replace('features = "tfidf"\n', "")
    assert mistakes(text) == [f"recipe.toml:6: features.1: {unseen.format('tfidf')}"]
    first = [f"{key}.{place}.features=tfidf" for key in ("index", "head") for place in (0, 1)]
    assert mistakes(VIEWS, *first) == [f"recipe.toml:3: features.0: {unseen.format('words')}"]
    assert load(VIEWS + "[labels]\nuse = 'eagle'\n", *first).labels[0].use == "eagle"


def test_a_broken_plugin_is_the_plugins_fault_unless_the_recipe_is_wrong_too(load, registry, mistakes):
    registry.broken["head", "faulty"] = "head:faulty of plugin 'p' cannot be imported"
    with pytest.raises(PluginError, match=r"--set head.use=faulty: head.use: head:faulty of plugin 'p' cannot"):
        load(MINIMAL, "head.use=faulty")
    assert len(mistakes(MINIMAL, "head.use=faulty", "seed=x")) == 2


def test_plugins_set_aside_are_named_once_when_a_name_is_unknown(mistakes, registry):
    registry.problems = [SimpleNamespace(description="plugin 'p'", problem="it raised")]
    lines = mistakes(MINIMAL, "head.use=a", "data.use=b")
    assert lines[-1] == "plugin 'p' was set aside: it raised"
    assert len(lines) == 3


def test_parameters_that_toml_cannot_hold_are_refused(mistakes):
    (mistake,) = mistakes(MINIMAL, "head.use=forgetful", "head.size=0")
    assert "cannot be written as TOML and read back" in mistake


# -- input paths -----------------------------------------------------------------------------------------------------


def test_input_paths_are_found_beside_the_file_then_here_then_in_data_folders(tmp_path, monkeypatch, registry):
    for folder in ("recipes", "here", "data"):
        (tmp_path / folder).mkdir()
    for place in ("recipes/a", "here/a", "here/b", "data/b", "data/c"):
        (tmp_path / place).touch()
    monkeypatch.chdir(tmp_path / "here")
    file = tmp_path / "recipes" / "r.toml"
    file.write_text(
        '[data]\nuse = "files"\npath = "a"\nmore = ["b", "c"]\neither = ["a"]\n[head]\nuse = "popularity"\n'
    )
    recipe = load_recipe(file, registry=registry, data_roots=[tmp_path / "data"])
    folder = str(tmp_path)
    assert recipe.data.params == {
        "path": f"{folder}/recipes/a",
        "more": [f"{folder}/here/b", f"{folder}/data/c"],
        "either": [f"{folder}/recipes/a"],
    }
    assert (
        load_recipe(file, sets=["data.path=b", "data.more=[]"], registry=registry)
        .data.params["path"]
        .endswith("here/b")
    )
    labels = load_recipe(file, sets=["data.labels=b", "data.more=[]"], registry=registry).data.params["labels"]
    assert labels == f"{folder}/here/b"
    with pytest.raises(RecipeError) as raised:
        load_recipe(file, sets=["data.more=[]", 'data.path="none\\u0000"'], registry=registry)
    assert raised.value.mistakes == [
        f'--set data.path="none\\u0000": data.path: there is no "none\\u0000"; looked for {folder}/here/none\\x00'
    ]
    again = tmp_path / "again.toml"
    again.write_text(recipe.to_toml())
    assert load_recipe(again, registry=registry) == recipe


# -- files that are no recipes ---------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path, mistakes, registry):
    assert mistakes(b'seed = 1\ntitle = "\xff"\n') == ["recipe.toml:2: not UTF-8 text: found byte 0xff"]
    assert mistakes("seed = 1\nseed = 2\n") == ["recipe.toml:2: not TOML: cannot overwrite a value, found `seed = 2`"]
    assert "text needs quotes" in mistakes("title = words\n")[0]
    assert "recipe.toml:3: not TOML" in mistakes('a = 1\n\nb = "unclosed')[0]
    assert "not TOML" in mistakes(b"\x00\x01\x02")[0]
    assert "at most 262,144 bytes" in mistakes("#" * (1 << 18) + "\n")[0]
    for source, expected in {
        "missing.toml": "missing.toml: there is no such file",
        ".toml/": "there is no such file",
        "./": "this is a folder",
        "/dev/null": "/dev/null: this is not an ordinary file",
        "a\0b.toml": "cannot be read",
        "quickstrat": "no recipe named 'quickstrat'; did you mean 'quickstart'?",
        "x" * 5000 + ".toml": "cannot be read: File name too long",
    }.items():
        with pytest.raises(RecipeError) as raised:
            load_recipe(source, registry=registry)
        assert expected in str(raised.value)


def test_a_file_with_the_name_is_pointed_out(tmp_path, monkeypatch, registry):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(MINIMAL)
    with pytest.raises(RecipeError, match=r"no recipe named 'mine' .* write \./mine\.toml\."):
        load_recipe("mine", registry=registry)
    with pytest.raises(RecipeError, match=r"no recipe named '\.' \(recipes: [^)]*\)\.$"):
        load_recipe(".", registry=registry)


def test_a_folder_whose_name_is_no_text(tmp_path, registry):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    with pytest.raises(RecipeError, match=r"data\.path: the name of '.*caf\\udce9' is not UTF-8 text: rename"):
        load_section("data", {"use": "files", "path": str(folder)}, registry=registry)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path, registry):
    file = tmp_path / "r.toml"
    file.write_text(MINIMAL)
    file.chmod(0)
    with pytest.raises(RecipeError, match="cannot be read: Permission denied"):
        load_recipe(file, registry=registry)


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake(load):
    recipe = load(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert str(recipe.origin(("head", 0, "use"))) == "recipe.toml:4"


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "a = " + "[" * 400 + "]" * 400, ".".join("a" * 100_000) + " = 1", "[" + "a." * 999 + "a]"],
)
def test_deep_nesting_is_a_mistake(mistakes, text):
    (mistake,) = mistakes(text)
    assert mistake.startswith("recipe.toml")


SEED_TEXT = (
    MINIMAL + "[head.encoder]\nuse = 'linear'\nwidth = 3\n[score]\nk = [1, 3]\n[[index]]\nuse = 'tree'\n"
).encode()
SCRAPS = st.sampled_from(
    [
        b"[",
        b"]",
        b"=",
        b'"""',
        b"'''",
        b"\n",
        b"use",
        b"\xff",
        b"\x00",
        b"1e999",
        b"nan",
        b"-",
        b"{",
        b"}",
        b".",
        b"99999999999999999999",
    ]
)


@st.composite
def mutated(draw):
    content = bytearray(SEED_TEXT)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 12)))
        content[start:end] = draw(st.one_of(SCRAPS, st.binary(max_size=6), st.just(bytes(content[:20]))))
    return bytes(content)


def outcome(load, *arguments) -> tuple[Recipe | None, list[str]]:
    try:
        return load(*arguments), []
    except RecipeError as error:
        return None, error.mistakes


@settings(PROPERTY, max_examples=300)
@given(content=st.one_of(mutated(), mutated(), st.binary(max_size=60)))
def test_any_bytes_give_a_recipe_or_a_recipe_error(load, content):
    recipe, mistakes = outcome(load, content)
    if recipe is None:
        assert mistakes
        assert all(mistake.startswith("recipe.toml") for mistake in mistakes)
    else:
        assert load(recipe.to_toml()) == recipe


ODD_VALUES = st.recursive(
    st.one_of(
        st.sampled_from(["", "dft", "toy", "tree", "linear", True, False, 0, 1, -1, 2**70, 0.5, math.nan, math.inf]),
        st.dates(),
        texts(),
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["use", "name", "slack", "encoder", "0", "k", ""]), inner, max_size=3)
    ),
    max_leaves=5,
)
ODD_KEYS = st.sampled_from(
    ["use", "name", "seed", "index", "encoder", "metrics", "baseline", "k", "blocks", "x", "path"]
)


def replace_somewhere(document, data):
    """Put an odd value at a random place of a document."""
    place = document
    while True:
        inner = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from([*inner, None]))
        if key is None or not isinstance(place[key], (dict, list)):
            break
        place = place[key]
    if isinstance(place, list):
        place.append(data.draw(ODD_VALUES))
    else:
        place[data.draw(ODD_KEYS) if key is None else key] = data.draw(ODD_VALUES)


@settings(PROPERTY, max_examples=400)
@given(data=st.data())
def test_any_values_give_a_recipe_or_a_recipe_error(load, data):
    document = tomllib.loads(SEED_TEXT.decode())
    for _ in range(data.draw(st.integers(1, 3))):
        replace_somewhere(document, data)
    recipe, mistakes = outcome(load, tomli_w.dumps(document))
    if recipe is None:
        assert all(mistake.startswith("recipe.toml") and "\n" not in mistake for mistake in mistakes)
    else:
        assert load(recipe.to_toml()) == recipe


@settings(PROPERTY, max_examples=200)
@given(key=st.sampled_from(["seed", "head.slack", "head", "head.encoder", "a.b", ""]), value=st.text(max_size=12))
def test_any_set_gives_a_recipe_or_a_recipe_error(load, key, value):
    recipe, mistakes = outcome(load, MINIMAL, f"{key}={value}")
    assert (recipe is None) == bool(mistakes)
    assert not any("\n" in mistake for mistake in mistakes)


# -- sweeps ----------------------------------------------------------------------------------------------------------


def test_a_sweep_is_the_grid_with_the_first_option_slowest():
    assert parse_sweep(["head.slack=32,64", "seed=0,1,2"]) == [
        ["head.slack=32", "seed=0"],
        ["head.slack=32", "seed=1"],
        ["head.slack=32", "seed=2"],
        ["head.slack=64", "seed=0"],
        ["head.slack=64", "seed=1"],
        ["head.slack=64", "seed=2"],
    ]
    assert parse_sweep(["score.k=[1,2],[3]"]) == [["score.k=[1,2]"], ["score.k=[3]"]]
    assert parse_sweep(["head.use=bsl, dft"]) == [["head.use=bsl"], ["head.use=dft"]]
    assert parse_sweep([]) == [[]]


def test_all_mistakes_of_a_sweep():
    with pytest.raises(RecipeError) as raised:
        parse_sweep(["seed=1", "seed=2", "a=", "b", "c=1,,2", "d=[1", "e=x y", "f=1,1", "g=1,true"])
    starts = [mistake.split(":")[0] for mistake in raised.value.mistakes]
    assert starts == [f"--sweep {text}" for text in ("seed=2", "a=", "b", "c=1,,2", "d=[1", "e=x y", "f=1,1")]
    with pytest.raises(RecipeError, match="this grid has 1024 runs, expected at most 1000"):
        parse_sweep([f"k{axis}=0,1" for axis in range(10)])


# -- the schema ------------------------------------------------------------------------------------------------------


def accepts(schema, value, root):
    """The part of JSON Schema that recipe_schema uses."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        found = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        return accepts({**found, **{key: item for key, item in schema.items() if key != "$ref"}}, value, root)
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    kind = schema.get("type")
    if kind == "null" or (kind and not isinstance(value, kinds[kind])):
        return False
    if kind in ("integer", "number") and isinstance(value, bool):
        return False
    checks = [
        "const" not in schema or (value == schema["const"] and type(value) is type(schema["const"])),
        "enum" not in schema or value in schema["enum"],
        "anyOf" not in schema or any(accepts(option, value, root) for option in schema["anyOf"]),
        "oneOf" not in schema or sum(accepts(option, value, root) for option in schema["oneOf"]) == 1,
        all(accepts(part, value, root) for part in schema.get("allOf", ())),
        "not" not in schema or not accepts(schema["not"], value, root),
        "if" not in schema or not accepts(schema["if"], value, root) or accepts(schema["then"], value, root),
        "minimum" not in schema or value >= schema["minimum"],
    ]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        others = [item for key, item in value.items() if key not in properties]
        more = schema.get("additionalProperties", True)
        checks += [
            all(key in value for key in schema.get("required", ())),
            all(accepts(properties[key], item, root) for key, item in value.items() if key in properties),
            not others if more is False else more is True or all(accepts(more, item, root) for item in others),
        ]
    if isinstance(value, list) and "items" in schema:
        checks.append(all(accepts(schema["items"], item, root) for item in value))
    return all(checks)


def references(schema):
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for item in schema:
            yield from references(item)


def empty_choices(schema):
    """Places where JSON Schema wants at least one item."""
    if isinstance(schema, dict):
        yield from (key for key in ("allOf", "anyOf", "oneOf", "enum") if schema.get(key) == [])
        schema = list(schema.values())
    if isinstance(schema, list):
        for item in schema:
            yield from empty_choices(item)


def test_the_schema_is_valid_where_a_kind_has_no_component(registry):
    registry.components["verifier"] = registry.components["indexer"] = {}
    schema = recipe_schema(registry)
    assert list(empty_choices(schema)) == []
    minimal = tomllib.loads(MINIMAL)
    assert accepts(schema, {**minimal, "verify": False}, schema)
    assert not accepts(schema, {**minimal, "verify": {"use": "argmax"}}, schema)


def test_the_schema_accepts_recipes_and_refuses_mistakes(registry, load):
    schema = json.loads(json.dumps(recipe_schema(registry)))
    assert schema["$schema"].endswith("2020-12/schema")
    assert {reference.removeprefix("#/$defs/") for reference in references(schema)} <= set(schema["$defs"])
    complete = load(MINIMAL + "[index]\nuse = 'tree'\n[labels]\nuse = 'eagle'\n[verify]\nuse = 'argmax'\n").resolved()
    minimal = tomllib.loads(MINIMAL)
    nested = {"use": "ensemble", "members": [{"use": "dft", "encoder": {"use": "linear", "width": 2}}]}
    good = [minimal, complete, {"extends": "quickstart", "head": {"slack": 3}}, {**minimal, "head": nested}]
    good += [tomllib.loads(VIEWS), load(VIEWS).resolved()]
    bad = [
        {},
        {"data": {"use": "toy"}},
        {**minimal, "sed": 1},
        {**minimal, "seed": -1},
        {**minimal, "seed": "1"},
        {**minimal, "head": {"use": "dtf"}},
        {**minimal, "head": {"use": "dft", "slak": 3}},
        {**minimal, "head": [{"use": "dft", "mode": "fast"}]},
        {**minimal, "head": {"use": "dft", "encoder": {"use": "linear", "widht": 2}}},
        {**minimal, "head": {"use": "ensemble", "members": [{"use": "dft", "encoder": {"use": "conv"}}]}},
        {**minimal, "data": {"use": "toy", "name": "x"}},
        {**minimal, "features": [{"use": "blocks", "nam": "x"}]},
        {**minimal, "labels": {"use": "eagle", "features": "words"}},
        {**minimal, "verify": True},
        {**minimal, "score": {"kk": [1]}},
    ]
    assert [accepts(schema, document, schema) for document in good] == [True] * len(good)
    assert [accepts(schema, document, schema) for document in bad] == [False] * len(bad)


# -- the recipes that come with xmckit -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_shipped_recipes_are_right(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    needs_path = name in ("files", "python-source")
    recipe = load_recipe(name, sets=["data.path=mine"] if needs_path else [])
    assert recipe.name == name
    assert recipe.title
    (tmp_path / "again.toml").write_text(recipe.to_toml())
    assert load_recipe("again.toml") == recipe


def test_the_parameters_of_a_reader_are_checked_before_anything_is_read(tmp_path, registry):
    (tmp_path / "rows.svm").write_text("1 1:2\n")
    with pytest.raises(RecipeError, match=r"data\.reader\.zerobased: unknown key; did you mean 'zero_based'\?"):
        load_recipe("files", sets=[f"data.path='{tmp_path}/rows.svm'", "data.reader={use='svmlight', zerobased=true}"])
    recipe = load_recipe("files", sets=[f"data.path='{tmp_path}/rows.svm'", "data.reader='svmlight'"])
    assert recipe.resolved()["data"]["reader"]["use"] == "svmlight"
