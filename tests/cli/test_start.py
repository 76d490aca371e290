"""Help, version and shell completion appear at once: they load no PyTorch."""

import os
import subprocess
import sys
import time

import pytest
from tests.quick import every

from kedge.bench.networks.setting import NETWORKS
from kedge.bench.workloads import PEERS
from kedge.cli import COMMANDS
from kedge.cli.commands import bench, plot
from kedge.report.plots.drift import FIGURES

HEAVY = {"torch", "torchvision", "numpy", "matplotlib", "plotly", "pydantic", "safetensors"}
SECONDS = 5  # half a second on a quiet machine; importing PyTorch takes two


def start(*words: str, **environment: str) -> tuple[str, set[str], float]:
    """Output of the command, the heavy packages that it loads, and its seconds."""
    code = (
        "import sys\nfrom kedge.cli import main\nsys.argv[0] = 'kedge'\ntry:\n    main()\n"
        f"finally:\n    print('loaded', *({HEAVY!r} & sys.modules.keys()), file=sys.stderr)\n"
    )
    before = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )
    *_, last = ended.stderr.splitlines()
    assert last.startswith("loaded"), ended.stderr
    return ended.stdout, set(last.split()[1:]), time.perf_counter() - before


WORDS = ["--help", "--version", "", *(f"{name} --help" for name in COMMANDS)]


@pytest.mark.parametrize("words", every(4, WORDS))
def test_help_and_version_load_no_heavy_package(words: str) -> None:
    out, loaded, seconds = start(*words.split())
    assert "kedge" in out or "Usage" in out
    assert not loaded
    assert seconds < SECONDS


def test_names_in_help_texts_are_those_of_the_tables() -> None:
    assert tuple(figure.name for figure in FIGURES) == plot.FIGURES
    assert bench.NETWORKS.split(",") == list(NETWORKS)
    assert bench.PEERS.split(", ") == list(PEERS)
