"""`xmckit doctor`"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from xmckit.cli import common


@click.command()
@common.json_option
def doctor(as_json: bool) -> None:
    """Check this installation: versions, GPU, compiler cache, and that every component can be imported.

    Exit code 4 when a plugin is broken.
    """
    from xmckit import provenance

    registry = common.get_registry(tolerant=True)
    components = [_try_import(registry, item) for item in registry.all()]
    facts = {
        "machine": provenance.machine(),
        "versions": provenance.library_versions(),
        "gpu": _gpu(),
        "numba_cache_writable": _numba_cache_writable(),
        "set_aside": [{"plugin": plugin.described, "problem": plugin.problem} for plugin in registry.problems],
        "unknown_names": registry.unknown_names,
        "broken_components": [item for item in components if item["error"]],
        "components": len(components),
    }
    healthy = not facts["set_aside"] and not facts["broken_components"]
    if as_json:
        common.print_json({**facts, "healthy": healthy})
    else:
        _print(facts, registry)
    if not healthy:
        sys.exit(4)


def _try_import(registry: Any, item: Any) -> dict[str, str]:
    from xmckit.errors import PluginError

    error = ""
    try:
        registry.resolve(item.kind, item.component.name)
    except PluginError as fault:
        error = str(fault)
    return {"component": f"{item.kind}:{item.component.name}", "error": error}


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"


def _numba_cache_writable() -> bool:
    """Whether compiled kernels can be kept for the next process."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return os.access(os.environ["NUMBA_CACHE_DIR"], os.W_OK)
    spec = importlib.util.find_spec("xmckit")
    assert spec is not None
    assert spec.origin is not None
    try:
        with tempfile.TemporaryFile(dir=Path(spec.origin).parent):
            return True
    except OSError:
        return os.access(Path.home(), os.W_OK)  # numba then uses the user's cache folder


def _print(facts: dict[str, Any], registry: Any) -> None:
    from xmckit.cli.plugins import print_faults

    machine = facts["machine"]
    click.echo(
        f"{machine['python']} on {machine['system']}, {machine['processors']} processors ({machine['processor']})"
    )
    click.echo(f"GPU: {facts['gpu']}")
    click.echo("versions: " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    if not facts["numba_cache_writable"]:
        click.echo("numba cannot keep compiled code: set NUMBA_CACHE_DIR to a folder you can write to")
    for item in facts["broken_components"]:
        click.echo(f"\n{common.styled('broken', fg='red')}: {item['error']}")
    print_faults(registry)
    broken = len(facts["broken_components"]) + len(facts["set_aside"])
    summary = f"{broken} problems" if broken else "no problems"
    click.echo(f"\n{facts['components']} components checked, {common.styled(summary, fg='red' if broken else 'green')}")
