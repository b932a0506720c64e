"""Plugins are found, isolated, blocked and explained."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from xmckit.errors import PluginError
from xmckit.hookspecs import API_VERSION, KINDS
from xmckit.registry import Registry, registry_from_environment

GOOD = """
    import xmckit
    from xmckit.popularity import PopularityHead

    class Mine(PopularityHead):
        pass

    @xmckit.hookimpl
    def xmckit_heads():
        yield xmckit.Component("{name}", __name__ + ":{target}", summary="a test"{more})
"""


OFFERS = "import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(): return [xmckit.Component({})]"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path in which installed distributions can be made, forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def install(site: Path, distribution: str, source: str) -> Path:
    """A distribution with one module of the same name and one entry point `plugin`."""
    module = site / f"{distribution.replace('-', '_')}.py"
    module.write_text(textwrap.dedent(source))
    info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[xmckit]\n{distribution}-plugin = {module.stem}\n")
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
        assert item.component.summary, item.described
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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise RuntimeError('no  luck\\ntoday')", "RuntimeError: no luck today"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        (good("popularity"), "head:popularity, a name that plugin 'xmckit'"),
        (good("x", target="Missing"), "defines no Missing"),
        (good("x", target="Mime"), "did you mean 'Mine'?"),
        (good("Not A Name"), "'Not A Name'"),
        (good("x", more=f", api_version={API_VERSION + 1}"), "upgrade xmckit"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_head(): return []", "did you mean 'xmckit_heads'?"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(what): return []", "what"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(): return [1]", "expected xmckit.Component"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(): return 1 / 0", "ZeroDivisionError"),
        (
            OFFERS.format("'x', 'nowhere.at_all:Thing'"),
            "there is no module nowhere.at_all",
        ),
        (OFFERS.format("'x', 'json'"), "package.module:attribute"),
    ],
)  # fmt: skip
def test_a_faulty_plugin_is_set_aside_alone(site, source, expected):
    module = install(site, "faulty", source)
    install(site, "zz-sound", good("sound"))
    registry = Registry()
    assert expected in problem_of(registry, "faulty")
    assert [plugin.file for plugin in registry.problems] == [str(module)]
    assert "sound" in registry.names("head")
    assert registry.names("reader") == Registry(allow=[]).names("reader")


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


def test_a_target_that_lacks_what_its_kind_promises(site):
    install(
        site,
        "thin",
        "import xmckit\nclass Thin:\n    def fit(self): ...\n@xmckit.hookimpl\ndef xmckit_heads():\n"
        "    yield xmckit.Component('thin', __name__ + ':Thin')\n",
    )
    with pytest.raises(
        PluginError, match=r"lacks predict\(\), features\(\), labels\(\), decision\(\), save\(\), Params"
    ):
        Registry().resolve("head", "thin")


def test_every_hook_is_documented_and_typed():
    from xmckit import hookspecs

    for hook in KINDS.values():
        function = getattr(hookspecs, hook)
        assert function.__doc__, hook
        assert function.__annotations__["return"] == "Iterable[Component]", hook
    declared = {name for name in vars(hookspecs) if name.startswith("xmckit_")}
    assert declared == set(KINDS.values())


def test_listing_plugins_imports_nothing_heavy():
    heavy = ["torch", "numba", "scipy", "sklearn", "pecos", "faiss", "matplotlib", "numpy", "pydantic"]
    code = (
        "import sys; from xmckit.registry import Registry; r = Registry(); assert not r.problems, r.problems;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
