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
from tests.nn.gpu.interpreted import CONVOLUTIONS, FIRST

import kedge
from kedge.nn.gpu.operators import has_triton

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


CASES = [*CONVOLUTIONS, *FIRST]
PARTS = 4  # each a process of its own, so that several workers share them


def far_from_torch(folder: Path, cases: list[str]) -> dict[str, list[float]]:
    """How far the programs' values and gradients are from torch's, by the interpreter."""
    shutil.copytree(Path(kedge.__file__).parent, folder / "kedge")
    for name in ("weight_gradient_kernels", "first_layer_kernels"):
        path = folder / "kedge" / "nn" / "gpu" / f"{name}.py"
        text = path.read_text()
        assert ROUNDED in text
        path.write_text(text.replace(ROUNDED, ""))
    places = [str(folder), str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    work = [sys.executable, "-m", "tests.nn.gpu.interpreted", *cases]
    done = subprocess.run(
        work, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {case: far for line in done.stdout.splitlines() for case, far in json.loads(line).items()}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_values_and_gradients_are_torchs(part: int, tmp_path: Path) -> None:
    if not has_triton():
        pytest.skip("no Triton")
    (tmp_path / "trivial.py").write_text(TRIVIAL)
    if subprocess.run([sys.executable, tmp_path / "trivial.py"], capture_output=True).returncode:
        pytest.skip("the interpreter of this Triton does not run here")  # that of 3.6 needs an older numpy
    cases = CASES[part::PARTS]
    found = far_from_torch(tmp_path, cases)
    assert [*found] == cases
    for case, far in found.items():
        assert len(far) >= 4, case
        assert max(far) < 5e-5, case  # weights' gradients leave out products of two small parts
