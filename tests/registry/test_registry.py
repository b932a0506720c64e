"""Plugins are found, isolated, blocked and explained."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from xmckit import hookspecs
from xmckit.errors import PluginError
from xmckit.hookspecs import API_VERSION, specifications
from xmckit.kinds import KINDS
from xmckit.registry import Registry, found_plugins, how_to_have, registry_from_environment
from xmckit.registry.locations import Location

GOOD = """
    import xmckit
    from xmckit.components.popularity import PopularityHead

    class Mine(PopularityHead):
        pass

    @xmckit.hookimpl
    def xmckit_heads():
        yield xmckit.Component("{name}", __name__ + ":{target}", summary="a test"{more})
"""


OFFERS = "import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(): return [xmckit.Component({})]"
GIVES = "import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(): return {}"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path in which installed distributions can be made, forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def install(site: Path, distribution: str, source: str, entries: str = "") -> Path:
    """A distribution with one module of the same name and one entry point `plugin`, unless `entries` are given."""
    module = site / f"{distribution.replace('-', '_')}.py"
    module.write_text(textwrap.dedent(source))
    info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[xmckit]\n{entries or f'{distribution}-plugin = {module.stem}'}\n")
    (info / "RECORD").write_text(f"{info.name}/entry_points.txt,,\n")
    return module


def good(name: str, target: str = "Mine", more: str = "") -> str:
    return GOOD.format(name=name, target=target, more=more)


def problem_of(registry: Registry, distribution: str) -> str:
    (plugin,) = [plugin for plugin in registry.plugins if plugin.distribution == distribution]
    return plugin.problem


def test_core_and_first_party_components_are_there():
    registry = Registry()
    assert registry.problems == []
    assert {"bsl", "popularity"} <= set(registry.names("head"))
    for item in registry.all():
        assert item.component.summary, item.description
        assert item.component.summary.endswith("."), item.component.summary


def test_every_first_party_component_keeps_its_protocol():
    registry = Registry()
    for item in registry.all():
        registry.resolve(item.kind, item.component.name)


def test_an_installed_plugin_is_used_and_located(site):
    module = install(site, "outside", good("outside-head"))
    registry = Registry()
    found = registry.component("head", "outside-head")
    assert (found.plugin.distribution, found.plugin.version) == ("outside", "1.2")
    where = registry.locate("head", "outside-head")
    assert Path(where.file) == module
    assert where.line == module.read_text().splitlines().index("class Mine(PopularityHead):") + 1
    assert registry.resolve("head", "outside-head").__name__ == "Mine"


HOOK = 8  # the line of GOOD's hook


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        ("x = 1\nraise RuntimeError('no  luck\\ntoday')", 2, "RuntimeError: no luck today"),
        ("import sys; sys.exit(3)", 1, "SystemExit: 3"),
        ("x = 1\n\ndef broken(:", 3, "SyntaxError"),
        ("def deep():\n    import json\n    json.loads('[')\ndeep()", 3, "JSONDecodeError"),
        ("import not_installed_library", 1, "No module named 'not_installed_library'"),
        ("from xmckit import Reranker", 1, "is the plugin for another one?"),
        (good("popularity"), HOOK, "head:popularity, a name that plugin 'xmckit'"),
        (good("x", target="Missing"), HOOK, "defines no Missing"),
        (good("x", target="Mime"), HOOK, "did you mean 'Mine'?"),
        (good("Not A Name"), HOOK, "'Not A Name'"),
        (good("x", more=f", api_version={API_VERSION + 1}"), HOOK, "upgrade xmckit"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_head(): return []", 2, "did you mean 'xmckit_heads'?"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(what): return []", 2, "what"),
        (GIVES.format("[1]"), 2, "its xmckit_heads() gave 1, expected xmckit.Component"),
        (GIVES.format("3"), 2, "gave 3, which is not iterable"),
        (GIVES.format("None"), 2, "gave None, expected xmckit.Component"),
        (GIVES.format("'mine'"), 2, "gave 'mine', which is not iterable as xmckit.Component"),
        (GIVES.format("xmckit.Component('x', 'json:loads')"), 2, "return a list of them, or yield each"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_heads():\n    return 1 / 0", 4, "ZeroDivisionError"),
        (GIVES.format("iter(int, 1)"), 2, "its xmckit_heads() gave more than 10000 components"),
        (OFFERS.format("'x', 'nowhere.at_all:Thing'"), 2, "there is no module nowhere.at_all"),
        (OFFERS.format("'x', 'json'"), 2, "package.module:attribute"),
    ],
)  # fmt: skip
def test_a_faulty_plugin_is_set_aside_alone(site, source, line, expected):
    module = install(site, "faulty", source)
    install(site, "zz-sound", good("sound"))
    registry = Registry()
    assert expected in problem_of(registry, "faulty")
    assert [(plugin.file, plugin.at) for plugin in registry.problems] == [(str(module), Location(str(module), line))]
    assert registry.problems[0].description == f"plugin 'faulty-plugin' (faulty 1.2, {module}:{line})"
    assert "sound" in registry.names("head")
    assert registry.names("reader") == Registry(allow=[]).names("reader")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("odd = nowhere_at_all", "names the module nowhere_at_all, which does not exist: install broken again"),
        ("odd = broken.sub", "names the module broken.sub, which does not exist"),
        ("odd = broken:thing", "names broken:thing, which does not exist"),
    ],
)
def test_an_entry_point_to_nothing(site, entry, expected):
    install(site, "broken", "", entries=f"\n{entry}")
    registry = Registry()
    assert expected in problem_of(registry, "broken")
    (plugin,) = registry.problems
    assert plugin.at == Location(str(site / "broken-1.2.dist-info" / "entry_points.txt"), 3)
    assert "bsl" in registry.names("head")


def test_a_module_that_is_registered_twice_counts_once(site):
    install(site, "twice", good("mine"), entries="one = twice\ntwo = twice")
    registry = Registry()
    assert [plugin.name for plugin in registry.problems] == ["two"]
    assert "registered already, as plugin 'one' (twice 1.2" in registry.problems[0].problem
    assert registry.resolve("head", "mine").__name__ == "Mine"


def test_a_file_that_is_named_twice_is_loaded_once(tmp_path):
    file = tmp_path / "named_twice.py"
    file.write_text(textwrap.dedent(good("mine")))
    registry = registry_from_environment([file, tmp_path / "." / ".." / tmp_path.name / file.name], {})
    assert not registry.problems
    assert [plugin.name for plugin in registry.plugins].count("named_twice") == 1


def test_two_plugins_that_offer_the_same_name(site):
    install(site, "first", good("mine"))
    module = install(site, "second", good("mine"))
    registry = Registry()
    problem = problem_of(registry, "second")
    assert "head:mine, a name that plugin 'first-plugin' (first 1.2" in problem
    assert "set XMCKIT_DISABLE_PLUGINS=first-plugin" in problem
    assert registry.problems[0].where == f"{module}:{HOOK}"
    assert registry.component("head", "mine").plugin.distribution == "first"
    assert Registry(disable=["first-plugin"]).component("head", "mine").plugin.distribution == "second"


def test_plugins_of_the_same_name_in_two_distributions(site):
    install(site, "first", good("one"), entries="same = first")
    install(site, "second", good("two"), entries="same = second")
    assert {"one", "two"} <= set(Registry().names("head"))
    assert Registry(allow=["second:same"]).names("head") == ["popularity", "two"]
    found = [plugin.full_name for plugin in found_plugins(environment={"XMCKIT_DISABLE_PLUGINS": "first:same,heads"})]
    assert "second:same" in found
    assert not {"first:same", "xmckit:heads"} & set(found)


def test_a_plugin_with_one_bad_component_offers_nothing(site):
    install(site, "half", good("fine") + "        yield xmckit.Component('bad', __name__ + ':Nope')\n")
    registry = Registry()
    assert "fine" not in registry.names("head")
    assert "defines no Nope" in problem_of(registry, "half")


def test_blocked_by_name_or_distribution(site):
    install(site, "outside", good("outside-head"))
    assert "outside-head" not in Registry(disable=["outside"]).names("head")
    assert "outside-head" not in Registry(disable=["outside-plugin"]).names("head")
    only = Registry(allow=["outside"])
    assert "outside-head" in only.names("head")
    assert "bsl" not in only.names("head")
    assert "popularity" in Registry(allow=[]).names("head"), "the core's own components are always there"
    assert Registry(allow=["outsid"]).unknown_names == ["outsid"]


def test_environment(site):
    install(site, "outside", good("outside-head"))

    def names(**environment):
        return registry_from_environment(environment=environment).names("head")

    assert {"bsl", "outside-head"} <= set(names())
    assert names(XMCKIT_PLUGINS="") == ["popularity"]
    assert {"bsl", "outside-head", "popularity"} <= set(names(XMCKIT_PLUGINS="outside, heads"))
    assert names(XMCKIT_PLUGINS="outside") == ["outside-head", "popularity"]
    assert "bsl" not in names(XMCKIT_DISABLE_PLUGINS="heads")


def test_a_disabled_first_party_plugin_can_be_replaced(site):
    install(site, "better", good("bsl"))
    assert "already has" in problem_of(Registry(), "better")
    replaced = Registry(disable=["heads"])
    assert replaced.component("head", "bsl").plugin.distribution == "better"


def test_a_plugin_from_a_file(tmp_path):
    file = tmp_path / "file_plugin_head.py"
    file.write_text(textwrap.dedent(good("from-file")))
    registry = Registry(files=[file])
    assert registry.component("head", "from-file").plugin.origin == "file"
    assert registry.resolve("head", "from-file").__module__ == "file_plugin_head"


@pytest.mark.parametrize(("name", "expected"), [("json.py", "exists already"), ("my-head.py", "not a Python name")])
def test_a_plugin_file_with_an_impossible_name(tmp_path, name, expected):
    (tmp_path / name).write_text("")
    (plugin,) = Registry(files=[tmp_path / name]).problems
    assert expected in plugin.problem


def test_a_missing_plugin_file(tmp_path):
    (plugin,) = Registry(files=[tmp_path / "nothing_here.py"]).problems
    assert "there is no file" in plugin.problem


def test_unknown_names_are_explained():
    registry = Registry()
    with pytest.raises(PluginError, match=r"no head named 'bls'; did you mean 'bsl'\?.*popularity"):
        registry.resolve("head", "bls")
    with pytest.raises(PluginError, match=r"no kind 'heads'; did you mean 'head'\?"):
        registry.component("heads", "bsl")


def test_a_target_that_fails_on_import_names_plugin_and_remedy(site):
    (site / "late.py").write_text("import not_installed_library\nclass Late: pass\n")
    install(
        site,
        "lazy",
        "import xmckit\n@xmckit.hookimpl\ndef xmckit_heads():\n"
        "    yield xmckit.Component('late', 'late:Late', requires='lazy[extra]')\n",
    )
    registry = Registry()
    assert "late" in registry.names("head")
    with pytest.raises(PluginError, match=r"head:late of plugin 'lazy-plugin' \(lazy 1.2.*pip install 'lazy\[extra\]'"):
        registry.resolve("head", "late")


@pytest.mark.parametrize(
    ("body", "lacks"),
    [
        (
            "class Thin:\n    def fit(self): ...",
            "predict(), features(), labels(), decision(), save(), load(), indexes in fit(), context in fit(), Params",
        ),
        ("from xmckit.nn import TorchHead\nclass Thin(TorchHead): ...", "loss()"),
    ],
)
def test_a_target_that_lacks_members_of_its_protocol(site, body, lacks):
    module = install(
        site,
        "thin",
        f"import xmckit\n{body}\n@xmckit.hookimpl\ndef xmckit_heads():\n"
        "    yield xmckit.Component('thin', __name__ + ':Thin')\n",
    )
    line = 1 + next(n for n, text in enumerate(module.read_text().splitlines()) if text.startswith("class Thin"))
    registry = Registry()
    with pytest.raises(PluginError) as caught:
        registry.resolve("head", "thin")
    assert f"head:thin of plugin 'thin-plugin' (thin 1.2, {module})" in str(caught.value)
    assert f"thin:Thin ({module}:{line}) lacks {lacks}" in str(caught.value)
    assert registry.resolve("head", "popularity")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise RuntimeError('late')", "RuntimeError: late"),
        ("import sys; sys.exit(2)", "SystemExit: 2"),
        ("x = (", "SyntaxError"),
        ("print('heavy'); raise OSError", "OSError"),
    ],
)
def test_a_component_that_cannot_be_imported_is_found_when_it_is_used(site, source, expected, capsys):
    package = site / "packed"
    package.mkdir()
    (package / "late.py").write_text(f"class Late: ...\n{source}\n")
    install(site, "lazy", OFFERS.format("'late', 'packed.late:Late'"))
    (package / "__init__.py").write_text("")
    registry = Registry()
    assert not registry.problems
    with pytest.raises(PluginError, match=r"head:late of plugin 'lazy-plugin' \(lazy 1.2") as caught:
        registry.resolve("head", "late")
    assert expected in str(caught.value)
    assert f"({package / 'late.py'}:2)" in str(caught.value)
    assert capsys.readouterr().out == ""
    assert registry.resolve("head", "popularity")


def test_blocked_plugins_are_named_when_a_component_is_missing():
    with pytest.raises(PluginError, match=r"no head named 'bsl'.*Not loaded: heads \(disabled by XMCKIT_DISABLE"):
        Registry(disable=["heads"]).resolve("head", "bsl")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("gone==2.0", "the distribution gone 2.0, which is not installed: pip install 'gone==2.0'"),
        ("there==2.0", "the distribution there 2.0 (installed is 1.2): pip install 'there==2.0'"),
        ("there==1.2", "the distribution there 1.2, which is installed"),
        ("--plugin mine.py", "a file of its own: give it with --plugin mine.py"),
    ],
)
def test_how_to_have_what_a_model_was_made_with(site, source, expected):
    install(site, "there", "")
    assert how_to_have(source) == expected


def test_what_is_imported_when_somebody_loses_patience_is_named(site):
    install(site, "endless", "import signal; signal.raise_signal(signal.SIGINT)")  # as Ctrl-C does
    with pytest.raises(
        KeyboardInterrupt, match=r"plugin 'endless-plugin' \(endless 1.2.*XMCKIT_DISABLE_PLUGINS=endless-"
    ):
        Registry()


def test_every_hook_is_documented_and_typed():
    declared = {name: hook for name, hook in vars(specifications()).items() if name.startswith("xmckit_")}
    assert declared.keys() == {kind.hook for kind in KINDS.values()}
    for hook, function in declared.items():
        assert function.__doc__, hook
        assert function.__annotations__["return"] == "Iterable[Component]", hook
        assert f"`{hook}`" in hookspecs.__doc__, hook


@pytest.mark.parametrize(
    "code",
    [
        "from xmckit.registry import Registry; r = Registry(); assert not r.problems, r.problems",
        "from click.testing import CliRunner; known = set(sys.modules)\n"
        "from xmckit.cli import xmckit; told = CliRunner().invoke(xmckit, ['--help']).output; assert 'argmax' in told",
    ],
)
def test_listing_plugins_and_commands_imports_nothing_that_takes_time(code):
    """Only xmckit's own modules, after those that it cannot do without.

    importlib.metadata is one of them, with email and pathlib behind it: it finds plugins however they are installed.
    `benchmarks/speed/startup.py` measures that `xmckit --help` still takes at most three times `import click`.
    """
    script = (
        "import sys, click, copy, dataclasses, importlib.metadata, inspect, pluggy\n"
        f"known = set(sys.modules)\n{code}\n"
        "print([name for name in set(sys.modules) - known if not name.startswith(('xmckit', 'click.'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
