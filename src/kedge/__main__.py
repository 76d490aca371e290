"""python -m kedge."""

from kedge.cli import main

if __name__ == "__main__":  # not where a worker process imports it again
    main()
