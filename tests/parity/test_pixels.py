"""Pictures against Pillow and the picture processors of transformers, to the bit (the torchvision backend) or to a level per
pass of the resize (the PIL backend). The pictures are made at test time: every format, mode and orientation. transformers
reads them by its load_image, and LLaMA-Factory's limits are followed with Pillow's own resize.
"""

import io
import json
import math
import struct
import subprocess
import zlib

import numpy as np
import pytest
import torch
from conftest import BUILD
from PIL import Image, PngImagePlugin
from transformers.image_utils import load_image

PROBE = BUILD / "picture_probe"
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
QWEN2_VL = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "min_pixels": 3136,
            "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, **CLIP}
PROCESSORS = {
    "qwen2_vl": QWEN2_VL,
    "qwen2_5_vl": QWEN2_VL | {"min_pixels": 28 * 28 * 16, "max_pixels": 28 * 28 * 64},
    "qwen3_vl": {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor",
                 "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "temporal_patch_size": 2,
                 "merge_size": 2, **HALF},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "processor_class": "Gemma3Processor", "do_resize": True,
               "do_pan_and_scan": None, "do_convert_rgb": None, "resample": 2, "rescale_factor": 0.00392156862745098,
               "image_seq_length": 256, "size": {"height": 896, "width": 896}, **HALF},
}


def noise(height, width, channels, dtype=np.uint8):
    """Half noise, half gradients."""
    rng = np.random.default_rng(height * 1000 + width * 10 + channels)
    values = rng.integers(0, np.iinfo(dtype).max + 1, (height, width, channels), dtype=dtype)
    ramp = np.linspace(0, np.iinfo(dtype).max, width).astype(dtype)
    values[: height // 2] = ramp[None, :, None]
    return values if channels > 1 else values[..., 0]


def saved(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def rgb(height=75, width=101):
    return Image.fromarray(noise(height, width, 3))


def paletted(height=75, width=101):
    return rgb(height, width).quantize(64)


def png(width, height, depth, color, rows, *chunks):
    """A PNG of its parts: Pillow writes no 16-bit colours."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunk(*c) for c in chunks)
            + chunk(b"IDAT", data) + chunk(b"IEND", b""))


def deep_png(color, channels, height=75, width=101):
    values = noise(height, width, channels, np.uint16).astype(">u2").reshape(height, -1)
    return png(width, height, 16, color, [row.tobytes() for row in values])


def interlaced_png():
    """Adam7, which Pillow only reads."""
    values, parts = noise(37, 53, 3), []
    for x, y, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        parts += [row.tobytes() for row in np.ascontiguousarray(values[y::dy, x::dx])]
    file = bytearray(png(53, 37, 8, 2, parts))
    file[28] = 1
    file[29:33] = struct.pack(">I", zlib.crc32(bytes(file[12:29])))
    return bytes(file)


def with_orientation(value, format="JPEG", **options):
    exif = Image.Exif()
    exif[274] = value
    return saved(rgb(), format, exif=exif, **options)


def xmp_png():
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    return saved(rgb(), "PNG", pnginfo=info)


def cmyk_jpeg():
    return saved(Image.fromarray(noise(75, 101, 4), "CMYK"), "JPEG", quality=90)


def ycck_jpeg():
    """Pillow writes CMYK without Adobe's transform; its flag makes the same data YCCK."""
    file = bytearray(cmyk_jpeg())
    at = file.find(b"Adobe")
    assert at > 0
    file[at + 11] = 2
    return bytes(file)


def gif_in_a_corner():
    """A frame smaller than the screen, with a transparent colour."""
    file = bytearray(saved(paletted(), "GIF", transparency=3))
    file[6:10] = struct.pack("<HH", 130, 90)
    at = file.find(b",")
    while struct.unpack("<HH", file[at + 5:at + 9]) != (101, 75):
        at = file.find(b",", at + 1)
    file[at + 1:at + 5] = struct.pack("<HH", 7, 9)
    return bytes(file)


def made_pictures():
    alpha = Image.fromarray(noise(75, 101, 4), "RGBA")
    frames = [rgb(), rgb().rotate(180)]
    palette_alpha = paletted()
    bits = Image.fromarray(noise(75, 101, 1)).convert("1")
    grey = Image.fromarray(noise(75, 101, 1))
    bmp16 = struct.pack("<2sIHHIIIIHHIIIIII", b"BM", 0, 0, 0, 54, 40, 16, 9, 1, 16, 0, 0, 0, 0, 0, 0)
    return {
        "jpeg": saved(rgb(), "JPEG"),
        "jpeg-444": saved(rgb(), "JPEG", quality=95, subsampling=0),
        "jpeg-422": saved(rgb(), "JPEG", subsampling=1),
        "jpeg-progressive": saved(rgb(), "JPEG", progressive=True),
        "jpeg-restarts": saved(rgb(), "JPEG", restart_marker_blocks=3),
        "jpeg-rgb": saved(rgb(), "JPEG", keep_rgb=True),
        "jpeg-grey": saved(grey, "JPEG"),
        "jpeg-cmyk": cmyk_jpeg(),
        "jpeg-ycck": ycck_jpeg(),
        "jpeg-large": saved(rgb(1100, 900), "JPEG"),
        "png": saved(rgb(), "PNG"),
        "png-interlaced": interlaced_png(),
        "png-rgba": saved(alpha, "PNG"),
        "png-rgba-low": saved(Image.fromarray(noise(20, 101, 4), "RGBA"), "PNG"),
        "png-halves": saved(rgb(70, 126), "PNG"),  # 2.5 and 4.5 blocks of 28 pixels
        "png-la": saved(Image.fromarray(noise(75, 101, 2), "LA"), "PNG"),
        "png-grey": saved(grey, "PNG"),
        "png-grey-4": png(16, 9, 4, 0, [bytes(range(i, i + 8)) for i in range(9)]),
        "png-grey-2": png(16, 9, 2, 0, [bytes(range(i, i + 4)) for i in range(9)]),
        "png-1": saved(bits, "PNG"),
        "png-16": deep_png(0, 1),
        "png-16-dark": saved(Image.fromarray(noise(75, 101, 1, np.uint16) // 200), "PNG"),
        "png-16-la": deep_png(4, 2),
        "png-16-rgb": deep_png(2, 3),
        "png-16-rgba": deep_png(6, 4),
        "png-palette": saved(paletted(), "PNG"),
        "png-palette-1": saved(rgb().quantize(2), "PNG", bits=1),
        "png-palette-transparent": saved(palette_alpha, "PNG", transparency=bytes(range(64))),
        "png-short-palette": png(16, 9, 8, 3, [bytes(range(16))] * 9, (b"PLTE", bytes(range(30)))),
        "png-transparent-colour": saved(rgb(), "PNG", transparency=tuple(noise(75, 101, 3)[60, 9].tolist())),
        "png-transparent-grey": saved(grey, "PNG", transparency=int(noise(75, 101, 1)[60, 9])),
        "png-transparent-black": saved(bits, "PNG", transparency=0),
        "png-transparent-white": saved(bits, "PNG", transparency=255),
        "png-transparent-index": saved(paletted(), "PNG", transparency=5),
        "png-transparent-16": png(16, 9, 16, 0, [bytes(32)] * 9, (b"tRNS", b"\1\0")),
        "png-transparent-grey-4": png(16, 9, 4, 0, [bytes(range(i, i + 8)) for i in range(9)], (b"tRNS", b"\0\7")),
        "gif-transparent": saved(paletted(), "GIF", transparency=5),
        "png-animated": saved(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        "gif": saved(paletted(), "GIF"),
        "gif-grey": saved(grey, "GIF"),
        "gif-plain": saved(paletted(), "GIF", interlace=0),
        "gif-animated": saved(frames[0].quantize(32), "GIF", save_all=True, append_images=frames[1:]),
        "gif-corner": gif_in_a_corner(),
        "webp": saved(rgb(), "WEBP"),
        "webp-lossless": saved(rgb(), "WEBP", lossless=True),
        "webp-alpha": saved(alpha, "WEBP"),
        "webp-alpha-lossless": saved(alpha, "WEBP", lossless=True, exact=True),
        "webp-animated": saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "bmp": saved(rgb(), "BMP"),
        "bmp-grey": saved(grey, "BMP"),
        "bmp-1": saved(bits, "BMP"),
        "bmp-palette": saved(paletted(), "BMP"),
        "bmp-rgba": saved(alpha, "BMP"),
        "bmp-16": bmp16 + noise(9, 32, 1).tobytes(),
        "one-pixel": saved(rgb(1, 1), "PNG"),
        "one-row": saved(rgb(1, 150), "PNG"),
        "two-columns": saved(rgb(300, 2), "PNG"),
        "ratio-199": saved(rgb(199 * 3, 3), "PNG"),
        "4000x3": saved(rgb(3, 4000), "PNG"),
        "webp-turned": with_orientation(6, "WEBP"),
        "png-turned": with_orientation(5, "PNG"),
        "png-turned-by-xmp": xmp_png(),
        **{f"jpeg-orientation-{value}": with_orientation(value) for value in range(1, 9)},
    }


PICTURES = made_pictures()


class Probe:
    def __init__(self, folder):
        self.folder = folder
        self.process = subprocess.Popen([PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, do, name, **request):
        file, out = self.folder / name, self.folder / "out"
        file.write_bytes(PICTURES[name])
        self.process.stdin.write(json.dumps({"do": do, "file": str(file), "out": str(out), **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "picture_probe died"
        answer = json.loads(line)
        if "error" not in answer:
            answer["bytes"] = out.read_bytes()
        return answer


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    probe = Probe(tmp_path_factory.mktemp("pictures"))
    yield probe
    probe.process.stdin.close()
    assert probe.process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, config in PROCESSORS.items():
        made[name] = tmp_path_factory.mktemp(name)
        (made[name] / "preprocessor_config.json").write_text(json.dumps(config))
        (made[name] / "config.json").write_text(json.dumps({"mm_tokens_per_image": 256}))
    return made


def loaded(name):
    """As transformers' load_image, of bytes."""
    return load_image(Image.open(io.BytesIO(PICTURES[name])))


def opened(name):
    """In the picture's own mode, turned."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(Image.open(io.BytesIO(PICTURES[name])))


@pytest.mark.parametrize("name", PICTURES)
def test_decoding(probe, name):
    answer = probe.ask("rgb", name)
    expected = loaded(name)
    assert answer.get("size") == list(expected.size) == answer["header"], answer
    ours = np.frombuffer(answer["bytes"], np.uint8).reshape(expected.height, expected.width, 3)
    np.testing.assert_array_equal(ours, np.array(expected))


@pytest.mark.parametrize("size", [(40, 33), (150, 200), (101, 20), (7, 75), (1, 1)])
@pytest.mark.parametrize("name", ["png", "png-rgba", "png-la", "png-grey", "png-1", "png-16", "png-16-dark", "png-palette",
                                  "jpeg-cmyk", "gif-grey", "gif", "webp-alpha"])
def test_resize(probe, name, size):
    answer = probe.ask("resize", name, width=size[0], height=size[1])
    expected = opened(name).resize(size)
    raw = {"1": lambda im: np.array(im, np.uint8) * 255, "I;16": lambda im: np.array(im).astype("<u2")}
    assert answer["bytes"] == raw.get(expected.mode, np.array)(expected).tobytes(), answer["mode"]


def limited(image, max_pixels=768 * 768, min_pixels=32 * 32, as_qwen2_vl=True):
    """LLaMA-Factory's steps, as its documentation of image_max_pixels and its numbers define them."""
    def scaled(pixels):
        factor = math.sqrt(pixels / (image.width * image.height))
        return image.resize((int(image.width * factor), int(image.height * factor)))
    if image.width * image.height > max_pixels:
        image = scaled(max_pixels)
    if image.width * image.height < min_pixels:
        image = scaled(min_pixels)
    image = image.convert("RGB")
    if as_qwen2_vl:
        if min(image.size) < 28:
            image = image.resize((max(image.width, 28), max(image.height, 28)))
        if image.width / image.height > 200:
            image = image.resize((image.height * 180, image.height))
        if image.height / image.width > 200:
            image = image.resize((image.width, image.width * 180))
    return image


@pytest.mark.parametrize("limits", [{}, {"max_pixels": 2000}, {"min_pixels": 40000, "as_qwen2_vl": False}], ids=str)
@pytest.mark.parametrize("name", PICTURES)
def test_limits(probe, name, limits):
    answer = probe.ask("rgb", name, limits=limits)
    try:
        expected = limited(opened(name), **limits)
    except ValueError:
        assert "less than one pixel" in answer["error"]
        return
    assert answer.get("size") == list(expected.size), answer
    assert answer["bytes"] == np.array(expected).tobytes()


def processor(folder, backend):
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(folder, backend=backend)


def processed(folder, image, backend):
    outputs = processor(folder, backend)(images=[image], return_tensors="pt")
    return outputs["pixel_values"], outputs.get("image_grid_thw")


def pixels_of(values, grid, config):
    """The pixels of 8 bits, [H, W, C], whose normalized values these are."""
    mean, std = (torch.tensor(config[key], dtype=torch.float64) for key in ("image_mean", "image_std"))
    if grid is None:
        planes = values[0]
    else:
        (_, height, width), = grid.tolist()
        merge, frames, patch = (config[key] for key in ("merge_size", "temporal_patch_size", "patch_size"))
        blocks = values.view(height // merge, width // merge, merge, merge, 3, frames, patch, patch).movedim(5, 0)
        assert (blocks == blocks[0]).all()
        planes = blocks[0].permute(4, 0, 2, 5, 1, 3, 6).reshape(3, height * patch, width * patch)
    exact = (planes.movedim(0, -1).double() * std + mean) * 255
    # Either backend rounds to fp32 the mean (in the torchvision backend twice), the difference from the mean, the
    # deviation (once or twice) and the quotient: at most 2 mean + 4 |x - mean| roundings of x in [0, 1].
    assert ((exact - exact.round()).abs() <= 255 * 4 * (1 + mean) * 2.0**-24).all()
    return exact.round().int().numpy()


def check_pil_backend(folder, config, image, pixels):
    """The relation of the torchvision backend's pixels, which are ours, to those of the other backend.

    Both backends resize in two passes of 8-bit pixels, with the same filter. A pass along rows rounds the weights to 22
    bits in Pillow, and to 16 bits of the largest weight or more in ATen. A pixel has at most 5 / (largest weight) source
    pixels, so that the sums of one source differ by less than 5 * 255 * 2^-15 < 0.04, and the rounded sums by at most one
    level. The weights' sizes add up to less than 1.5 (cubic filter; 1 of the linear filter), so that the second pass
    carries one level to less than 1.54, and the rounded sums differ by at most two levels: one level per pass.

    ATen's first pass is along rows. Pillow from 13 on starts with columns where it expects less work. Pixels that the cubic
    filter moves out of 0 to 255 are cut off between the passes, so the order changes pixels by more than roundings.
    """
    theirs = pixels_of(*processed(folder, image, "pil"), config)
    height, width = pixels.shape[:2]
    pil = processor(folder, "pil")  # whose own conversion makes a transparent colour white
    image = Image.fromarray(np.moveaxis(pil.process_image(image, do_convert_rgb=pil.do_convert_rgb), 0, -1))
    filter_ = Image.Resampling(config.get("resample", Image.Resampling.BICUBIC))
    rows_first = image.resize((width, image.height), filter_).resize((width, height), filter_)
    columns_first = image.resize((image.width, height), filter_).resize((width, height), filter_)
    assert any(np.array_equal(theirs, np.array(order)) for order in (rows_first, columns_first))
    num_passes = (width != image.width) + (height != image.height)
    assert np.abs(pixels - np.array(rows_first, dtype=int)).max() <= num_passes


def compare(probe, folders, model, name, image, **request):
    pytest.importorskip("torchvision")
    answer = probe.ask("values", name, folder=str(folders[model]), **request)
    try:
        expected, grid = processed(folders[model], image, "torchvision")
    except ValueError as error:
        assert "aspect ratio" in str(error) and "200 times" in answer["error"], answer
        return
    assert "error" not in answer, answer
    expected_pixels = pixels_of(expected, grid, PROCESSORS[model])
    ours = torch.frombuffer(bytearray(answer["bytes"]), dtype=torch.float32).reshape(answer["shape"])
    if grid is None:  # a square of patches, in blocks of those of a token
        assert answer["grid"] == [1, 64, 64]
        expected = expected.view(3, 16, 4, 14, 16, 4, 14).permute(1, 4, 2, 5, 0, 3, 6).reshape(64 * 64, 3 * 14 * 14)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    if grid is not None:
        assert answer["grid"] == grid[0].tolist()
        assert answer["tokens"] == grid[0].prod().item() // 4
    else:
        assert answer["tokens"] == 256
    check_pil_backend(folders[model], PROCESSORS[model], image, expected_pixels)


@pytest.mark.parametrize("name", PICTURES)
def test_qwen2_vl(probe, folders, name):
    compare(probe, folders, "qwen2_vl", name, loaded(name))


@pytest.mark.parametrize("model", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("name", ["jpeg", "jpeg-large", "png-rgba", "png-16", "gif-corner", "one-pixel", "one-row",
                                  "two-columns", "ratio-199", "4000x3", "jpeg-orientation-6"])
def test_processors(probe, folders, model, name):
    compare(probe, folders, model, name, loaded(name))


@pytest.mark.parametrize("name", ["jpeg-large", "png-palette-transparent", "png-rgba", "one-row", "4000x3"])
def test_limits_and_processor(probe, folders, name):
    compare(probe, folders, "qwen2_vl", name, limited(opened(name)), limits={})


@pytest.mark.parametrize("name", ["jpeg", "jpeg-progressive", "png", "gif", "webp", "webp-lossless", "bmp"])
def test_truncated(probe, name):
    whole = PICTURES[name]
    for size in (0, 1, 5, 12, 20, 30, 60, len(whole) // 2, len(whole) * 3 // 4):
        PICTURES["truncated"] = whole[:size]
        answer = probe.ask("rgb", "truncated")
        del PICTURES["truncated"]
        assert answer["error"].startswith("data set pictures, row 1: "), size
