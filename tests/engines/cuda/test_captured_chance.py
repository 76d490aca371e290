"""Attention, recurrent layers and random functions on the captured engine, and on every engine on a GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.problem import PLAIN, build_model, federation
from tests.contract.resuming import stop_after
from tests.contract.test_chance import LAYERS, TIMES, WIDTH, Sequences
from tests.engines.cuda.test_captured import captured, final, on_gpu, reference, relative_error
from tests.engines.recorded import on_the_cpu

from kedge.config.forward_check import with_checked_forward
from kedge.config.task import Task
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.engines.stack.stacked import Stacked
from kedge.nn.precision import DTYPES, Precision, computing_in, in_precision
from kedge.running.progress import Interrupted
from kedge.running.runner import run

KINDS = ["encoder layer", "decoder layer", "attention", "lstm", "gru", "F.dropout", "randn_like"]


def task_of(name: str, device: str, precision: Precision = "fp64") -> Task:
    """Three rounds of ragged clients, three of four at a time."""
    data = federation((3, 6, 9, 12), (TIMES, WIDTH)).to(device, DTYPES[precision])
    plain = in_precision(build_model(PLAIN, lambda: Sequences(LAYERS[name]())), precision)
    stage = Stage(PLAIN, 3, LocalTraining(2, 4, SGD(0.1), clip=1.0))
    model, some = with_checked_forward(plain, data), Participation(per_round=3)
    return Task((stage,), model, data, some, precision=precision)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder layer", "lstm", "F.dropout"])
def test_the_operators_that_are_captured_compute_what_the_reference_does(name: str) -> None:
    task = task_of(name, "cpu")
    with on_the_cpu(trace_operators=True):
        assert relative_error(reference(task), final(task, captured(task))) < 1e-10


@pytest.mark.parametrize("name", ["attention", "lstm", "gru", "rrelu", "F.dropout", "randn_like"])
def test_products_in_bfloat16_stay_near_on_a_cpu(name: str) -> None:
    exact, task = reference(task_of(name, "cpu")), task_of(name, "cpu", "bf16")
    assert relative_error(exact, reference(task)) < 5e-2
    assert relative_error(exact, final(task, Stacked(task.model, task.federation))) < 5e-2


class TestOnTheGPU:
    pytestmark = on_gpu

    @pytest.mark.parametrize("name", KINDS)
    def test_every_engine_agrees_with_the_reference(self, name: str) -> None:
        exact = reference(task_of(name, "cpu"))
        task = task_of(name, "cuda")
        for engine in (captured(task), Stacked(task.model, task.federation)):
            assert relative_error(exact, final(task, engine)) < 1e-10
        assert relative_error(exact, reference(task)) < 1e-10

    @pytest.mark.parametrize("name", ["encoder layer", "lstm", "F.dropout"])
    @pytest.mark.parametrize("precision", ["tf32", "bf16"])
    def test_fast_precisions_stay_near(self, name: str, precision: Any) -> None:
        exact, task = reference(task_of(name, "cpu")), task_of(name, "cuda", precision)
        assert relative_error(exact, final(task, captured(task))) < 5e-2

    @pytest.mark.parametrize("name", ["encoder layer", "lstm", "randn_like"])
    def test_a_resumed_run_ends_in_the_same_bits(self, name: str, tmp_path: Path) -> None:
        task = task_of(name, "cuda", "fp32")
        whole = final(task, captured(task))
        with pytest.raises(Interrupted), computing_in("fp32"):
            run(task, captured(task), tmp_path, observer=stop_after(2))
        again = final(task, captured(task), tmp_path)
        assert all(torch.equal(v, again[k]) for k, v in whole.items())

    def test_a_long_sequence_compiles(self) -> None:
        """Time steps are written out one by one."""
        task = task_of("lstm", "cuda")
        data = federation((6, 6), (30, WIDTH)).to("cuda", torch.float64)
        long = replace(task, federation=data, participation=Participation(per_round=2))
        onto = replace(long, federation=data.to("cpu", torch.float64))
        assert relative_error(reference(onto), final(long, captured(long))) < 1e-10
