"""On a GPU, checkpoints can be copied to the host while graphs are captured."""

import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch

from kedge.engines.cuda.graphs import capture
from kedge.engines.cuda.host_copies import copy_stream
from kedge.running.folders import checkpoint
from kedge.running.recording.checkpoint_writer import write_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
STREAMS = 32  # of one priority: torch.cuda.Stream() hands them out in turn


def test_no_stream_on_which_graphs_are_captured_is_the_one_that_copies() -> None:
    others = [torch.cuda.Stream() for _ in range(2 * STREAMS)]  # type: ignore[no-untyped-call]
    handles = {stream.cuda_stream for stream in others}
    assert len(handles) == STREAMS
    assert copy_stream().cuda_stream not in handles


def test_checkpoints_are_written_while_a_graph_is_captured(tmp_path: Path) -> None:
    """More checkpoints than streams are written, all of them before the capture ends."""
    x = torch.arange(6.0, device="cuda").view(2, 3)
    state = checkpoint.State({"round": 1}, {"server": {"plain": x, "turned": x.t()}})
    ready = torch.cuda.current_stream().record_event()
    errors: list[BaseException] = []

    def write_all() -> None:
        try:
            for number in range(2 * STREAMS):
                write_checkpoint(tmp_path / "checkpoint", number, state, ready)
        except BaseException as error:
            errors.append(error)

    def work() -> torch.Tensor:
        doubled = x * 2
        thread = threading.Thread(target=write_all)
        thread.start()
        thread.join()
        return doubled + 1

    graph, result = capture(work, torch.cuda.graph_pool_handle(), lambda: x * 2 + 1)
    graph.replay()
    assert not errors
    assert result.tolist() == [[1, 3, 5], [7, 9, 11]]
    newest = tmp_path / f"checkpoint/{2 * STREAMS - 1:06d}/tensors.safetensors"
    found = safetensors.torch.load_file(newest)
    assert found["server/plain"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["server/turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
