"""The tutorial of docs/hospitals.md, with fewer rounds."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.federation.processes import Processes, ended

pytest.importorskip("flwr")

from kedge.engines.flower.certificates import initialize

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_three_hospitals_train_together(tmp_path: Path) -> None:
    page = (ROOT / "docs/hospitals.md").read_text(encoding="utf-8")
    experiment = re.search(r"```toml\n(# study.toml\n.*?)```", page, flags=re.DOTALL)
    assert experiment
    (tmp_path / "study.toml").write_text(
        experiment[1].replace("rounds = 20", "rounds = 4").replace("every = 5", "every = 2")
    )
    example = ROOT / "examples/04_three_hospitals.py"
    subprocess.run([sys.executable, str(example)], check=True, cwd=tmp_path, capture_output=True)
    initialize(tmp_path / "keys", ["127.0.0.1"], 3)
    with Processes(tmp_path) as processes:
        names = ",".join(f"digit {number}" for number in range(10))
        security = ["--credentials", "keys/server"]
        server = processes.serve("study.toml", "--json", "--labels", names, security=security)
        hospitals = [
            processes.join(
                number,
                *("--data", f"hospital-{name}-train.npz", "--validation", f"hospital-{name}-validation.npz"),
                *(["--share-metrics"] if name != "c" else []),
                security=["--credentials", f"keys/client-{number}"],
            )
            for number, name in enumerate("abc")
        ]
        assert ended(server, *hospitals) == [0, 0, 0, 0]
    lines = [json.loads(line) for line in (tmp_path / "runs/study/history.jsonl").read_text().splitlines()]
    assert lines[-1]["distributed.global.accuracy"] > 0.5
    shared = json.loads((tmp_path / "runs/study/clients.jsonl").read_text().splitlines()[-1])
    assert [value is None for value in shared["distributed.local.accuracy"]] == [False, False, True]
    assert "the labels mean the same as" in processes.log("join-1")
    assert len(list((tmp_path / "memory-2").glob("*/metrics.jsonl"))) == 1
