"""Small video files, made by PyAV at test time."""

import fractions

import av
import numpy as np
import pytest
from conftest import BUILD

needs_decoder = pytest.mark.skipif(
    not (BUILD / "liblongspan_video.so").exists(),
    reason="this build has no decoder of video files: FFmpeg's headers were missing (tools/setup_video installs them)")


def pictures(num_frames, height, width, grey=False):
    """Blocks of random colours that move, and a gradient."""
    rng = np.random.default_rng(height * 1000 + width)
    blocks = rng.integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    base = blocks.repeat(8, 0).repeat(8, 1)[:height, :width]
    for i in range(num_frames):
        picture = np.roll(base, (3 * i, 2 * i), (0, 1))
        picture[: height // 3, :, 0] = np.linspace(0, 255, width)
        yield picture if not grey else picture[..., :1].repeat(3, 2)


def add_silence(container, codec, samples, seconds):
    stream = container.add_stream(codec, rate=48000, layout="mono")

    def packets():
        for start in range(0, int(seconds * 48000), 960):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 960), samples), layout="mono",
                                               format="fltp" if samples == np.float32 else "s16")
            frame.sample_rate, frame.pts = 48000, start
            yield from stream.encode(frame)
        yield from stream.encode()

    return packets


def write_video(path, codec, num_frames=20, height=64, width=96, rate=10, pixels="yuv420p", times=None, sound=None,
                grey=False, options=None):
    """`times`: of the frames, in milliseconds. `sound`: an audio stream before the video's."""
    with av.open(str(path), "w") as container:
        silence = sound and add_silence(container, *sound, num_frames / rate)
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        if times:
            stream.time_base = stream.codec_context.time_base = fractions.Fraction(1, 1000)
        if silence:
            container.mux(list(silence()))
        for i, picture in enumerate(pictures(num_frames, height, width, grey)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times:
                frame.pts, frame.time_base = times[i], fractions.Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def turned(path, source):
    """A copy that asks players for a rotation by 90 degrees (the matrix of its track header)."""
    file = bytearray(open(source, "rb").read())
    at = file.index(b"tkhd") + 4 + 40
    assert file[at:at + 4] == b"\0\1\0\0"
    one, minus = (1 << 16).to_bytes(4, "big"), (-(1 << 16) & 0xFFFFFFFF).to_bytes(4, "big")
    zero, unit = bytes(4), (1 << 30).to_bytes(4, "big")
    file[at:at + 36] = b"".join([zero, one, zero, minus, zero, zero, zero, zero, unit])
    path.write_bytes(file)
    return str(path)


IRREGULAR = [0, 40, 90, 250, 260, 300, 900, 1000, 1100, 1400, 1500, 1600, 1700, 1800, 2000, 2100, 2200, 2300, 2400, 3000]


def write_videos(place):
    """Every kind, by name."""
    def video(name, codec, **options):
        return write_video(place / name, codec, **options)

    videos = {
        "h264.mp4": video("h264.mp4", "libx264"),
        "long.mp4": video("long.mp4", "libx264", num_frames=77, rate=24),
        "large.mov": video("large.mov", "libx264", num_frames=7, height=360, width=640, rate=3),
        "mpeg4.avi": video("mpeg4.avi", "mpeg4"),
        "mjpeg.avi": video("mjpeg.avi", "mjpeg", pixels="yuvj420p"),
        "vp9.webm": video("vp9.webm", "libvpx-vp9", num_frames=9),
        "vp8.webm": video("vp8.webm", "libvpx"),
        "h264.mkv": video("h264.mkv", "libx264", num_frames=150),
        "hevc.mp4": video("hevc.mp4", "libx265", options={"x265-params": "log-level=none"}),
        "colours.gif": video("colours.gif", "gif", pixels="rgb8"),
        "one.mp4": video("one.mp4", "libx264", num_frames=1),
        "irregular.mp4": video("irregular.mp4", "libx264", times=IRREGULAR),
        "sound-first.mp4": video("sound-first.mp4", "libx264", sound=("aac", np.float32)),
        "444.mp4": video("444.mp4", "libx264", height=63, width=97, pixels="yuv444p"),
        "odd.mp4": video("odd.mp4", "mpeg4", height=51, width=77, grey=True),
        "odd.webm": video("odd.webm", "libvpx-vp9", height=45, width=71, grey=True),
        "narrow.mp4": video("narrow.mp4", "mpeg4", height=90, width=34),
    }
    videos["turned.mp4"] = turned(place / "turned.mp4", videos["h264.mp4"])
    videos["named.avi"] = str(place / "named.avi")  # mp4
    (place / "named.avi").write_bytes(open(videos["h264.mp4"], "rb").read())
    return videos
