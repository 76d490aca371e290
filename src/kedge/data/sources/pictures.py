"""Image files decoded to arrays by Pillow, which is an optional extra."""

import io
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError, RequestError
from kedge.data.download.progress import counting
from kedge.data.sources.members import Members

Mode = Literal["RGB", "L"]


def pictures(
    title: str, members: Members, names: Sequence[str], mode: Mode, size: int | None = None
) -> NDArray[np.uint8]:
    """Image files as [n, channels, height, width], resized to size × size, or else all of one size."""
    decoded: NDArray[np.uint8] | None = None
    with counting(title, len(names)) as done:
        for row, name in enumerate(names):
            picture = _picture(members, name, mode, size)
            if decoded is None:
                decoded = np.empty((len(names), *picture.shape), dtype=np.uint8)
            if picture.shape != decoded.shape[1:]:
                raise DataError(
                    f"{members.where}: {name} has {picture.shape[2]}×{picture.shape[1]} pixels, but "
                    f"{names[0]} has {decoded.shape[3]}×{decoded.shape[2]}; need images of one size."
                )
            decoded[row] = picture
            done(row + 1)
    if decoded is None:
        raise DataError(f"{members.where}: {title}: no images.")
    return decoded


def _picture(members: Members, name: str, mode: Mode, size: int | None) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise RequestError("decoding images needs Pillow: pip install 'kedge[images]'.") from None
    content = members.read(name)
    try:
        with Image.open(io.BytesIO(content)) as file:
            image = file.convert(mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{members.where}: {name} is no image, or damaged ({error}); put a whole copy there."
        ) from error
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    values = np.asarray(image, dtype=np.uint8)
    return values[None] if mode == "L" else np.moveaxis(values, -1, 0)
