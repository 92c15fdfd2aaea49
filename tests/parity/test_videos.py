"""Video files against LLaMA-Factory's own code, which decodes by PyAV: the chosen frames, their pixels and times, the
tokens and positions of rows; and files that are no videos."""

import json
import re
import shutil
import subprocess

import llamafactory_data
import numpy as np
import pytest
from conftest import BUILD
from picture_models import PADS, Processor, folder_of
from test_data import TAGS, encode
from test_llamafactory_templates import split
from test_pictures import CASES, check_document, encoder_with_pictures
from video_files import needs_decoder, write_video, write_videos

pytestmark = needs_decoder
ENTRY = dict(formatting="sharegpt", columns=dict(messages="messages", images="images", videos="videos"), tags=TAGS)


@pytest.fixture(scope="module")
def theirs():
    template, supervised, pairwise = llamafactory_data.load()
    return template, supervised, pairwise, llamafactory_data.load_pictures()


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return write_videos(tmp_path_factory.mktemp("videos"))


class Probe:
    def __init__(self, folder):
        self.out = folder / "out"
        self.process = subprocess.Popen([BUILD / "picture_probe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, path, fps=2.0, maxlen=128, **request):
        request |= dict(do="video", file=path, fps=fps, maxlen=maxlen, out=str(self.out))
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "picture_probe died"
        return json.loads(line)

    def frames(self, answer):
        width, height = answer["size"]
        return np.fromfile(self.out, np.uint8).reshape(-1, height, width, 3)


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    probe = Probe(tmp_path_factory.mktemp("probe"))
    yield probe
    probe.process.stdin.close()
    assert probe.process.wait(timeout=60) == 0


def plugin_of(theirs, name="qwen2_vl"):
    return theirs[3].get_mm_plugin(name, image_token=PADS["<image>"], video_token=PADS["<video>"])


def seen_by(plugin, path, fps=2.0, maxlen=128):
    """Frames, indices in steps of 1 / fps, and frames a second, before any limit of pixels."""
    seen = plugin._regularize_videos([path], image_max_pixels=1 << 40, image_min_pixels=1, video_fps=fps,
                                     video_maxlen=maxlen)
    return seen["videos"][0], seen["frames_indices"][0], seen["fps_per_video"][0]


NAMES = ["h264.mp4", "long.mp4", "large.mov", "mpeg4.avi", "mjpeg.avi", "vp9.webm", "vp8.webm", "h264.mkv", "hevc.mp4",
         "colours.gif", "one.mp4", "irregular.mp4", "sound-first.mp4", "444.mp4", "odd.mp4", "odd.webm", "narrow.mp4",
         "turned.mp4", "named.avi"]


@pytest.mark.parametrize("keys", [{}, dict(fps=0.3), dict(fps=7.3, maxlen=6), dict(fps=1000), dict(maxlen=1)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_frames(name, keys, theirs, videos, probe):
    """The pixels are the same to the bit. Where a side of 4:2:0 is odd, versions of libswscale interpolate colours
    differently: these videos are grey, whose colours are off by at most 1 after compression, which is 2 levels of blue."""
    answer = probe.ask(videos[name], **keys)
    frames, indices, fps = seen_by(plugin_of(theirs), videos[name], **keys)
    assert "error" not in answer, answer
    ours = probe.frames(answer)
    assert len(frames) == len(ours) + len(ours) % 2
    assert answer["times"] == [index / keys.get("fps", 2.0) for index in indices]
    assert answer["fps"] == fps
    most = 2 if name.startswith("odd") else 0
    for mine, their in zip(ours, frames):
        assert np.abs(mine.astype(int) - np.array(their)).max() <= most


def test_frames_in_any_order(videos, probe):
    """A file that is open behind a frame is opened anew."""
    for name in ("h264.mp4", "long.mp4", "h264.mp4", "mpeg4.avi"):
        answers = [probe.ask(videos[name], fps=fps) for fps in (1, 5)]
        assert all("error" not in answer for answer in answers)


def conversations(videos):
    """Of one or two videos each, some of them lists of frames."""
    rows = []
    for i, name in enumerate(NAMES):
        second = videos[NAMES[(i * 7 + 3) % len(NAMES)]]
        messages = [dict(role="user", content="<video>What happens?"), dict(role="assistant", content=f"Nothing, {i}.")]
        if i % 3 == 0:
            messages += [dict(role="user", content="And here: <video>"), dict(role="assistant", content="A lot.")]
        rows.append(dict(messages=messages, images=[], videos=[videos[name], second][:1 + (i % 3 == 0)]))
    return rows


@pytest.mark.parametrize("family,template", CASES)
def test_rows(family, template, theirs, videos, tmp_path_factory, tmp_path):
    folder, rows = folder_of(tmp_path_factory, family), conversations(videos)
    for keys in ({}, dict(video_fps=3.5, video_maxlen=5, video_max_pixels=5000)):
        encodes = encoder_with_pictures(theirs, "SupervisedDatasetProcessor", folder, family, template,
                                        Processor(family, **keys))
        ours = encode(folder, tmp_path, rows, ENTRY, template=template, **keys)
        for row, example in zip(rows, ours, strict=True):
            system, messages = split([dict(message) for message in row["messages"]])
            ids, labels = encodes._encode_data_example(messages[:-1], messages[-1:], system, None, [], row["videos"], [])
            document, = example["documents"]
            assert (document["input_ids"], document["labels"]) == (ids, labels), row
            assert [picture["files"] for picture in document["pictures"]] == [[path] for path in row["videos"]]
            given = {"fps": keys.get("video_fps", 2.0), "maxlen": keys.get("video_maxlen", 128)}
            fps = [seen_by(plugin_of(theirs), path, **given)[2] for path in row["videos"]]
            check_document(family, folder, document, fps)


def hostile(place, videos):
    """Files that are no videos, or broken ones."""
    whole = open(videos["h264.mp4"], "rb").read()
    moved = open(write_video(place / "fast.mp4", "libx264", options={"movflags": "faststart"}), "rb").read()
    large = bytearray(open(videos["mpeg4.avi"], "rb").read())
    at = large.index(b"strf") + 12
    large[at:at + 8] = (60000).to_bytes(4, "little") * 2
    large = large.replace(b"FMP4", b"\0\0\0\0")  # pixels without a codec, whose size only the header says
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n/etc/passwd\n#EXT-X-ENDLIST\n"
    files = {
        "empty.mp4": b"",
        "noise.mp4": np.random.default_rng(3).bytes(5000),
        "cut.mp4": whole[:len(whole) // 2],
        "header.mp4": whole[:40],
        "tail.mp4": moved[:len(moved) - len(moved) // 3],
        "list.mp4": playlist,
        "list.m3u8": playlist,
        "list.ffconcat": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "large.avi": bytes(large),
        "picture.mp4": b"\x89PNG\r\n\x1a\n" + bytes(100),
    }
    for name, content in files.items():
        (place / name).write_bytes(content)
    return [str(place / name) for name in files]


def test_hostile_files(videos, tmp_path_factory, tmp_path):
    folder = folder_of(tmp_path_factory, "qwen2_vl")
    good = conversations(videos)[:2]
    for path in hostile(tmp_path, videos):
        bad = dict(good[1], videos=[path])
        with pytest.raises(AssertionError) as raised:
            encode(folder, tmp_path, [good[0], bad], ENTRY, template="qwen2_vl")
        assert "row 2" in str(raised.value) and str(raised.value).count(path) == 1, raised.value
        assert "the video" in str(raised.value) or "the file" in str(raised.value), raised.value
        left = encode(folder, tmp_path, [good[0], bad], ENTRY, template="qwen2_vl", on_bad_row="skip")
        assert len(left) == 1


def test_changed_file(videos, probe):
    answer = probe.ask(videos["h264.mp4"], version=1)
    assert re.search("h264.mp4: the video has changed since the run read its data sets", answer["error"])


def test_missing_decoder(videos, tmp_path_factory, tmp_path):
    """One sentence, also with on_bad_row: skip. The probe is started where no decoder lies beside it."""
    folder = folder_of(tmp_path_factory, "qwen2_vl")
    encode(folder, tmp_path, conversations(videos)[:2], ENTRY, template="qwen2_vl", on_bad_row="skip")
    shutil.copy(BUILD / "data_probe", tmp_path / "data_probe")
    said = subprocess.run([tmp_path / "data_probe"], input=f"{tmp_path / 'config.json'}\n", capture_output=True, text=True,
                          timeout=120).stdout
    assert "h264.mp4: files of videos cannot be read: this build has no decoder" in json.loads(said.splitlines()[0])["error"]
    assert "apt-get install libavformat-dev" in said and "list of pictures" in said
