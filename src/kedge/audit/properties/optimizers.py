"""The optimizers that a method allows. A stage with another optimizer raises an error."""

from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD, Adam


def takes(algorithm: Algorithm, optimizer: SGD | Adam) -> bool:
    """Whether `algorithm` can train with `optimizer`."""
    try:
        Stage(algorithm, 1, LocalTraining(optimizer=optimizer))
    except RequestError:
        return False
    return True


def takes_momentum(algorithm: Algorithm) -> bool:
    """Whether the method can train with momentum."""
    return takes(algorithm, SGD(0.1, 0.9))


def takes_adam(algorithm: Algorithm) -> bool:
    """Whether the method can train with Adam."""
    return takes(algorithm, Adam())
