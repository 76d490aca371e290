"""Error messages that name the submodule whose forward raised the error."""

from types import TracebackType

from torch import nn

KEDGE = "kedge."
# The exceptions that a mistake in a user's forward raises.
FORWARD_ERRORS = (
    RuntimeError, ValueError, IndexError, KeyError, TypeError, AttributeError, AssertionError,
)  # fmt: skip


def part_name(root: nn.Module, part: nn.Module) -> str:
    """A submodule's dotted path and class, such as 'encoder.attention (MultiheadAttention)'."""
    path = next((name for name, module in root.named_modules() if module is part), "")
    names = [base.__name__ for base in type(part).__mro__ if not base.__module__.startswith(KEDGE)]
    # A layer that kedge replaced has the class name that the user wrote.
    name = type(part).__name__ if type(part).__module__.startswith("kedge.models") else names[0]
    return f"{path} ({name})" if path else name


def failing_part(error: BaseException) -> str | None:
    """The name of the innermost module in the error's traceback, or None."""
    modules = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            modules.append(owner)
        trace = trace.tb_next
    return part_name(modules[0], modules[-1]) if modules else None


def error_text(error: BaseException) -> str:
    """The name of the module that raised the error, and the error's text."""
    part = failing_part(error)
    clear = isinstance(error, RuntimeError | ValueError)  # others, such as KeyError, need their type's name
    text = str(error) if clear else f"{type(error).__name__}: {error}"
    return f"{part}: {text}" if part else text
