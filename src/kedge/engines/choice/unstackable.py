"""Error messages for modules that torch cannot run for several clients at once: the reason, and an engine."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kedge.core.errors import CheckpointError, Diverged, RequestError
from kedge.nn.naming import failing_part

# Parts of vmap's error messages, and modules of the compiler's error classes.
VMAP = ("vmap", "Batching rule not implemented", "functorch", "data pointer of Tensor", "FunctionalTensor")
COMPILER = ("torch._dynamo", "torch._inductor", "torch._subclasses", "torch.fx", "torch._functorch")
NOT_THE_USERS = ("/torch/", "/kedge/", "/contextlib.py", "<")  # parts of the paths of other code
SEQUENTIAL = "engine.name = 'sequential' can run it"


class NotCompiled(RequestError):
    """A program (of a step, a round's end or an evaluation) cannot be compiled or captured."""


def unstackable(error: BaseException) -> RequestError | None:
    """The error to raise instead if torch's vmap or compiler rejects a module; None for other errors."""
    if not isinstance(error, RuntimeError) or isinstance(error, (Diverged, CheckpointError)):
        return None
    text = str(error)
    part = failing_part(error) or "the model"
    # A compiler's message ends with a stack trace, which may contain vmap's own files.
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
    """The file and line of the user's code in a compiler's message; None if it has none."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', text)
    users = [f"{file}, line {line}," for file, line in lines if not any(v in file for v in NOT_THE_USERS)]
    return users[-1] if users else None


def first_line(text: str) -> str:
    """The first line of `text`, without its full stop."""
    return text.strip().split("\n")[0].removesuffix(".")


@contextmanager
def explain_stacking_errors() -> Iterator[None]:
    """In this context, raise kedge's error if vmap or the compiler rejects a module."""
    try:
        yield
    except RuntimeError as error:
        explained = unstackable(error)
        if explained is None:
            raise
        raise explained from error


def reason(text: str) -> str:
    """The reason why vmap rejects a module, in words for the user; `text` is vmap's message."""
    operator = re.search(r"aten::[\w.]+", text)
    if "random operation" in text:
        return "it draws random numbers in a way that kedge does not replace"
    if ".item()" in text or "data-dependent control flow" in text:
        return "it reads a tensor's value (.item(), float(t), `if t`), which differs from client to client"
    if "inplace arithmetic" in text or "in-place" in text:
        return "it writes a client's values in place into a tensor that all clients share"
    if "data pointer of Tensor" in text:
        return "it reads a tensor's memory (such as t.numpy()), or calls an operator that does"
    if operator:
        return f"torch's vmap does not support the operator {operator[0]}"
    return f"torch says: {first_line(text)}"
