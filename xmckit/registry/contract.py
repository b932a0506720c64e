"""Compare a component's target with the protocol of its kind. The registry and the conformance suite both use this."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from xmckit.kinds import KINDS, load_protocol


def protocol_methods(protocol: type) -> list[str]:
    """Return the names of a protocol's public methods."""
    return [name for name in vars(protocol) if callable(getattr(protocol, name)) and not name.startswith("_")]


def required_methods(kind: str) -> list[str]:
    """Return the methods of the kind's protocol; what can be saved can also be loaded."""
    methods = protocol_methods(load_protocol(KINDS[kind].protocol))
    return [*methods, "load"] if "save" in methods else methods


def missing_members(kind: str, target: Any) -> list[str]:
    """Return what the kind's protocol asks for and the target lacks: methods, and parameters of methods."""
    if kind == "command":
        return [] if hasattr(target, "main") else ["main(): a click command is expected"]
    protocol, methods = load_protocol(KINDS[kind].protocol), required_methods(kind)
    missing = [f"{name}()" for name in methods if not callable(getattr(target, name, None))]
    for name in protocol_methods(protocol):
        own = getattr(target, name, None)
        missing += [f"{keyword} in {name}()" for keyword in _unknown_keywords(getattr(protocol, name), own)]
    if not hasattr(target, "Params"):
        missing.append("Params")
    unwritten = sorted(getattr(target, "__abstractmethods__", ())) if inspect.isabstract(target) else []
    return missing + [f"{name}()" for name in unwritten]


def _unknown_keywords(method: Callable[..., Any], own: Any) -> list[str]:
    """Return the keyword-only parameters of a protocol's method that the target's own does not take."""
    try:
        wanted, taken = (list(inspect.signature(one).parameters.values()) for one in (method, own))
    except (TypeError, ValueError):  # no function, or one that is not written in Python
        return []
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        return []
    names = {parameter.name for parameter in taken}
    return [one.name for one in wanted if one.kind is one.KEYWORD_ONLY and one.name not in names]
