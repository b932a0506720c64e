"""Check gradients against finite differences in 64-bit floats, along random directions."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from xmckit.errors import counted
from xmckit.testing.assertions import require

STEP, TOLERANCE, DIRECTIONS = 1e-6, 1e-5, 3


def in_float64(value: Any) -> Any:
    """Return a copy of a module, a batch or targets with 64-bit floats."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {
            field.name: in_float64(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init
        }
        return dataclasses.replace(value, **parts)
    return value


def perturb(module: Any) -> Any:
    """Move the weights of a module a little: if all begin at 0, an activation may have a kink."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype), alpha=0.01)
    return module


def assert_gradient(value: Callable[[], torch.Tensor], parameters: Mapping[str, torch.nn.Parameter]) -> str:
    """Check the gradient of a number with respect to each parameter."""
    draw = torch.Generator().manual_seed(0)
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    require(bool(trained), "there is no parameter to train")
    gradients = torch.autograd.grad(value(), list(trained.values()), allow_unused=True)
    for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
        full = torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
        for _ in range(DIRECTIONS):
            direction = torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
            analytic, numeric = float((full * direction).sum()), _difference(value, parameter, direction)
            right = abs(analytic - numeric) <= TOLERANCE * max(1.0, abs(analytic), abs(numeric))
            require(
                right, f"the derivative of {name} along a direction is {analytic:.6g}, small steps give {numeric:.6g}"
            )
    return counted(len(trained), "parameter")


def _difference(value: Callable[[], torch.Tensor], parameter: torch.nn.Parameter, direction: torch.Tensor) -> float:
    around = []
    for step in (STEP, -2 * STEP, STEP):
        with torch.no_grad():
            parameter.add_(direction, alpha=step)
            around.append(float(value()))
    return (around[0] - around[1]) / (2 * STEP)
