"""The private name of Ray that kedge uses: the function that prints messages of the cluster."""

import sys
from typing import Any


def print_messages_on_stderr(ray: Any) -> None:
    """Print the messages of the cluster on standard error; Ray prints them among the results of a command."""
    worker = ray._private.worker

    def print_message(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        print(*data["lines"], sep="\n", file=sys.stderr)

    worker.print_to_stdstream = print_message
