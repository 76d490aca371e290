"""Writers of small files in the official formats of published datasets."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Ints = NDArray[np.integer]
Bytes = NDArray[np.uint8]


def random_bytes(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class Python2(pickle._Pickler):
    """Pickles as Python 2 and its numpy did: byte strings, numpy.core, and 0 and 1 for false and true."""

    write: Callable[[bytes], None]
    memoize: Callable[[object], None]

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = obj.__module__.replace("numpy._core", "numpy.core")
        self.write(pickle.GLOBAL + f"{module}\n{name or obj.__qualname__}\n".encode())
        self.memoize(obj)

    def save_string(self, obj: bytes | str) -> None:
        content = obj if isinstance(obj, bytes) else obj.encode("latin1")
        short = len(content) < 256
        head = pickle.SHORT_BINSTRING if short else pickle.BINSTRING
        self.write(head + struct.pack("<B" if short else "<i", len(content)) + content)
        self.memoize(obj)

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)
    dispatch[bytes] = dispatch[str] = save_string
    dispatch[type] = dispatch[type(np.zeros(1).__reduce__()[0])] = save_global

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.dtype):
            return np.dtype, (obj.str[1:], 0, 1), (3, "|", None, None, None, -1, -1, 0)
        return NotImplemented


def pickled(entry: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    Python2(stream, protocol=2).dump(entry)
    return stream.getvalue()


def tarred(file: Path, contents: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def zipped(file: Path, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return file


def unpacked(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def cifar(images: Bytes, labels: Ints, key: str = "labels") -> bytes:
    """A pickled batch of images [n, 3, 32, 32]."""
    return pickled({"data": images.reshape(len(images), -1), key: labels.tolist(), "batch_label": "a batch"})


def cifar10(train: tuple[Bytes, Ints], test: tuple[Bytes, Ints]) -> dict[str, bytes]:
    """The members of cifar-10-python.tar.gz, in an order other than that of the batches."""
    batches = dict(zip("12345", zip(*(np.array_split(part, 5) for part in train), strict=True), strict=True))
    found = {f"cifar-10-batches-py/data_batch_{k}": cifar(*batches[k]) for k in "42351"}
    return {
        **found,
        "cifar-10-batches-py/test_batch": cifar(*test),
        "cifar-10-batches-py/readme.html": b"",
    }


def cifar100(train: tuple[Bytes, Ints], test: tuple[Bytes, Ints]) -> dict[str, bytes]:
    """The members of cifar-100-python.tar.gz."""
    return {
        "cifar-100-python/train": cifar(*train, key="fine_labels"),
        "cifar-100-python/test": cifar(*test, key="fine_labels"),
        "cifar-100-python/meta": pickled({"fine_label_names": ["apple"]}),
    }


def idx(values: Bytes) -> bytes:
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return head + values.tobytes()


def mnist(train: tuple[Bytes, Bytes], test: tuple[Bytes, Bytes]) -> dict[str, bytes]:
    """The four files of MNIST and Fashion-MNIST, gzipped."""
    parts = {"train": train, "t10k": test}
    return {
        f"{part}-{kind}.gz": gzip.compress(idx(values), 1, mtime=0)
        for part, both in parts.items()
        for kind, values in zip(("images-idx3-ubyte", "labels-idx1-ubyte"), both, strict=True)
    }


def medmnist(**parts: tuple[Bytes, Ints]) -> bytes:
    """An npz in the format of MedMNIST: images [n, 28, 28] and labels [n, 1] of every part."""
    arrays = {f"{part}_images": images for part, (images, _) in parts.items()}
    arrays |= {f"{part}_labels": labels[:, None].astype(np.uint8) for part, (_, labels) in parts.items()}
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]  # the stub takes **kwds for allow_pickle
    return stream.getvalue()


def picture(values: Bytes, kind: str = "JPEG") -> bytes:
    """An image file with pixels [h, w] or [h, w, 3]."""
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, kind, quality=95)
    return stream.getvalue()


def pixels(content: bytes) -> Bytes:
    """The decoded pixels of an image file, [3, h, w]."""
    return np.moveaxis(np.asarray(Image.open(io.BytesIO(content)).convert("RGB")), -1, 0)


def tiny_imagenet(train: dict[str, list[bytes]], val: list[tuple[str, bytes]]) -> dict[str, bytes]:
    """The members of tiny-imagenet-200.zip: training files by class, validation files with a class."""
    contents = {"wnids.txt": "\n".join(reversed(sorted(train))).encode(), "test/images/test_0.JPEG": b"?"}
    for wnid, files in train.items():
        contents |= {f"train/{wnid}/images/{wnid}_{k}.JPEG": file for k, file in enumerate(files)}
        contents[f"train/{wnid}/{wnid}_boxes.txt"] = b""
    contents |= {f"val/images/val_{k}.JPEG": file for k, (_, file) in enumerate(val)}
    lines = [f"val_{k}.JPEG\t{wnid}\t0\t32\t44\t62\n" for k, (wnid, _) in enumerate(val)]
    contents["val/val_annotations.txt"] = "".join(lines).encode()
    return {f"tiny-imagenet-200/{name}": content for name, content in contents.items()}


def pamap2(activity: Ints, channels: NDArray[np.floating]) -> bytes:
    """A recording of 54 columns: `values` [rows, 27] are the inertial columns, the others are noise."""
    table = np.random.default_rng(1).normal(size=(len(activity), 54)).round(4)
    table[:, 0], table[:, 1], table[:, 2] = np.arange(len(activity)) / 100, activity, np.nan
    for sensor in range(3):
        taken = [3 + 17 * sensor + k for k in (1, 2, 3, 7, 8, 9, 10, 11, 12)]
        table[:, taken] = channels[:, 9 * sensor : 9 * sensor + 9]
    rows = [" ".join("NaN" if np.isnan(v) else f"{v:.6g}" for v in row) for row in table]
    return ("\n".join(rows) + "\n").encode()


def uci_har(part: str, signals: NDArray[np.floating], labels: Ints, subjects: Ints) -> dict[str, bytes]:
    """The members of "UCI HAR Dataset.zip" for a part, with signals [n, 9, 128]."""
    names = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
    files = {f"Inertial Signals/{n}_{part}.txt": signals[:, k] for k, n in enumerate(names)}
    contents = {
        name: "\n".join("  " + " ".join(f"{v: .7e}" for v in row) for row in rows).encode()
        for name, rows in files.items()
    }
    contents[f"y_{part}.txt"] = "\n".join(map(str, labels)).encode()
    contents[f"subject_{part}.txt"] = "\n".join(map(str, subjects)).encode()
    return {f"UCI HAR Dataset/{part}/{name}": content for name, content in contents.items()}


def covidx(part: str, lines: list[str], images: dict[str, Bytes], name: str = "") -> dict[str, bytes]:
    """The list of labels and the images of a part."""
    files = {f"{part}/{file}": picture(values, "PNG") for file, values in images.items()}
    return {f"{part}{name}.txt": ("\n".join(lines) + "\n").encode(), **files}
