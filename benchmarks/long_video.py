"""One training step on a row that is an hour of video: peak memory beside the bytes of the row's pixels. README.md in
this folder says more."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "parity"))

from picture_models import write_folder  # noqa: E402

FPS = 2
HEIGHT, WIDTH = 392, 560  # of a frame: 280 tokens for two frames


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3600, help="of the video (default 3600)")
    parser.add_argument("--ranks", type=int, default=2, help="processes that share the row (default 2)")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "longspan")
    parser.add_argument("--out", type=Path, default=Path("long-video"))
    return parser.parse_args()


def write_video(path, num_frames):
    """A gradient that moves: frames that differ, and compress well."""
    rows = np.linspace(0, 255, HEIGHT)[:, None] + np.zeros((1, WIDTH))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "ultrafast", "threads": "2"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for i in range(num_frames):
            picture = np.stack([np.roll(rows, i, 0), np.roll(rows, 3 * i, 0), np.full_like(rows, i % 256)], 2)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture.astype(np.uint8), format="rgb24")))
        container.mux(stream.encode())


def write_model(folder):
    """A small model with a sliding window: a step on a million tokens takes minutes on a CPU."""
    write_folder(folder, "qwen2_vl")
    tokens = {key: value for key, value in json.loads((folder / "config.json").read_text()).items() if key.endswith("_id")}
    text = dict(vocab_size=len(transformers.AutoTokenizer.from_pretrained(folder)), hidden_size=32, intermediate_size=32,
                num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1 << 21,
                use_sliding_window=True, sliding_window=1024, max_window_layers=0,
                rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3]))
    vision = dict(depth=1, embed_dim=16, hidden_size=32, mlp_ratio=2, num_heads=1, patch_size=14)
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **tokens)
    torch.manual_seed(0)
    transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)


def main():
    options = parse_arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = options.out / "model"
    num_frames = options.seconds * FPS
    video = options.out / f"{options.seconds}.mp4"
    if not video.exists():
        write_video(video, num_frames)
    if not folder.exists():
        folder.mkdir()
        write_model(folder)
    row = dict(messages=[dict(role="user", content="<video>What happens?"), dict(role="assistant", content="Colours move.")],
               videos=[str(video.resolve())])
    (options.out / "rows.json").write_text(json.dumps([row]))
    tags = dict(role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant")
    (options.out / "dataset_info.json").write_text(json.dumps(dict(film=dict(
        file_name="rows.json", formatting="sharegpt", columns=dict(messages="messages", videos="videos"), tags=tags))))
    output = options.out / "output"
    keys = dict(model_name_or_path=str(folder), stage="sft", finetuning_type="full", dataset="film",
                dataset_dir=str(options.out),
                template="qwen2_vl", cutoff_len=1 << 21, video_fps=FPS, video_maxlen=num_frames,
                video_max_pixels=HEIGHT * WIDTH, output_dir=str(output), overwrite_output_dir=True, max_steps=1,
                per_device_train_batch_size=1, gradient_accumulation_steps=1, logging_steps=1, save_strategy="no",
                nproc_per_node=options.ranks, sequence_parallel_size=options.ranks, do_train=True)
    begin = time.monotonic()
    (options.out / "config.yaml").write_text(json.dumps(keys))  # JSON is YAML
    subprocess.run([options.program, "train", options.out / "config.yaml"], check=True)
    seconds = time.monotonic() - begin
    memory = json.loads((output / "memory.json").read_text())
    tokens = memory["facts"]["num_tokens"]
    pixels = num_frames * HEIGHT * WIDTH * 3 * 4
    peak = max(measured["resident"] for measured in memory["measured"])
    print(f"{tokens:,} tokens, {num_frames:,} frames, pixels in fp32 {pixels / 2**30:.1f} GiB; {options.ranks} ranks, each at "
          f"most {peak / 2**30:.2f} GiB resident (account {(memory['device'] + memory['host']) / 2**30:.2f} GiB of tensors); "
          f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
