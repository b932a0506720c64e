"""The checks of components of all kinds.

The module of a kind defines the checks of that kind and lists all of them in `CHECKS`, with `checks_in`.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ValidationError

from xmckit import exhibits
from xmckit.errors import XmckitError, counted
from xmckit.kinds import KINDS, load_protocol
from xmckit.protocols import HeadWithFacts, SupportsExhibits, SupportsFacts, SupportsSave
from xmckit.registry.contract import missing_members, required_methods
from xmckit.testing.assertions import (
    assert_no_pickle,
    differing,
    expect_error,
    require,
    require_none,
    skip_unless,
)
from xmckit.testing.fresh_process import SAVED, fresh_answers
from xmckit.testing.monitoring import monitor
from xmckit.testing.subjects import CheckFunction, Subject, covers, files_below


def methods_match_protocol(subject: Subject) -> str:
    require_none("lacks", missing_members(subject.kind, subject.cls))
    protocol = load_protocol(KINDS[subject.kind].protocol)
    for name in ("needs", "provides"):
        if name in getattr(protocol, "__annotations__", {}):
            value = getattr(subject.cls, name, None)
            sound = isinstance(value, frozenset) and all(isinstance(item, str) for item in value)
            require(sound, f"`{name}` is {value!r}, expected a frozenset of names")
    return counted(len(required_methods(subject.kind)), "method")


def parameters_are_documented(subject: Subject) -> str:
    params = _params(subject)
    silent = [path for path, field in _fields(params) if not (field.description or "").strip()]
    require(not silent, f"no description of {', '.join(silent)}: give each field Field(default, description=…)")
    return counted(len(params.model_fields), "parameter")


def unknown_parameters_are_rejected(subject: Subject) -> None:
    unknown = "no_such_parameter"
    with expect_error(f"the unknown parameter {unknown}", unknown, (ValidationError, XmckitError)):
        subject.cls(**{**subject.params, unknown: 1})


def wrong_types_are_rejected(subject: Subject) -> str:
    names = list(_params(subject).model_fields)
    skip_unless(bool(names), "it has no parameters")
    for name in names:
        with expect_error(f"any object for {name}", errors=(ValidationError, XmckitError)):
            subject.cls(**{**subject.params, name: object()})
    return counted(len(names), "parameter")


def same_seed_same_results(subject: Subject) -> None:
    again = subject.answers(subject.ready, subject.context)
    require_none("called again, it gives other", differing(subject.known, again))
    require_none("made again with the same seed, it gives other", differing(subject.known, subject.results()))


def workers_do_not_change_results(subject: Subject) -> None:
    for workers in (1, 3):
        results = subject.results(subject.context.using(workers=workers))
        require_none(f"with workers = {workers} it gives other", differing(subject.known, results))


def results_have_no_nan(subject: Subject) -> str:
    arrays = subject.known
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    require_none("NaN in", [name for name, array in floats.items() if np.isnan(array).any()])
    require(bool(arrays), "it gave no values")
    return counted(sum(array.size for array in arrays.values()), "value")


def inputs_are_unchanged(subject: Subject) -> None:
    require_none("changed", subject.activity.inputs)


def process_state_is_unchanged(subject: Subject) -> None:
    require_none("changed", subject.activity.state)


def no_network_access(subject: Subject) -> str:
    require_none("tried to reach", sorted(subject.activity.hosts))
    return _unmonitored_programs(subject)


def no_writes_outside_folder(subject: Subject) -> str:
    require_none("tried to write", sorted(subject.activity.writes))
    return _unmonitored_programs(subject)


def fresh_process_same_results(subject: Subject) -> str:
    with subject.save_to_temporary_folder() as folder:
        answers = fresh_answers(subject, folder)
        kept = len(files_below(folder / SAVED))
    require_none("in a fresh process, from what was saved, other", differing(subject.known, answers))
    return f"from {counted(kept, 'file')}" if kept and subject.loads else "constructed again: it loads nothing"


@covers(SupportsFacts, HeadWithFacts)
def facts_are_json(subject: Subject) -> str:
    facts = subject.facts()
    require(isinstance(facts, dict), f"facts() is a {type(facts).__name__}, expected values by name")
    assert_json(facts, "facts()")
    return counted(len(facts), "fact")


@covers(SupportsExhibits)
def exhibits_can_be_stored(subject: Subject) -> str:
    return counted(len(exhibits.stored(subject.ready, subject.cls.__name__)), "exhibit")


@covers(SupportsSave)
def saved_without_pickle(subject: Subject) -> str:
    with subject.save_to_temporary_folder() as folder:
        files = files_below(folder / SAVED)
        require(bool(files), "save wrote no file")
        for path in files:
            assert_no_pickle(path)
        with tempfile.TemporaryDirectory() as scratch, monitor(Path(scratch)) as seen:
            subject.restore(folder / SAVED)
    require_none("to load it unpickles", sorted(seen.pickles))
    return counted(len(files), "file")


def damaged_file_is_named(subject: Subject) -> str:
    with subject.save_to_temporary_folder() as folder:
        files = files_below(folder / SAVED)
        skip_unless(bool(files), "it saves nothing")
        for path in files:
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
            with expect_error(f"{path.name} cut in half", path.name):
                subject.restore(folder / SAVED)
            path.write_bytes(content)
    return counted(len(files), "file")


FIRST: tuple[CheckFunction, ...] = (
    methods_match_protocol,
    parameters_are_documented,
    unknown_parameters_are_rejected,
    wrong_types_are_rejected,
)
ALWAYS: tuple[CheckFunction, ...] = (
    results_have_no_nan,
    same_seed_same_results,
    workers_do_not_change_results,
    inputs_are_unchanged,
    process_state_is_unchanged,
    no_network_access,
    no_writes_outside_folder,
    fresh_process_same_results,
)
REPORTED: tuple[CheckFunction, ...] = (facts_are_json, exhibits_can_be_stored)
STORED: tuple[CheckFunction, ...] = (saved_without_pickle, damaged_file_is_named)


def checks_in(module: Mapping[str, Any], *shared: CheckFunction) -> tuple[CheckFunction, ...]:
    """Return the checks of the kind whose module has these globals: the common ones, its own, and `shared` ones.

    The checks of a module are its public functions whose only parameter is `subject`, in the order of the file.
    """
    functions = [value for value in module.values() if inspect.isfunction(value)]
    own = [one for one in functions if one.__module__ == module["__name__"] and not one.__name__.startswith("_")]
    checks = [one for one in own if list(inspect.signature(one).parameters) == ["subject"]]
    return (*FIRST, *checks, *shared, *ALWAYS)


def assert_json(value: Any, what: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} cannot be stored as JSON: {error}") from None


def _params(subject: Subject) -> type[BaseModel]:
    params = getattr(subject.cls, "Params", None)
    if isinstance(params, type) and issubclass(params, BaseModel):
        return params
    raise AssertionError(f"`Params` is {params!r}, expected a subclass of xmckit.Params")


def _fields(params: type[BaseModel], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the fields with their paths, also those of models inside them."""
    fields = []
    for name, field in params.model_fields.items():
        fields.append((f"{prefix}{name}", field))
        for inner in _models(field.annotation):
            fields += _fields(inner, f"{prefix}{name}.")
    return fields


def _models(annotation: Any) -> list[type[BaseModel]]:
    from xmckit.params import Spec

    if get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if issubclass(annotation, Spec) else [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _unmonitored_programs(subject: Subject) -> str:
    programs = sorted(set(subject.activity.programs))
    return f"not monitored: {', '.join(programs)}, which it started" if programs else ""
