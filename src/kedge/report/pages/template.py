"""HTML pages from the Jinja templates in templates/; text is escaped unless a template marks it safe."""

from pathlib import Path
from typing import Any


def render(template: str, /, **values: Any) -> str:
    """The file `template` filled with `values`; a missing value is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # only pages need it

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)
