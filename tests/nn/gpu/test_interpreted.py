"""The Triton programs in Triton's interpreter, on a CPU: they read and write the right addresses.

The interpreter cannot multiply bfloat16, so it runs copies of the programs with float32 instead. Rounding is
tested on a GPU (test_convolution_cuda.py).
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
PARTS = 4  # each runs in a process of its own, so that several test workers share them


def interpreted_errors(folder: Path, cases: list[str]) -> dict[str, list[float]]:
    """The errors of values and gradients of each case, computed by interpreted.py with copies in `folder`."""
    shutil.copytree(Path(kedge.__file__).parent, folder / "kedge")
    for name in ("weight_gradient_kernels", "first_layer_kernels"):
        path = folder / "kedge" / "nn" / "gpu" / f"{name}.py"
        text = path.read_text()
        assert ROUNDED in text
        path.write_text(text.replace(ROUNDED, ""))
    paths = [str(folder), str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    work = [sys.executable, "-m", "tests.nn.gpu.interpreted", *cases]
    done = subprocess.run(
        work, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {case: errors for line in done.stdout.splitlines() for case, errors in json.loads(line).items()}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_values_and_gradients_are_torchs(part: int, tmp_path: Path) -> None:
    if not has_triton():
        pytest.skip("no Triton")
    (tmp_path / "trivial.py").write_text(TRIVIAL)
    if subprocess.run([sys.executable, tmp_path / "trivial.py"], capture_output=True).returncode:
        pytest.skip("the interpreter of this Triton does not run here")  # that of 3.6 needs an older numpy
    cases = CASES[part::PARTS]
    found = interpreted_errors(tmp_path, cases)
    assert [*found] == cases
    for case, errors in found.items():
        assert len(errors) >= 4, case
        assert max(errors) < 5e-5, case  # weight gradients leave out products of two small parts
