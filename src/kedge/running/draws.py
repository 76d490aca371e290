"""The draws of the server: the participants of a round, and the noise on its reply if the run is private.

In a simulation both are functions of the seed (`KeyedDraws`). The clients of a federation know the seed. A
private federation therefore draws from the system's entropy (`SecretDraws`), and only once, because two
noised versions of one sum reveal more than one does. The noised reply is written to the run's folder before
any value is computed from it. A server that is killed earlier has shown nothing of the round, and starts it
again with new participants. A server that is killed later continues with the stored reply.
"""

import json
from pathlib import Path
from typing import Protocol

import safetensors
import safetensors.torch

from kedge.config.task import Task
from kedge.core.errors import CheckpointError
from kedge.core.server import Reply
from kedge.core.tree import flatten, unflatten
from kedge.engines.engine import Engine
from kedge.privacy.noise import keyed_noise, system_noise
from kedge.privacy.secret_sampling import secret_sample
from kedge.running.folders.folder import write
from kedge.running.private_reply import released_reply
from kedge.running.progress import Progress

RELEASED = "released.safetensors"  # the noised reply of the newest round


class Draws(Protocol):
    """The draws of a run; `progress` is the progress before the round."""

    def participants(self, progress: Progress) -> list[int]:
        """The clients of a round."""
        ...

    def release(self, progress: Progress, reply: Reply) -> Reply:
        """The part of a reply that the server's update may use."""
        ...


def draws_of(task: Task, engine: Engine, folder: Path | None) -> Draws:
    """The draws of a run."""
    return SecretDraws(task, engine, folder) if task.noise_source == "system" else KeyedDraws(task)


class KeyedDraws:
    """Participants and noise as functions of the seed: the run can be repeated."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def participants(self, progress: Progress) -> list[int]:
        """The clients of a round."""
        return self.task.participants(progress.round)

    def release(self, progress: Progress, reply: Reply) -> Reply:
        """The reply, with noise if the run is private."""
        if not self.task.privacy.active:
            return reply
        return released_reply(self.task, progress, reply, keyed_noise(self.task.seed, progress.round))


class SecretDraws:
    """Participants and noise from the system's entropy, drawn once for each round of a private federation.

    Only the rule "poisson" claims amplification, and only its participants are secret.
    """

    def __init__(self, task: Task, engine: Engine, folder: Path | None) -> None:
        self.task, self.engine = task, engine
        self.file = folder / RELEASED if folder else None

    def participants(self, progress: Progress) -> list[int]:
        """The clients of a round; none if its reply is stored."""
        number = self.stored_round()
        if number > progress.round:
            raise CheckpointError(
                f"{self.file} has the noised sum of round {number + 1}, but the newest checkpoint that can "
                f"be read is of round {progress.round}. kedge does not draw noise twice for a round: the two "
                "sums together would reveal more than ε says. Restore the folder's checkpoints, or start a "
                "new run."
            )
        if number == progress.round:
            return []
        if self.task.participation.rule == "poisson":
            return secret_sample(self.task.participation, len(self.task.federation.clients))
        return self.task.participants(progress.round)

    def release(self, progress: Progress, reply: Reply) -> Reply:
        """The stored reply of this round, or the reply with new noise, which is stored first.

        It names no client, and no upload that was left out.
        """
        if self.stored_round() == progress.round:
            return self.load(progress)
        released = released_reply(self.task, progress, reply, system_noise)._replace(rejected=())
        if self.file is not None:
            self.save(progress.round, released)
        return released

    def stored_round(self) -> int:
        """The number of finished rounds before the round whose reply is stored; -1 if none is."""
        if self.file is None or not self.file.is_file():
            return -1
        with safetensors.safe_open(self.file, "pt") as file:
            return int((file.metadata() or {})["round"])

    def save(self, round: int, reply: Reply) -> None:
        """Store a reply, and the engine's state after it, atomically."""
        assert self.file is not None
        parts = {"delta": reply.mean["delta"], "slots": reply.mean["slots"], "clients": self.engine.save()}
        tensors = {k: v.detach().cpu().contiguous() for k, v in flatten(parts).items()}
        facts = {"round": str(round), "size": repr(reply.size), "trained": json.dumps(sorted(reply.trained))}
        write(self.file, safetensors.torch.save(tensors, facts))

    def load(self, progress: Progress) -> Reply:
        """The stored reply; restores the engine's state after it."""
        assert self.file is not None
        with safetensors.safe_open(self.file, "pt") as file:
            facts = file.metadata()
            tree = unflatten({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no dict)
        self.engine.load(tree.get("clients", {}))
        server, stored = progress.server, tree.get("slots", {})
        slots = {name: stored.get(name, {}) for name in server.slots}
        mean = {"delta": tree["delta"], "buffers": server.buffers, "slots": slots}
        return Reply(mean, float(facts["size"]), frozenset(json.loads(facts["trained"])), (), {})
