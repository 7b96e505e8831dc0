"""report.html: one file, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

    from indelible.report.figures import Figure
    from indelible.report.view import View


def render_html(view: View, figures: Sequence[Figure]) -> str:
    """The whole page. Everything in `view` is escaped here, by the template."""
    return render_template("template.html.j2", view=view, figures={figure.name: figure for figure in figures})


def render_template(name: str, **values: Any) -> str:
    """Fill one of the package's templates, with the style sheet inlined."""
    return _environment().get_template(name).render(style=_read("style.css"), **values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["data_uri"] = _data_uri
    return environment


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _read(name: str) -> str:
    return resources.files("indelible.report").joinpath(name).read_text(encoding="utf-8")
