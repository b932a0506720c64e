"""The files of a stored TorchHead besides its parameters: state, weights and indexes, all checked when read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from torch.overrides import TorchFunctionMode

from xmckit import store
from xmckit.components.indexes import named_index
from xmckit.context import Context
from xmckit.errors import DataError, PluginError, UsageError
from xmckit.nn.network import Network, Widened
from xmckit.nn.shortlist import Indexes
from xmckit.nn.training import Epoch
from xmckit.params import PARAMS

_NEW_TENSORS = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn)
WEIGHTS, STATE = "weights.safetensors", "state.json"


class HeadState(NamedTuple):
    """The content of state.json: `indexes` names the indexers, `known` counts the labels that each index lists."""

    sizes: dict[str, int]
    threshold: float
    history: tuple[Epoch, ...]
    indexes: list[str]
    known: list[int]


def save_head(
    folder: Path,
    network: Network,
    indexes: Indexes | None,
    sizes: dict[str, int],
    threshold: float,
    history: Sequence[Epoch],
) -> None:
    """Write state, weights and indexes into the folder that already holds the head's parameters."""
    state = {
        "sizes": sizes,
        "threshold": threshold,
        "history": [list(epoch) for epoch in history],
        "indexes": _save_indexes(indexes, folder),
        "known": [] if indexes is None else indexes.known,
    }
    store.write_json(folder / STATE, state)
    store.write_tensors(folder / WEIGHTS, {name: tensor.cpu() for name, tensor in network.state_dict().items()})


def read_state(folder: Path, size_names: set[str]) -> HeadState:
    """Read the state of a head; its sizes must include `size_names`."""
    path = folder / STATE
    state = store.read_json(path)
    sizes = state.get("sizes") if isinstance(state, dict) else None
    if not isinstance(sizes, dict) or not all(type(n) is int and 0 <= n < 1 << 48 for n in sizes.values()):
        raise store.damaged(path, "expected sizes as whole numbers")
    if not all(sizes.get(name, 1) for name in ("inputs", "labels", "width", "output")):
        raise store.damaged(path, "expected the sizes inputs, labels, width and output to be above 0")
    if not sizes.get("added", 0) < sizes.get("labels", 1):
        raise store.damaged(path, "expected fewer added labels than labels")
    threshold = state.get("threshold")
    if type(threshold) not in (int, float) or not abs(threshold) <= float(np.finfo(np.float32).max):
        raise store.damaged(path, "expected a finite number as threshold")
    history = state.get("history")
    if not isinstance(history, list) or not history or not all(map(_is_epoch, history)):
        raise store.damaged(path, "expected the epochs of the training, each with number, loss, score and seconds")
    indexes = state.get("indexes", [])
    if not isinstance(indexes, list) or not all(isinstance(name, str) for name in indexes):
        raise store.damaged(path, "expected the names of indexers")
    labels = sizes.get("labels", 0)
    known = state.get("known", [labels] * len(indexes))
    if not isinstance(known, list) or len(known) != len(indexes) or not all(_is_count(n, labels) for n in known):
        raise store.damaged(path, "expected the number of labels that each index knows")
    if missing := size_names - sizes.keys():
        raise store.damaged(path, f"expected the sizes {', '.join(sorted(missing))}")
    return HeadState(sizes, float(threshold), tuple(Epoch(*epoch) for epoch in history), indexes, known)


def load_network(
    folder: Path, new_network: Callable[[], Network], sizes: dict[str, int], check: Callable[[Any], None]
) -> Network:
    """Fill a new network with the stored weights; `check` raises DataError if its classifier cannot have them."""
    path = folder / WEIGHTS
    tensors = store.read_tensors(path)
    with _LimitedTensors(path.stat().st_size):
        network = _new_network(folder, new_network, sizes)
    _check_tensors(path, tensors, network)
    network.load_state_dict(tensors)
    try:
        classifier = network.classifier
        check(classifier.trained if isinstance(classifier, Widened) else classifier)
    except DataError as error:
        raise store.damaged(path, str(error)) from None
    return network


def _new_network(folder: Path, new_network: Callable[[], Network], sizes: dict[str, int]) -> Network:
    try:
        network = new_network()
        network.fold()
    except ValidationError as error:
        raise store.damaged(folder / PARAMS, f"the encoder's parameters: {store.reasons(error)}") from None
    except PluginError as error:
        raise PluginError(f"{folder / PARAMS}: {error}") from error
    except (RuntimeError, MemoryError, OverflowError, TypeError, ValueError, UsageError) as error:
        raise store.damaged(folder / STATE, f"no network of the sizes {sizes}: {error}") from None
    return network


class _LimitedTensors(TorchFunctionMode):
    """Check the sizes of new tensors before memory is allocated: those of a wrong state may ask for more than there is.

    torch's own device for this, "meta", takes a second to import.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _NEW_TENSORS:
            sizes = args[0] if args and isinstance(args[0], (tuple, list)) else args
            asked = math.prod(size for size in sizes if isinstance(size, int))
            if asked > max(self.size, store.current_limits().max_claim):
                raise ValueError(f"a tensor of {asked:,} numbers is not in a file of {self.size:,} bytes")
        return func(*args, **(kwargs or {}))


def _check_tensors(path: Path, tensors: dict[str, Any], network: Network) -> None:
    """Raise StorageError unless the tensors have the names, types and shapes of the network's, and finite values."""
    expected = network.state_dict()
    if tensors.keys() != expected.keys():
        raise store.damaged(path, f"expected the tensors {sorted(expected)}, found {sorted(tensors)}")
    for name, tensor in tensors.items():
        own = expected[name]
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            raise store.damaged(
                path, f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected {own.dtype} {tuple(own.shape)}"
            )
        if not bool(tensor.isfinite().all()):
            raise store.damaged(path, f"{name} holds a value that is not a finite number")


def load_indexes(state: HeadState, folder: Path, context: Context) -> Indexes | None:
    """Load the indexes that `save_head` saved; None for a head without indexes."""
    indexes = []
    for number, use in enumerate(state.indexes):
        try:
            context.resolve("indexer", use)
        except PluginError as error:
            raise PluginError(f"{folder / STATE}: {error}") from error
        indexes.append(named_index(context.load("indexer", use, folder / f"index-{number}"), use))
    return Indexes(indexes, state.sizes["labels"], state.known) if indexes else None


def _save_indexes(indexes: Indexes | None, folder: Path) -> list[str]:
    """Save each index in a folder of its own, and return the names of the components that can load them."""
    names = []
    for number, index in enumerate(indexes.all if indexes is not None else ()):
        name = getattr(index, "indexer", None)
        if not isinstance(name, str):
            raise UsageError(f"{type(index).__name__} lacks `indexer`, the name of the component that loads it")
        index_folder = folder / f"index-{number}"
        index_folder.mkdir()
        index.save(index_folder)
        names.append(name)
    return names


def _is_count(number: Any, most: int) -> bool:
    return type(number) is int and 0 < number <= most


def _is_epoch(stored: Any) -> bool:
    """Return whether `stored` is an `Epoch` as JSON holds it."""
    if not isinstance(stored, list) or len(stored) != len(Epoch._fields):
        return False
    number, loss, score, seconds = stored
    return type(number) is int and all(type(n) in (int, float) for n in (loss, score or 0, seconds))
