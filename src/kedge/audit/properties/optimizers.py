"""The optimizers that a method allows: a stage refuses the others."""

from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD, Adam


def takes(algorithm: Algorithm, optimizer: SGD | Adam) -> bool:
    """Whether a stage of `algorithm` trains with `optimizer`, or refuses it."""
    try:
        Stage(algorithm, 1, LocalTraining(optimizer=optimizer))
    except RequestError:
        return False
    return True


def takes_momentum(algorithm: Algorithm) -> bool:
    """Whether the method trains with momentum."""
    return takes(algorithm, SGD(0.1, 0.9))


def takes_adam(algorithm: Algorithm) -> bool:
    """Whether the method trains with Adam."""
    return takes(algorithm, Adam())
