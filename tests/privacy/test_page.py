"""The page on differential privacy: its experiment resolves, its ε are right, its table is complete."""

import re
import tomllib
from pathlib import Path

import pytest

from kedge.algorithms import METHOD_REGISTRY
from kedge.config.assemble import assemble
from kedge.config.experiment import resolve
from kedge.privacy.accountant import Accountant
from kedge.privacy.settings import Privacy

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()


def test_the_experiment_of_the_page_is_private() -> None:
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    task = assemble(resolve(tomllib.loads(table) | {"name": "private"}))
    assert task.privacy == Privacy(0.5, 1.0)
    epsilon = Accountant(task.privacy, task.participation.probability(200)).epsilon(task.rounds)
    assert f"ε = {epsilon:.1f}" in " ".join(PAGE.split())


@pytest.mark.parametrize("noise", [0.6, 1.0, 2.0])
def test_the_table_of_epsilon_has_the_accountant_s_values(noise: float) -> None:
    values = [f"{Accountant(Privacy(1.0, noise), q).epsilon(200):.1f}" for q in (0.01, 0.05, 0.2, 1.0)]
    assert f"| {noise} | {' | '.join(values)} |" in PAGE


def test_the_page_has_every_method() -> None:
    table = PAGE.partition("## Method by method")[2].partition("\n## ")[0]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    named = {name for cell in first for name in re.findall(r"[a-z][\w-]+", re.sub(r"\(.*?\)", "", cell))}
    assert set(METHOD_REGISTRY) <= named
