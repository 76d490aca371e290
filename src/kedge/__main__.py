"""python -m kedge."""

from kedge.cli import main

main()
