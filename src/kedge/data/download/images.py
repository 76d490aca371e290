"""Decode image files to arrays. Needs Pillow, an optional extra."""

import io
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError, RequestError
from kedge.data.download.archive_members import Members
from kedge.data.download.progress import item_progress

Mode = Literal["RGB", "L"]


def decoded_images(
    title: str, members: Members, names: Sequence[str], mode: Mode, size: int | None = None
) -> NDArray[np.uint8]:
    """Image files as [n, channels, height, width], resized to `size` × `size` if `size` is given."""
    decoded: NDArray[np.uint8] | None = None
    with item_progress(title, len(names)) as update:
        for row, name in enumerate(names):
            image = _decoded_image(members, name, mode, size)
            if decoded is None:
                decoded = np.empty((len(names), *image.shape), dtype=np.uint8)
            if image.shape != decoded.shape[1:]:
                raise DataError(
                    f"{members.where}: {name} has {image.shape[2]}×{image.shape[1]} pixels, but "
                    f"{names[0]} has {decoded.shape[3]}×{decoded.shape[2]}; need images of one size."
                )
            decoded[row] = image
            update(row + 1)
    if decoded is None:
        raise DataError(f"{members.where}: {title}: no images.")
    return decoded


def _decoded_image(members: Members, name: str, mode: Mode, size: int | None) -> NDArray[np.uint8]:
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
