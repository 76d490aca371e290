"""What a client compares itself with is evaluated with the batch-norm statistics of the round's start.

Rounds of plain torch modules, trained by torch.optim: the model that was sent, and the client's previous one,
stand beside in evaluation mode with the statistics that were sent (or, where these stay with clients, with
those the client left), and do not move while the client's own do. From the second local step on it matters.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.audit.finding import Finding, agreed
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.problems import CLASSES, ENGINES, IMAGE, convolutional, convolutions, federation, trained
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.model import Statistics
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.nn.from_module import seeded

SIZES, ROUNDS, STEPS, RATE = (6, 9), 3, 3, 0.1
Out = tuple[Tensor, Tensor]  # features, logits
Term = Callable[
    [Out, Out, Out | None, Tensor], Tensor
]  # training, sent, previous if any, labels -> a loss term


def distilled(now: Out, sent: Out, previous: Out | None, y: Tensor) -> Tensor:
    """FedNTD with β = 0.7 and τ = 2, the label's logit cut out."""
    keep = torch.arange(CLASSES) != y[:, None]
    here, there = (out[1][keep].view(len(y), -1) / 2.0 for out in (now, sent))
    return 0.7 * 4.0 * F.kl_div(here.log_softmax(1), there.softmax(1), reduction="batchmean")


def contrasted(now: Out, sent: Out, previous: Out | None, y: Tensor) -> Tensor:
    """MOON with μ = 0.7 and τ = 0.5."""
    if previous is None:
        return torch.zeros(())
    near, far = ((F.cosine_similarity(now[0], out[0]) / 0.5).exp() for out in (sent, previous))
    return -0.7 * (near / (near + far)).log().mean()


def looked(network: nn.Module, x: Tensor) -> Out:
    """Features and logits."""
    *body, head = network.children()
    features: Tensor = nn.Sequential(*body)(x)
    return features, head(features)


def with_weights(network: nn.Module, state: Leaves) -> nn.Module:
    """A copy with other parameters and the same statistics, in evaluation mode."""
    own = copy.deepcopy(network).eval()
    own.load_state_dict(state, strict=False)
    return own


def by_hand(term: Term, statistics: Statistics) -> dict[str, Leaves]:
    """The server's parameters and statistics, and those each client is left with."""
    data, network = federation(SIZES, IMAGE), seeded(lambda: convolutions().double(), 0)
    weights = [n / sum(SIZES) for n in SIZES]
    kept: list[nn.Module | None] = [None] * len(SIZES)
    for _ in range(ROUNDS):
        after = []
        for client, rows in enumerate(data.clients):
            x, y = data.prepare(data.pool.x[rows]), data.pool.y[rows]
            own = kept[client]
            sent = copy.deepcopy(network).eval()
            if own is not None and statistics == "local":
                sent.load_state_dict(dict(own.named_buffers()), strict=False)
            before = with_weights(sent, dict(own.named_parameters())) if own is not None else None
            training = copy.deepcopy(sent).train()
            optimizer = torch.optim.SGD(training.parameters(), RATE)
            for _ in range(STEPS):
                with torch.no_grad():
                    there, past = looked(sent, x), looked(before, x) if before is not None else None
                now = looked(training, x)
                loss = F.cross_entropy(now[1], y) + term(now, there, past, y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
            after.append(training)
        states = [floats(one) for one in after]
        mean = {k: sum(p * one[k] for p, one in zip(weights, states, strict=True)) for k in states[0]}
        network.load_state_dict(mean, strict=False)
        kept = list(after)
    left = {str(client): statistics_of(one) for client, one in enumerate(after) if statistics == "local"}
    return {"server": floats(network), **left}


def floats(network: nn.Module) -> Leaves:
    """Parameters and statistics, without counters."""
    return {k: v.clone() for k, v in network.state_dict().items() if v.is_floating_point()}


def statistics_of(network: nn.Module) -> Leaves:
    """The statistics alone."""
    return {k: v for k, v in network.named_buffers() if v.is_floating_point()}


def sent_statistics(algorithm: Algorithm, term: Term, statistics: Statistics) -> Finding:
    """Both engines against the plain modules: parameters and statistics after three rounds of three steps."""
    want, got = {}, {}
    model, data = convolutional(algorithm, statistics=statistics), federation(SIZES, IMAGE)
    expected = by_hand(term, statistics)
    for name, engine in ENGINES.items():
        place = engine(model, data)
        server = trained(algorithm, LocalTraining(STEPS, 1000, SGD(RATE)), ROUNDS, data, model, place).server
        rows = {k: row["buffers"] for k, row in place.save().items() if row["buffers"]}
        want[name], got[name] = expected, {"server": {**server.shared, **server.buffers}, **rows}
    return agreed(want, got, expected, TOLERANCE)
