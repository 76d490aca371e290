"""Runs an experiment in child processes that are killed with SIGKILL at random times, until one finishes.

Called as a script: killed_runs.py FOLDER CONFIG KILLS SEED. Prints the number of
children that were killed while running.
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from kedge.config.document import read
from kedge.config.experiment import resolve
from kedge.running.execute import execute, resume, run_is_finished


def child(config: Path, folder: Path) -> int:
    """Start or resume the run, in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        if (folder / "config.toml").is_file():
            resume(folder)
        else:
            execute(resolve(read(config)), folder)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    folder, config = Path(sys.argv[1]), Path(sys.argv[2])
    kills, chance = int(sys.argv[3]), random.Random(int(sys.argv[4]))
    start = time.monotonic()
    pid = child(config, folder.with_name("timing"))
    assert os.waitpid(pid, 0)[1] == 0
    whole = time.monotonic() - start
    killed = 0
    while killed < kills:
        if run_is_finished(folder):  # before the first kill: run it again from the start
            shutil.rmtree(folder)
        pid = child(config, folder)
        time.sleep(chance.uniform(0.02, 0.6) * whole)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        else:
            assert os.WEXITSTATUS(status) == 0
    pid = child(config, folder)
    assert os.waitpid(pid, 0)[1] == 0
    print(killed)


if __name__ == "__main__":
    main()
