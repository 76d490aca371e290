"""nn.LSTM, nn.GRU, nn.RNN and their cells as plain matrix products over time steps.

torch's recurrent operators do not run under `vmap` or tracing on a GPU, because they access the storage of
their inputs. torch.compile does not compile them, and they draw dropout from a global generator. On a CPU,
uncompiled and without dropout, the layers here call torch's operators.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from kedge.core.errors import RequestError
from kedge.nn.attention import is_stacked, is_traced
from kedge.nn.keyed import KeyedLayer, drop
from kedge.torch_private import has_dispatch_mode

State = tuple[Tensor, ...]  # h, and c of an LSTM
Step = Callable[[Tensor, State], State]  # (input gates, state) -> the next state

PACKED = (
    "a PackedSequence is not supported: its shape depends on the data. Pad the sequences (pad_sequence), "
    "pass the padded tensor to the recurrent layer, and select or mask the outputs by the lengths."
)


def time_step(mode: str, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None = None) -> Step:
    """The function that computes one time step of a layer; `mode` is that of nn.RNNBase."""

    def lstm(gates: Tensor, state: State) -> State:
        h, c = state
        i, f, g, o = (gates + F.linear(h, w_hh, b_hh)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (h if w_hr is None else F.linear(h, w_hr)), c

    def gru(gates: Tensor, state: State) -> State:
        (h,) = state
        r, z, n = gates.chunk(3, -1)
        h_r, h_z, h_n = F.linear(h, w_hh, b_hh).chunk(3, -1)
        n = torch.tanh(n + torch.sigmoid(r + h_r) * h_n)
        return (n + torch.sigmoid(z + h_z) * (h - n),)

    def rnn_tanh(gates: Tensor, state: State) -> State:
        return (torch.tanh(gates + F.linear(state[0], w_hh, b_hh)),)

    def rnn_relu(gates: Tensor, state: State) -> State:
        return (torch.relu(gates + F.linear(state[0], w_hh, b_hh)),)

    return {"LSTM": lstm, "GRU": gru, "RNN_TANH": rnn_tanh, "RNN_RELU": rnn_relu}[mode]


def uses_torch_operator(layer: nn.Module, x: Tensor) -> bool:
    """Whether to call torch's recurrent operator: on a CPU, and under vmap only if gradients are computed.

    It is not called under a dispatch mode or a tracer, such as `kedge cost`, which must see matrix products.
    """
    if x.device.type != "cpu" or is_traced() or has_dispatch_mode():
        return False
    tensors = [x, *layer.parameters()]
    tracked = torch.is_grad_enabled() and any(v.requires_grad for v in tensors)
    return tracked or not is_stacked(*tensors)


class Recurrent(KeyedLayer, nn.RNNBase):
    """The common forward pass of LSTM, GRU and RNN; a subclass has torch's layer as its second base."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        if isinstance(input, PackedSequence):
            raise RequestError(PACKED)
        drops = self.training and self.dropout > 0 and self.num_layers > 1
        if not drops and uses_torch_operator(self, input):
            return super().forward(input, hx)
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(0 if self.batch_first else 1)
        x = x.transpose(0, 1) if self.batch_first else x
        states = None if hx is None else hx if isinstance(hx, tuple) else (hx,)
        if states is not None and not batched:
            states = tuple(v.unsqueeze(1) for v in states)
        out, final = self.run_layers(x, self.initial_states(x, states), drops)
        if drops:
            self.end_call()
        out = out.transpose(0, 1) if self.batch_first else out
        if not batched:
            out = out.squeeze(0 if self.batch_first else 1)
            final = tuple(v.squeeze(1) for v in final)
        return out, final if self.mode == "LSTM" else final[0]

    def unrolled(self, x: Tensor) -> int:
        """The number of time steps that a compiled program contains for the input `x`."""
        steps = x.shape[1 if self.batch_first and x.dim() == 3 else 0]
        return steps * self.num_layers * (2 if self.bidirectional else 1)

    def initial_states(self, x: Tensor, states: State | None) -> State:
        """The initial states of all layers and directions: `states` after a check of its sizes, or zeros."""
        rows = self.num_layers * (2 if self.bidirectional else 1)
        sizes = [self.proj_size or self.hidden_size]
        if self.mode == "LSTM":
            sizes.append(self.hidden_size)
        if states is None:
            return tuple(x.new_zeros(rows, x.shape[1], size) for size in sizes)
        for state, size in zip(states, sizes, strict=True):
            self.check_hidden_size(state, (rows, x.shape[1], size))
        return states

    def run_layers(self, x: Tensor, states: State, drops: bool) -> tuple[Tensor, State]:
        """Run all layers over a sequence [T, N, inputs]: the last layer's outputs and all final states."""
        ends: list[State] = []
        suffixes = ["", "_reverse"] if self.bidirectional else [""]
        for layer in range(self.num_layers):
            outputs = []
            for suffix in suffixes:
                initial = tuple(v[len(ends)] for v in states)
                out, end = self.run_direction(x, initial, f"_l{layer}{suffix}", reverse=bool(suffix))
                outputs.append(out)
                ends.append(end)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
            if drops and layer < self.num_layers - 1:
                x = drop(x, self.dropout, self.words(x.shape, layer))
        return x, tuple(torch.stack(v) for v in zip(*ends, strict=True))

    def run_direction(self, x: Tensor, state: State, suffix: str, reverse: bool) -> tuple[Tensor, State]:
        """Run one layer in one direction: its outputs [T, N, outputs] and its final state.

        `suffix` ends the names of its parameters, as in weight_hh_l0_reverse.
        """

        def parameter(name: str) -> Any:
            return getattr(self, name + suffix, None)

        step = time_step(self.mode, parameter("weight_hh"), parameter("bias_hh"), parameter("weight_hr"))
        gates: Sequence[Tensor] = F.linear(x, parameter("weight_ih"), parameter("bias_ih")).unbind(0)
        outputs = []
        for input_gates in reversed(gates) if reverse else gates:
            state = step(input_gates, state)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if reverse else outputs), state


class KeyedLSTM(Recurrent, nn.LSTM):
    """nn.LSTM."""


class KeyedGRU(Recurrent, nn.GRU):
    """nn.GRU."""


class KeyedRNN(Recurrent, nn.RNN):
    """nn.RNN."""


class Cell(nn.RNNCellBase):
    """The common forward pass of LSTMCell, GRUCell and RNNCell."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if uses_torch_operator(self, input):
            return super().forward(input, hx)
        lstm = isinstance(self, nn.LSTMCell)
        zeros = input.new_zeros(*input.shape[:-1], self.hidden_size)
        state = (hx if lstm else (hx,)) if hx is not None else (zeros, zeros)[: 1 + lstm]
        nonlinearity = str(getattr(self, "nonlinearity", "")).upper()  # only nn.RNNCell has one
        mode = "LSTM" if lstm else f"RNN_{nonlinearity}" if nonlinearity else "GRU"
        gates = F.linear(input, self.weight_ih, self.bias_ih)
        new_state = time_step(mode, self.weight_hh, self.bias_hh)(gates, state)
        return new_state if lstm else new_state[0]


class PlainLSTMCell(Cell, nn.LSTMCell):
    """nn.LSTMCell."""


class PlainGRUCell(Cell, nn.GRUCell):
    """nn.GRUCell."""


class PlainRNNCell(Cell, nn.RNNCell):
    """nn.RNNCell."""
