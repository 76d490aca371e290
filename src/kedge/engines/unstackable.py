"""Why torch cannot run a module for several clients at once, in words: the operator, and what can be done."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kedge.core.errors import CheckpointError, Diverged, RequestError
from kedge.core.naming import failing_part

VMAP = ("vmap", "Batching rule not implemented", "functorch", "data pointer of Tensor", "FunctionalTensor")
COMPILER = ("torch._dynamo", "torch._inductor", "torch._subclasses", "torch.fx", "torch._functorch")
NOT_THE_USERS = ("/torch/", "/kedge/", "/contextlib.py", "<")  # parts of paths
SEQUENTIAL = "engine.name = 'sequential' can run it"


class NotCompiled(RequestError):
    """The program of a step, of a round's end or of an evaluation cannot be made."""


def unstackable(error: BaseException) -> RequestError | None:
    """What to tell of an error by which torch's vmap or compiler gives up on a module; None for any other."""
    if not isinstance(error, RuntimeError) or isinstance(error, (Diverged, CheckpointError)):
        return None
    text = str(error)
    part = failing_part(error) or "the model"
    # A compiler's message ends with the way to the user's line, which leads through vmap's own files.
    stacks = any(words in text.split("from user code:")[0] for words in VMAP)
    if type(error).__module__.startswith(COMPILER) and not stacks:
        return NotCompiled(
            f"{place(text) or part} cannot be compiled: {first_line(text) or type(error).__name__}. "
            f"engine.compile = 'off' can run it on a CPU, and {SEQUENTIAL} everywhere."
        )
    if not stacks:
        return None
    return RequestError(
        f"{place(text) or part} cannot run as a stack of clients: {reason(text)}. {SEQUENTIAL}."
    )


def place(text: str) -> str | None:
    """The line of the user's own code that a compiler's message points at."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', text)
    own = [f"{file}, line {line}," for file, line in lines if not any(v in file for v in NOT_THE_USERS)]
    return own[-1] if own else None


def first_line(text: str) -> str:
    """The first line, without its full stop."""
    return text.strip().split("\n")[0].removesuffix(".")


@contextmanager
def reworded() -> Iterator[None]:
    """Inside, an error by which vmap or the compiler gives up on a module is raised in words."""
    try:
        yield
    except RuntimeError as error:
        told = unstackable(error)
        if told is None:
            raise
        raise told from error


def reason(text: str) -> str:
    """What vmap does not know, from its message."""
    operator = re.search(r"aten::[\w.]+", text)
    if "random operation" in text:
        return "it draws random numbers in a way that kedge does not replace"
    if ".item()" in text or "data-dependent control flow" in text:
        return "it looks at a tensor's value (.item(), float(t), `if t`), which differs from client to client"
    if "inplace arithmetic" in text or "in-place" in text:
        return "it writes a client's values in place into a tensor that all clients share"
    if "data pointer of Tensor" in text:
        return "it reads a tensor's memory (t.numpy() and its like), or calls an operator that does"
    if operator:
        return f"torch's vmap does not know the operator {operator[0]}"
    return f"torch says: {first_line(text)}"
