"""A run whose method does not change is one run, in however many stages."""

from kedge.audit.finding import Finding, agreed, worst
from kedge.audit.problems import ENGINES, IMAGE, convolutional, federation, run_state
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.running.runner import run

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.7), clip=1.0)


def two_stages(algorithm: Algorithm) -> Finding:
    """Two stages of one method are one, bit for bit: memories, round and learning rate continue."""
    model, data = convolutional(algorithm), federation(shape=IMAGE)
    findings = []
    for make in ENGINES.values():
        states = []
        for rounds in ((3,), (2, 1)):
            engine = make(model, data)
            stages = [Stage(algorithm, count, LOCAL) for count in rounds]
            states.append(run_state(run(Task(stages, model, data), engine).server, engine))
        findings.append(agreed(states[0], states[1], states[0]["server"]["shared"], 0.0))
    return worst(*findings)
