"""The Triton programs by Triton's interpreter, on a CPU: that they read and write where they should.

The interpreter cannot multiply bfloat16. It is given copies of the programs in which float32 takes its place,
so how they round is not seen here, but on a GPU (test_convolution_cuda.py).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.interpreted import CONVOLUTIONS, FIRST

import kedge
from kedge.core.operators import has_triton

ROUNDED = ".to(tl.bfloat16)"
TRIVIAL = """
import os; os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
@triton.jit
def double(x, B: tl.constexpr):
    for tile in range(tl.program_id(0), 2, tl.num_programs(0)):
        at = tile * B + tl.arange(0, B)
        tl.store(x + at, tl.load(x + at) * 2)
x = torch.ones(8); double[(1,)](x, B=4); assert x.eq(2).all()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    if not has_triton():
        pytest.skip("no Triton")
    folder = tmp_path_factory.mktemp("interpreted")
    (folder / "trivial.py").write_text(TRIVIAL)
    if subprocess.run([sys.executable, folder / "trivial.py"], capture_output=True).returncode:
        pytest.skip("the interpreter of this Triton does not run here")  # that of 3.6 needs an older numpy
    shutil.copytree(Path(kedge.__file__).parent, folder / "kedge")
    for name in ("weigh_kernels", "first_kernels"):
        path = folder / "kedge" / "core" / f"{name}.py"
        text = path.read_text()
        assert ROUNDED in text
        path.write_text(text.replace(ROUNDED, ""))
    places = [str(folder), str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    work = [sys.executable, "-m", "tests.core.interpreted"]
    done = subprocess.run(
        work, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {case: far for line in done.stdout.splitlines() for case, far in json.loads(line).items()}


@pytest.mark.parametrize("case", [*CONVOLUTIONS, *FIRST])
def test_values_and_gradients_are_torchs(case: str, found: dict[str, list[float]]) -> None:
    assert len(found[case]) >= 4
    assert max(found[case]) < 5e-5  # weights' gradients leave out products of two small parts
