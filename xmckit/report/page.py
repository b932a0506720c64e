"""Render a page: one HTML file that contains its style and its script and loads nothing.

The page's Content-Security-Policy allows this style and this script by their checksums, and images that the script
makes for saving. A text that became a tag by mistake could neither run nor send anything.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

from markupsafe import Markup

from xmckit import __version__
from xmckit.errors import shorten
from xmckit.report.texts import LONGEST_NAME, number, percent, visible


def render(template: str, **values: Any) -> str:
    """Fill a template of this folder; every value that is not Markup is escaped."""
    style, script = _asset("style.css"), _asset("script.js")
    sections: list[tuple[str, str]] = []

    def begin_section(id_: str, name: str) -> Markup:
        """Open a section, and list it in the navigation of the page."""
        sections.append((id_, name))
        return Markup('<section id="{}">').format(id_)

    shared = {
        "version": __version__,
        "sections": sections,
        "section": begin_section,
        "style": Markup(style),
        "script": Markup(script),
        "policy": f"default-src 'none'; style-src '{_checksum(style)}'; script-src '{_checksum(script)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'",
    }
    return str(_environment().get_template(template).render(**shared, **values))


@functools.cache
def _asset(name: str) -> str:
    return resources.files("xmckit.report").joinpath("assets", name).read_text("utf-8")


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
        # Templates pass every text through this; Markup is a subclass of str and stays as it is.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(percent=percent, number=number, shorten=_shorten)
    return environment


def _shorten(text: str, longest: int = LONGEST_NAME) -> str:
    return shorten(text, longest)
