"""kedge's command line, called inside the tests' own process."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from kedge.cli import app


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def kedge(*words: str | Path) -> Answer:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return Answer(result.exit_code, result.stdout, result.stderr)


SMALL = (
    "--set", "rounds=3", "--set", "training.epochs=1", "--set", "model.name=mlp",
    "--set", "engine.name=sequential",
)  # fmt: skip
