"""`xmckit doctor`"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from xmckit.cli import invocation, options
from xmckit.errors import counted


@click.command()
@click.option(
    "--time-limit",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="Longest time for the import of a plugin or of one of its components.",
)
@options.json_option
def doctor(time_limit: float, as_json: bool) -> None:
    """Check this installation: versions, GPU, compiler cache, and the import of every component.

    Every distribution is imported in its own process, so that a plugin that hangs or crashes can be named. Exits with
    code 4 if a plugin is broken.
    """
    from xmckit.registry import forget_crashes, found_plugins, registry_from_environment
    from xmckit.registry.probe import probe_all
    from xmckit.runs import provenance

    files = invocation.this_call().files
    probes = probe_all(found_plugins(files), time_limit)
    forget_crashes([probe.plugin for probe in probes if not probe.fault])
    # Conflicts between plugins show only when they are loaded together.
    registry = registry_from_environment(files, faulty=[probe.faulty for probe in probes if probe.fault])
    broken = [(name, error) for probe in probes for name, error in probe.broken.items()]
    facts = {
        "machine": provenance.machine(),
        "versions": provenance.library_versions(),
        "gpu": _gpu(),
        "numba_cache_writable": _numba_cache_writable(),
        "set_aside": [{"plugin": plugin.description, "problem": plugin.problem} for plugin in registry.problems],
        "deprecated": [f"{one.description}: {at}: {text}" for one in registry.plugins for at, text in one.deprecated],
        "writes_on_import": [f"{probe.plugin.description}: {probe.written}" for probe in probes if probe.written],
        "unknown_names": registry.unknown_names,
        "broken_components": [{"component": name, "error": error} for name, error in broken],
        "components": sum(probe.components for probe in probes),
        "seconds": {probe.plugin.full_name: probe.seconds for probe in probes},
    }
    healthy = not registry.problems and not broken
    if as_json:
        options.print_json({**facts, "healthy": healthy})
    else:
        _print(facts, registry)
    if not healthy:
        sys.exit(4)


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"


def _numba_cache_writable() -> bool:
    """Return whether compiled kernels can be stored for the next process."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return os.access(os.environ["NUMBA_CACHE_DIR"], os.W_OK)
    try:
        with tempfile.TemporaryFile(dir=Path(__file__).parents[1]):  # the package xmckit
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
        click.echo(f"\n{options.styled('broken', fg='red')}: {item['error']}")
    for text in facts["writes_on_import"]:
        click.echo(f"\n{options.styled('writes to the terminal when it is imported', fg='yellow')}: {text}")
    print_faults(registry)
    broken = len(facts["broken_components"]) + len(facts["set_aside"])
    summary = options.styled(counted(broken, "problem") if broken else "no problems", fg="red" if broken else "green")
    click.echo(f"\n{counted(facts['components'], 'component')} checked, {summary}")
