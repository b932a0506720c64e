"""What all pages share: one HTML file with its style and script inside, which asks nobody for anything.

The page's Content-Security-Policy allows this one style and this one script, by their checksums, and pictures that the
script itself makes to be saved: a text that became a tag by some mistake could neither run nor call out.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

from markupsafe import Markup

from xmckit import __version__
from xmckit.report.texts import number, percent, seconds, short, size, visible


def render(template: str, **values: Any) -> str:
    """The page that a template of this folder makes of `values`; everything that is not our own Markup is escaped."""
    style, script = _asset("style.css"), _asset("script.js")
    return str(
        _environment()
        .get_template(template)
        .render(
            version=__version__,
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
            **values,
        )
    )


@functools.cache
def _asset(name: str) -> str:
    return resources.files("xmckit.report").joinpath("assets", name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_checksum(style)}'; script-src '{_checksum(script)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _checksum(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@functools.cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters.update(percent=percent, number=number, seconds=seconds, size=size, short=short)
    return environment


def _finalized(value: Any) -> Any:
    """Every text that a template writes passes here; what is Markup is ours."""
    return visible(value) if type(value) is str else value
