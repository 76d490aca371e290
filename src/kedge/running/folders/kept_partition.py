"""Compare a resumed run's data with the partition in its folder."""

from pathlib import Path

from kedge.core.errors import DataError
from kedge.data.partitions.saved import PARTITION_FILE, PartitionRecord, read_partition
from kedge.running.folders.folder import write


def check_kept(folder: Path, now: PartitionRecord) -> None:
    """Raise where a run that goes on would deal out other samples than it began with."""
    if not (folder / PARTITION_FILE).is_file():  # begun by a version that did not save it
        write(folder / PARTITION_FILE, now.to_bytes())
    try:
        problem = read_partition(folder / PARTITION_FILE).difference(now)
    except DataError as error:
        raise DataError(f"{error} If there is none, delete the file: the run goes on unchecked.") from error
    if problem:
        raise DataError(
            f"{folder} cannot go on, for the data have changed since it began: {problem} "
            f"({PARTITION_FILE}). Bring the data back as they were, or begin a new run."
        )
