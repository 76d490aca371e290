"""Compiled central training where PyTorch's compiler cannot use its own layout."""

from typing import Any

import pytest
import torch._inductor.config

from kedge.bench.networks.central import compiled_central
from kedge.bench.networks.setting import Setting
from kedge.engines.cuda.tracing import trace_program


@pytest.mark.slow
@pytest.mark.parametrize("message", ["expected size 2==2, stride 9==1 at dim=1", "something else"])
def test_central_training_takes_the_usual_layout_where_the_compiler_errs(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts: list[bool] = []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        layouts.append(torch._inductor.config.layout_optimization)
        if len(layouts) == 1:
            raise AssertionError(message)
        return trace_program(*arguments, **options)

    monkeypatch.setattr("kedge.bench.networks.central.trace_program", fail_once)
    setting = Setting("standard-cnn", 1, 1)
    data = setting.federation("cpu")
    task = setting.task(data, "fp32")
    arguments = task.model, task.stages[0].local, task.federation, 2, 1
    if "stride" not in message:
        with pytest.raises(AssertionError, match="something else"):
            compiled_central(*arguments)
        return
    assert compiled_central(*arguments)(0) == 2
    assert layouts[1:] == [False]
