"""Name the component behind an error of a stage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from xmckit.errors import PluginError, XmckitError, component_at_fault, is_machine_error, one_line
from xmckit.registry import Registry, place_of


@contextlib.contextmanager
def explain_component_errors(registry: Registry) -> Iterator[None]:
    """Re-raise errors of components with the component's name, its plugin and the place in its code."""
    try:
        yield
    except Exception as error:
        explained = _explanation(error, registry)
        if explained is None:
            raise
        raise explained from error


def _explanation(error: Exception, registry: Registry) -> PluginError | None:
    component = component_at_fault(error)
    if component is None or is_machine_error(error):
        return None
    registered = registry.component(*component)
    if isinstance(error, PluginError):
        return PluginError(f"{error} ({registered.description}, {registry.locate(*component)})")
    at = None if isinstance(error, XmckitError) else place_of(error, registered)
    if at is None:  # about the data, or a mistake of the core
        return None
    what = f"{' '.join(component)} raised {one_line(error)}"
    return PluginError(f"{what} ({registered.description}, {at}); the run's log.txt has the traceback")
