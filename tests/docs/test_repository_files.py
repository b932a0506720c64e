"""The files for contributors agree with the project: supported versions of Python, tools of `make lint`."""

from __future__ import annotations

import re
import sys

import pytest
import yaml
from code_blocks import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.skipif(not (ROOT / ".github").is_dir(), reason="an installed xmckit has no workflow")


def read_yaml(name: str):
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_every_supported_python_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    supported = [text.rpartition(" :: ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert read_yaml(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python-version"] == supported


def test_the_workflow_runs_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in commands} == {"lint", "test", "docs"} <= targets


def test_pre_commit_runs_the_tools_of_make_lint():
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    (repo,) = read_yaml(".pre-commit-config.yaml")["repos"]
    tools = re.findall(r"\$\(BIN\)/([a-z-]+)(?: (check|format))?", recipe)
    hooks = [re.match(r"\.venv/bin/([a-z-]+)(?: (check|format))?", hook["entry"]) for hook in repo["hooks"]]
    assert [hook.groups(default="") for hook in hooks if hook] == tools


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_issue_forms_are_complete(name):
    form = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 2
    assert any(field.get("validations", {}).get("required") for field in form["body"])
