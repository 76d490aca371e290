"""The specification's numbers (oracles.json), computed from the papers' equations without kedge."""

import json
from importlib.resources import files
from typing import Any

ORACLES: dict[str, Any] = json.loads(files("kedge.audit").joinpath("oracles.json").read_text())
