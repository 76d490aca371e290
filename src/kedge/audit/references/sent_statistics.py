"""Check the batch norm statistics of the models with which FedNTD and MOON compare the training model.

FedNTD compares a client's outputs with those of the sent model, MOON also with those of the client's previous
model. Both models are in evaluation mode and use the statistics that the server sent, or the client's own if
statistics stay with clients. The statistics of the training model change in every local step, theirs do not:
a mistake shows from the second local step on. The reference is a federation of plain torch modules, trained
by torch.optim.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.audit.finding import Finding, compare_trees
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.problems import CLASSES, IMAGE, convolutional, convolutions, federation
from kedge.audit.training import ENGINES, train_all_clients
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.model import Statistics
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.nn.from_module import seeded

SIZES, ROUNDS, STEPS, RATE = (6, 9), 3, 3, 0.1
Outputs = tuple[Tensor, Tensor]  # features, logits
# Outputs of the training model, of the sent and of the previous model (None in round 1), labels -> loss term
Term = Callable[[Outputs, Outputs, Outputs | None, Tensor], Tensor]


def fedntd_term(now: Outputs, sent: Outputs, previous: Outputs | None, y: Tensor) -> Tensor:
    """FedNTD's term with β = 0.7 and τ = 2, without the logit of the label."""
    keep = torch.arange(CLASSES) != y[:, None]
    student, teacher = (out[1][keep].view(len(y), -1) / 2.0 for out in (now, sent))
    return 0.7 * 4.0 * F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")


def moon_term(now: Outputs, sent: Outputs, previous: Outputs | None, y: Tensor) -> Tensor:
    """MOON's term with μ = 0.7 and τ = 0.5."""
    if previous is None:
        return torch.zeros(())
    to_sent, to_previous = ((F.cosine_similarity(now[0], out[0]) / 0.5).exp() for out in (sent, previous))
    return -0.7 * (to_sent / (to_sent + to_previous)).log().mean()


def features_and_logits(network: nn.Module, x: Tensor) -> Outputs:
    """The input and the output of the network's last layer."""
    *body, head = network.children()
    features: Tensor = nn.Sequential(*body)(x)
    return features, head(features)


def with_parameters(network: nn.Module, parameters: Leaves) -> nn.Module:
    """A copy of `network` in evaluation mode, with other parameters and the same statistics."""
    other = copy.deepcopy(network).eval()
    other.load_state_dict(parameters, strict=False)
    return other


def train_client(
    network: nn.Module, previous: nn.Module | None, term: Term, statistics: Statistics, x: Tensor, y: Tensor
) -> nn.Module:
    """Train a copy of `network` for one round of a client whose last model was `previous`."""
    sent = copy.deepcopy(network).eval()
    if previous is not None and statistics == "local":
        sent.load_state_dict(dict(previous.named_buffers()), strict=False)
    before = with_parameters(sent, dict(previous.named_parameters())) if previous is not None else None
    training = copy.deepcopy(sent).train()
    optimizer = torch.optim.SGD(training.parameters(), RATE)
    for _ in range(STEPS):
        with torch.no_grad():
            sent_outputs = features_and_logits(sent, x)
            previous_outputs = features_and_logits(before, x) if before is not None else None
        outputs = features_and_logits(training, x)
        loss = F.cross_entropy(outputs[1], y) + term(outputs, sent_outputs, previous_outputs, y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
    return training


def train_plain_modules(term: Term, statistics: Statistics) -> dict[str, Leaves]:
    """Parameters and statistics of the server, and the statistics of each client if they are local."""
    data, network = federation(SIZES, IMAGE), seeded(lambda: convolutions().double(), 0)
    weights = [n / sum(SIZES) for n in SIZES]
    clients: list[nn.Module | None] = [None] * len(SIZES)
    for _ in range(ROUNDS):
        trained = []
        for previous, rows in zip(clients, data.clients, strict=True):
            x, y = data.prepare(data.pool.x[rows]), data.pool.y[rows]
            trained.append(train_client(network, previous, term, statistics, x, y))
        states = [float_state(module) for module in trained]
        mean = {k: sum(p * state[k] for p, state in zip(weights, states, strict=True)) for k in states[0]}
        network.load_state_dict(mean, strict=False)
        clients = list(trained)
    kept = trained if statistics == "local" else []
    return {
        "server": float_state(network),
        **{str(k): statistics_of(module) for k, module in enumerate(kept)},
    }


def float_state(network: nn.Module) -> Leaves:
    """Parameters and statistics, without batch norm's counters."""
    return {k: v.clone() for k, v in network.state_dict().items() if v.is_floating_point()}


def statistics_of(network: nn.Module) -> Leaves:
    """Running means and variances of batch norm."""
    return {k: v for k, v in network.named_buffers() if v.is_floating_point()}


def agrees_with_plain_modules(algorithm: Algorithm, term: Term, statistics: Statistics) -> Finding:
    """Parameters and statistics after three rounds of three steps, on both engines."""
    model, data = convolutional(algorithm, statistics=statistics), federation(SIZES, IMAGE)
    local, expected, actual = LocalTraining(STEPS, 1000, SGD(RATE)), train_plain_modules(term, statistics), {}
    for name, make in ENGINES.items():
        engine = make(model, data)
        server = train_all_clients(algorithm, local, ROUNDS, data, model, engine).server
        buffers = {k: memory["buffers"] for k, memory in engine.save().items() if memory["buffers"]}
        actual[name] = {"server": {**server.shared, **server.buffers}, **buffers}
    return compare_trees(dict.fromkeys(actual, expected), actual, expected, TOLERANCE)
