"""Compare a resumed run's data with the partition in its folder."""

from pathlib import Path

from kedge.core.errors import DataError
from kedge.data.partitions.saved import PARTITION_FILE, PartitionRecord, read_partition
from kedge.running.folders.folder import write


def check_partition(folder: Path, now: PartitionRecord) -> None:
    """Raise if a resumed run would give its clients other samples than it started with."""
    if not (folder / PARTITION_FILE).is_file():  # started by a version that did not save it
        write(folder / PARTITION_FILE, now.to_bytes())
    try:
        problem = read_partition(folder / PARTITION_FILE).difference(now)
    except DataError as error:
        raise DataError(
            f"{error} If you have no copy, delete the file: the run resumes without this check."
        ) from error
    if problem:
        raise DataError(
            f"{folder} cannot resume, because the data have changed since it started: {problem} "
            f"({PARTITION_FILE}). Restore the original data, or start a new run."
        )
