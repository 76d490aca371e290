"""The machine code of the Triton programs loads 8 bytes or more at a time; narrower loads are slow.

Triton emits narrow loads if it cannot prove alignment. The programs are compiled here without a GPU.
"""

import re
from typing import Any

import pytest
import torch

from kedge.nn.gpu.operators import has_triton
from kedge.nn.gpu.tiles import (
    convolve_pool_tiles,
    convolve_tiles,
    few_channel_tiles,
    pooled_weight_gradient_tiles,
    position_range,
    tile_layout,
    used_positions,
    weight_gradient_tiles,
)

pytestmark = [
    pytest.mark.skipif(not has_triton(), reason="no Triton"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
CASES = {  # channels in, out, side, window, stride, padding
    "standard CNN, second": (64, 64, 14, 5, 1, 0),
    "ResNet-18, first stage": (64, 64, 8, 3, 1, 1),
    "ResNet-18, halving": (64, 128, 8, 3, 2, 1),
    "ResNet-18, third stage": (256, 256, 2, 3, 1, 1),
    "ResNet-18, shortcut": (64, 128, 8, 1, 2, 0),
    "ResNet-20, first stage": (16, 16, 32, 3, 1, 1),
    "ResNet-20, halving": (16, 32, 32, 3, 2, 1),
    "ResNet-20, second stage": (32, 32, 16, 3, 1, 1),
}


def narrow_reads(kernel: Any, dtype: torch.dtype, tiles: dict[str, int], **constants: Any) -> list[str]:
    """The load instructions of fewer than 8 bytes in the program that is compiled for these constants."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    own = dict(tiles)
    options = {name: own.pop(name) for name in ("num_warps", "num_stages")}
    own.pop("PROGRAMS", None)
    constants = {**constants, **own}
    pointers = {name for name in kernel.arg_names if name in ("x", "w", "bias", "y", "g", "dw", "argmax")}
    kinds = {**dict.fromkeys(pointers, f"*{NAMES[dtype]}"), "dw": "*fp32", "argmax": "*i8"}
    signature = {
        name: "constexpr" if name in constants else kinds.get(name, "i32") for name in kernel.arg_names
    }
    aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(kernel.arg_names) if name in pointers}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    text = compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    assert "ld.global" in text or "cp.async" in text
    loads = re.finditer(r"ld\.global(?:\.\D[\w:]*?)*?(?:\.v(\d))?\.[a-z](\d+)\s", text)
    narrow = [one[0] for one in loads if int(one[1] or 1) * int(one[2]) < 64]
    if own["BN"] * own.get("BK", own["BM"]) * dtype.itemsize < 256 * options["num_warps"]:
        return narrow  # a thread of a small tile loads less
    return narrow + re.findall(r"cp\.async\.ca[^;]*, 0x4,", text)


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.values())
@pytest.mark.parametrize("clients", [4, 10])
@pytest.mark.parametrize("case", CASES)
def test_images_and_slopes_are_read_many_values_at_a_time(
    case: str, clients: int, dtype: torch.dtype
) -> None:
    from kedge.nn.gpu.stack_kernels import _convolve
    from kedge.nn.gpu.weight_gradient_kernels import _weight_gradient

    c, k, side, window, stride, padding = CASES[case]
    out = (side + 2 * padding - window) // stride + 1
    same = {"KH": window, "KW": window, "DH": 1, "DW": 1}
    forward = {
        **same, "H": side, "W": side, "P": out, "Q": out, "SH": stride, "SW": stride, "PH": padding,
        "PW": padding, "CI": c, "K": k, "UNPADDED": not padding,
    }  # fmt: skip
    back = window - 1 - padding
    backward = {
        **same, "H": out, "W": out, "P": side, "Q": side, "SH": 1, "SW": 1, "PH": back, "PW": back, "CI": k,
        "K": c, "UNPADDED": not back and stride == 1,
    }  # fmt: skip
    tiles = weight_gradient_tiles(dtype, window * window * c, k)
    split = {"COLUMN_TILES": -(-k // tiles["BN"]), "SPLIT": dtype == torch.float32}
    assert not narrow_reads(_weight_gradient, dtype, tiles, **forward, **split)
    for shape, upsampling, flipped in ((forward, 1, False), (backward, stride, dtype == torch.bfloat16)):
        outputs = used_positions(shape["H"], window, shape["SH"], upsampling, shape["PH"], 1, shape["P"])
        positions = position_range(outputs)
        tiles = convolve_tiles(dtype, clients, 50 * shape["P"] ** 2, shape["CI"], shape["K"])
        by_row, left, middle = (
            tile_layout(outputs, outputs, 50, tiles["BM"]) if upsampling == 1 else (False, 0, shape["Q"])
        )
        further = {
            "UH": upsampling, "UW": upsampling, "STEP_H": upsampling, "STEP_W": upsampling, "BIAS": False,
            "FLIPPED": flipped, "FIRST_ROW": positions.start, "FIRST_COLUMN": positions.start,
            "ROWS": len(positions), "COLUMNS": len(positions),
            "BY_ROW": by_row, "LEFT": left, "MIDDLE": middle,
        }  # fmt: skip
        assert not narrow_reads(_convolve, dtype, tiles, **shape, **further)


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.values())
@pytest.mark.parametrize(
    ("high", "wide", "down", "out", "padding"),
    [(3, 4, 1, 128, 0), (3, 4, 1, 128, 1), (7, 7, 2, 64, 3)],
    ids=["pairs", "pairs, padded", "ResNet-18"],
)
def test_first_layers_are_read_many_values_at_a_time(
    high: int, wide: int, down: int, out: int, padding: int, dtype: torch.dtype
) -> None:
    from kedge.nn.gpu.few_channel_kernels import _convolve_few_channels
    from kedge.nn.gpu.weight_gradient_kernels import _weight_gradient

    side = 32 + 2 * padding
    shape = {
        "KH": high, "KW": wide, "DH": 1, "DW": 1, "H": 32, "W": 32, "P": (side - high) // down + 1,
        "Q": (side - wide) // 2 + 1, "SH": down, "SW": 2, "PH": padding, "PW": padding, "CI": 4,
        "K": out, "UNPADDED": not padding,
    }  # fmt: skip
    tiles = weight_gradient_tiles(dtype, high * wide * 4, out)
    assert not narrow_reads(
        _weight_gradient, dtype, tiles, **shape, COLUMN_TILES=1, SPLIT=dtype == torch.float32
    )
    one = {"UH": 1, "UW": 1, "FLIPPED": False, "BIAS": False}
    assert not narrow_reads(
        _convolve_few_channels, dtype, few_channel_tiles(dtype, high * wide * 4, out), **shape, **one
    )


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.values())
@pytest.mark.parametrize("padding", [0, 2])
def test_pooled_first_layers_are_read_many_values_at_a_time(padding: int, dtype: torch.dtype) -> None:
    from kedge.nn.gpu.first_layer_kernels import _convolve_pool, _pooled_weight_gradient

    out = 28 + 2 * padding
    shape = {
        "H": 32, "W": 32, "P": out, "Q": out // 2, "K": 64, "CI": 4, "KH": 5, "KW": 6, "PH": padding,
        "PW": padding, "UNPADDED": not padding,
    }  # fmt: skip
    tiles = pooled_weight_gradient_tiles(dtype, 120, 128)
    assert not narrow_reads(
        _pooled_weight_gradient, dtype, tiles, **shape, COLUMN_TILES=1, SPLIT=dtype == torch.float32
    )
    assert not narrow_reads(
        _convolve_pool, dtype, convolve_pool_tiles(dtype, 10, 120, 64), **shape, BIAS=False, RELU=True
    )
