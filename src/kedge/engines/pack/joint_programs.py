"""Joint programs: methods whose steps are equal train in one stack, such as FedAvg, FedAvgM and FedExP.

The stack computes the uploads of all its methods for every row; each run uses those of its own method.
"""

from dataclasses import replace
from typing import Any

from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.client import Carry, step_part
from kedge.core.optimizers import SGD, Adam
from kedge.core.tree import Leaves, finite_rows, only
from kedge.engines.stack.programs import StackEnd
from kedge.engines.sums import Totals, Uploads, read_back

Program = tuple[Algorithm, LocalTraining]


class JointPrograms:
    """The programs of a pack by number; stages whose steps are equal share one."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.numbers: dict[int, tuple[Stage, int]] = {}  # by id(stage); the reference keeps the id valid

    def number(self, stage: Stage) -> int:
        """The number of the program that trains this stage."""
        if id(stage) not in self.numbers:
            self.numbers[id(stage)] = stage, self.add(program_of(stage))
        return self.numbers[id(stage)][1]

    def add(self, program: Program) -> int:
        """Join `program` to the first program with equal steps, or append it; return its number."""
        algorithm, local = program
        for number, (known_algorithm, known_local) in enumerate(self.programs):
            joint = joint_algorithm(known_algorithm, algorithm)
            if joint and known_local == local:
                self.programs[number] = joint, known_local
                return number
        self.programs.append(program)
        return len(self.programs) - 1

    def stage(self, number: int, stage: Stage) -> Stage:
        """`stage` with the corrections of all stages that have the program `number`."""
        return replace(stage, algorithm=self.programs[number][0])


def program_of(stage: Stage) -> Program:
    """The program of a stage's steps: without the learning rate, which is an input of the program."""
    local, optimizer = stage.local, stage.local.optimizer
    if isinstance(optimizer, SGD | Adam):
        local = replace(local, optimizer=replace(optimizer, lr=1.0, decay=1.0))
    return stage.algorithm, local


def joint_algorithm(left: Algorithm, right: Algorithm) -> Algorithm | None:
    """`left` with the corrections of `right`; None if their steps differ, or two corrections share a slot."""
    if left == right:
        return left
    if step_part(left) != step_part(right):
        return None
    known = {c.name: c for c in left.corrections}
    if any(known.get(c.name, c) != c for c in right.corrections):
        return None
    return replace(left, corrections=tuple((known | {c.name: c for c in right.corrections}).values()))


def with_slots(carry: Carry, algorithm: Algorithm) -> Carry:
    """The carry with an empty memory for each correction of `algorithm` that the carry's method lacks."""
    return {**carry, "state": {c.name: carry["state"].get(c.name, {}) for c in algorithm.corrections}}


def own_totals(totals: Totals, algorithm: Algorithm) -> Totals:
    """The weighted sums of the uploads that `algorithm` has."""
    return {slot: totals[slot] for slot in ("", *slot_names(algorithm))}


def own_end(
    algorithm: Algorithm, carry: Carry, anchor: Leaves, end: StackEnd, facts: Leaves
) -> tuple[dict[str, Any], Uploads]:
    """Memories and uploads with the slots of `algorithm` only; a row is admitted if these are finite."""
    names = slot_names(algorithm)
    slots, tree = only(end.slots, names), {**end.uploads, "slots": only(end.uploads["slots"], names)}
    local = {k: v for k, v in carry["params"].items() if k not in anchor}
    admitted = finite_rows({"slots": slots, "uploads": tree, "local": local})
    return slots, Uploads(tree, facts, admitted, *read_back(tree, admitted))


def slot_names(algorithm: Algorithm) -> list[str]:
    """The slots of this method's corrections."""
    return [c.name for c in algorithm.corrections]
