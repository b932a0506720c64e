"""xmckit: extreme multi-label classification from plugins, with proofs of what a model can never output.

Public names are loaded when they are first used, so that `import xmckit` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from xmckit.context import Context as Context
    from xmckit.data.model import Dataset as Dataset
    from xmckit.data.model import Groups as Groups
    from xmckit.data.model import Matrix as Matrix
    from xmckit.data.model import Split as Split
    from xmckit.errors import DataError as DataError
    from xmckit.errors import PluginError as PluginError
    from xmckit.errors import RecipeError as RecipeError
    from xmckit.errors import StorageError as StorageError
    from xmckit.errors import UsageError as UsageError
    from xmckit.errors import VerificationError as VerificationError
    from xmckit.errors import XmckitError as XmckitError
    from xmckit.hookspecs import API_VERSION as API_VERSION
    from xmckit.hookspecs import OLDEST_API_VERSION as OLDEST_API_VERSION
    from xmckit.hookspecs import Component as Component
    from xmckit.hookspecs import hookimpl as hookimpl
    from xmckit.model import Model as Model
    from xmckit.model import load as load
    from xmckit.params import Configured as Configured
    from xmckit.params import DataPath as DataPath
    from xmckit.params import EncoderSpec as EncoderSpec
    from xmckit.params import HeadSpec as HeadSpec
    from xmckit.params import Params as Params
    from xmckit.params import Spec as Spec
    from xmckit.pipeline import run as run
    from xmckit.recipe import load_recipe as load_recipe
    from xmckit.records import Alternating as Alternating
    from xmckit.records import Evaluation as Evaluation
    from xmckit.records import LinearDecision as LinearDecision
    from xmckit.records import TopK as TopK
    from xmckit.records import Verdict as Verdict
    from xmckit.records import Verdicts as Verdicts
    from xmckit.registry import Registry as Registry
    from xmckit.registry import make_context as make_context
    from xmckit.runs import find_run as find_run

_WHERE = {
    "xmckit.context": ["Context"],
    "xmckit.data.model": ["Dataset", "Groups", "Matrix", "Split"],
    "xmckit.errors": [
        "DataError", "PluginError", "RecipeError", "StorageError", "UsageError", "VerificationError", "XmckitError",
    ],
    "xmckit.hookspecs": ["API_VERSION", "OLDEST_API_VERSION", "Component", "hookimpl"],
    "xmckit.model": ["Model", "load"],
    "xmckit.params": ["Configured", "DataPath", "EncoderSpec", "HeadSpec", "Params", "Spec"],
    "xmckit.pipeline": ["run"],
    "xmckit.records": ["Alternating", "Evaluation", "LinearDecision", "TopK", "Verdict", "Verdicts"],
    "xmckit.recipe": ["load_recipe"],
    "xmckit.registry": ["Registry", "make_context"],
    "xmckit.runs": ["find_run"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'xmckit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_MODULE_OF))
