"""The name of the submodule that raised an error, for messages."""

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
    """The name of the innermost module whose forward raised the error; None if none did."""
    parts = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            parts.append(owner)
        trace = trace.tb_next
    return part_name(parts[0], parts[-1]) if parts else None


def error_text(error: BaseException) -> str:
    """The name of the module that raised the error, and the error's text."""
    part = failing_part(error)
    plain = isinstance(error, RuntimeError | ValueError)
    text = str(error) if plain else f"{type(error).__name__}: {error}"
    return f"{part}: {text}" if part else text
