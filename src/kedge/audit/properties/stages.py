"""The number of stages does not matter if all have the same method."""

from kedge.audit.finding import Finding, compare_trees, worst_finding
from kedge.audit.problems import IMAGE, convolutional, federation
from kedge.audit.training import ENGINES, run_state
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.running.runner import run

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.7), clip=1.0)


def two_stages_are_one(algorithm: Algorithm) -> Finding:
    """Two stages of one method train the same bits as one: memories, round and learning rate continue."""
    model, data = convolutional(algorithm), federation(shape=IMAGE)
    findings = []
    for make in ENGINES.values():
        states = []
        for rounds in ((3,), (2, 1)):
            engine = make(model, data)
            stages = [Stage(algorithm, count, LOCAL) for count in rounds]
            states.append(run_state(run(Task(stages, model, data), engine).server, engine))
        findings.append(compare_trees(states[0], states[1], states[0]["server"]["shared"], 0.0))
    return worst_finding(*findings)
