"""report.html: one file, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
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


def own_hashes(run: Path, manifest: Mapping[str, Any], own: Collection[str]) -> dict[str, str]:
    """sha256 of a run's files, those of the report (`own` and the figures) left out: it cannot hold its own."""
    from indelible.report import FIGURES
    from indelible.runs import hash_files

    hashes = manifest.get("files") or hash_files(run)
    return {name: made for name, made in hashes.items() if name not in own and not name.startswith(FIGURES)}


def write_pages(run: Path, html: str, markdown: str, figures: Sequence[Figure]) -> None:
    """Put a report into a run: both pages and the figures, in the place of older ones."""
    from indelible.report import FIGURES, REPORT_HTML, REPORT_MARKDOWN
    from indelible.runs import write_bytes

    for stale in (run / FIGURES).glob("*.png"):
        stale.unlink()
    for figure in figures:
        write_bytes(run / FIGURES / f"{figure.name}.png", figure.png)
    write_bytes(run / REPORT_HTML, html.encode())
    write_bytes(run / REPORT_MARKDOWN, markdown.encode())


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
