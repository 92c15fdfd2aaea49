"""Inputs that once were findings: inputs_of(reader) is {file name: bytes}. They are made, since most are long; what is
short and was found by fuzzing lies in regressions/<reader>/. What the first characters of an input choose stands at its
reader."""

import json

from made_tensors import (adapter_configs, adapter_weights, expert_weights, fp8_weights, grouped_weights, model_configs,
                          quantization_keys, stacked_adapters, state_files, tensor_files)
from made_texts import (DEEP, FEW, NESTED, NUMBERS, deep_templates, json_texts, large_templates, pipelines,
                        vocabularies, yaml_texts)

WHOLE = "model_name_or_path: model\nstage: sft\ndo_train: true\ndataset: d\noutput_dir: out\n"
# Keys that are cast to whole numbers, or decide what is allocated.
SIZES = {
    "num_train_epochs": ["1e18", "1e300", "1e-300", "9.3e18"],
    "val_size": ["1e19", "1e18", "0.9999999"],
    "max_steps": ["9223372036854775807", "1e18"],
    "save_steps": ["1e18", "1e300"],
    "logging_steps": ["1e300", "1e-300"],
    "warmup_steps": ["1e300"],
    "eval_steps": ["1e19"],
    "per_device_train_batch_size": ["1000000000", "9223372036854775807"],
    "gradient_accumulation_steps": ["9223372036854775807"],
    "max_samples": ["9223372036854775807"],
    "cutoff_len": ["9223372036854775807"],
    "preprocessing_num_workers": ["1000000000"],
    "seed": ["18446744073709551615", "-1"],
}


def prefixed(prefix, texts):
    """Under other names, so that several can be put together."""
    return {f"{prefix}-{name}": text for name, text in texts.items()}


def after(prefix, texts):
    return {name: (prefix.encode() if isinstance(text, bytes) else prefix) + text for name, text in texts.items()}


def sizes(prefix=""):
    return {f"{key}-{i}": f"{prefix}{WHOLE}{key}: {value}\n" + ("packing: true\n" if key == "cutoff_len" else "")
            for key, values in SIZES.items() for i, value in enumerate(values)}


def row(**columns):
    return json.dumps(columns)


def call(arguments):
    return '{"name": "f", "arguments": ' + arguments + "}"


DEEP_CALL = call(FEW["some-levels"])
# A conversation in which a call is trained; way 2 of the targets' rows.
WITH_DEEP_CALL = row(m=[{"role": "user", "content": "q"}, {"role": "call", "content": DEEP_CALL},
                        {"role": "tool", "content": "{}"}, {"role": "assistant", "content": "a"}])
DEEP_CALL_TURNS = f"0q\n4{DEEP_CALL}\n3{{}}\n1a"


def early_file(place, *numbers):
    """Three records, and numbers that lie at a place of their file instead: the places of the records come first, then
    size, checksum and bytes of the last record."""
    return b"a\n%%\nb\n%%\nc\n%%\n" + place.to_bytes(2, "little") + b"".join(
        number.to_bytes(8, "little", signed=True) for number in numbers)


def bad_rows():
    """(way, row)."""
    return {
        "number-as-message": ("2", row(m=[1])),
        "list-as-message": ("2", row(m=[[1, 2]])),
        "null-as-message": ("2", row(m=[None])),
        "text-as-messages": ("2", row(m="q")),
        "number-as-turn": ("0", row(p="a", r="b", h=[1])),
        "list-as-row": ("2", "[1]"),
        "deep-call": ("2", WITH_DEEP_CALL),
        "deep-column": ("0", '{"p": ' + FEW["mixed"] + "}"),
        "beyond-double": ("0", '{"p": "a", "r": "b", "x": 1e999}'),
        "escapes": ("2", row(m=[{"role": "\x1b]0;x\x07", "content": "\x1b[2J"}])),
    }


def of_configurations():
    return {
        "json": json_texts(nested=NESTED),
        "yaml": yaml_texts(),
        "config": yaml_texts("0") | sizes("0") | prefixed("json", json_texts("1")) | prefixed(
            "json-dataset", json_texts("1", "dataset")) | prefixed("export", json_texts("3")),
        "run_rows": sizes(),
        "overrides": {
            "long-key": "a" * 1_000_000 + "=1",
            "deep": "dataset=" + FEW["mixed"],
            "epochs": "num_train_epochs=1e18",
            "escapes": "\x1b]0;x\x07=1",
            "empty-key": "=1",
            "dashes": "--",
        },
        "deepspeed": json_texts() | prefixed("in", json_texts("", "zero_optimization")) | {
            "stage": '{"zero_optimization": {"stage": 1e300}}',
            "null-stage": '{"zero_optimization": {"stage": null}}',
        },
        "key_names": {"long": "a" * 1_000_000, "escapes": "\x1b]0;x\x07"},
        "options": {"numbers": "--seed\n1e18\n--sizes=1,,99999999999999999999"},
        "generation_arguments": {
            "tokens": "0max_new_tokens=9223372036854775808",
            "nan": "0temperature=nan",
            "batch": "1batch_size=9223372036854775807",
            "long-key": "0" + "a" * 1_000_000 + "=1",
        },
        "launcher_variables": {
            "port": "MASTER_PORT=65536\nNNODES=2\nMASTER_ADDR=a",
            "minus": "RANK=0\nWORLD_SIZE=-1",
            "job": "SLURM_STEP_ID=0\nSLURM_NTASKS=2\nSLURM_PROCID=0\nSLURM_JOB_ID=-2147483648",
            "nodes": "SLURM_STEP_ID=0\nSLURM_NTASKS=2147483647\nSLURM_PROCID=0\nSLURM_NNODES=2147483647",
            "list": "SLURM_STEP_ID=0\nSLURM_NTASKS=2\nSLURM_PROCID=0\nSLURM_NNODES=2\nSLURM_STEP_NODELIST=[",
            "world": "NNODES=2147483647\nNPROC_PER_NODE=2\nMASTER_ADDR=a",
        },
    }


def of_data():
    files = NESTED | NUMBERS
    return {
        "dataset_info": json_texts("0") | prefixed("in", json_texts("0", "d")) | {
            "samples": '0{"d": {"file_name": "rows.json", "num_samples": 1e18}}',
            "number": '0{"d": 1}',
            "folder": '0{"d": {"file_name": "."}}',
            "nul-in-name": '0{"d": {"file_name": "a\\u0000b"}}',
        },
        "row_files": prefixed("json", after("00", files)) | prefixed("jsonl", after("10", files)) | prefixed(
            "txt", after("20", files)) | {
            "data-object": '01{"data": ' + NESTED["closed-lists"] + "}",
            "open-objects": "00" + "{\n" * 100_000,
            "pretty": "00{\n" + '"a": [\n' * 50_000 + "]\n" * 50_000 + "}",
            "blank-lines": "10" + "\n" * 500_000,
            "quotes": '00{"a": "' + '\\"' * DEEP,
            "broken-lines": "10" + "{\n" * 50_000,
        },
        "conversations": {name: way + "1" + text for name, (way, text) in bad_rows().items()} | {
            "deep-list": "00" + FEW["deep-lists"]},
        "stops_at_bad_rows": {name: way + text for name, (way, text) in bad_rows().items()},
        "examples": {"deep-call": "20" + WITH_DEEP_CALL, "named-deep-call": "21" + WITH_DEEP_CALL},
        "early_files": {
            "no-place": early_file(0, 0),
            "place-before": early_file(0, -1),
            "place-beyond": early_file(0, 2**63 - 1),
            "place-of-another": early_file(0, 24),
            "place-of-itself": early_file(0, 0, 8, 16),
            "long": early_file(24, 2**63 - 1),
            "negative": early_file(24, -1),
            "beyond": early_file(2**16 - 1, 1),
            "ends-in-head": early_file(30),
            "ends-in-places": early_file(3),
        },
        "function_calls": {name: call(text) for name, text in files.items()} | prefixed("bare", NESTED),
        "prompt_files": after("0", FEW) | {
            "deep-column": '1{"prompt": "a", "x": ' + FEW["mixed"] + "}",
            "beyond-double": '1{"prompt": "a", "x": 1e999}',
            "number-as-message": '1{"messages": [1]}',
        },
    }


def of_texts():
    templates = deep_templates() | large_templates()
    short = {name: text for name, text in templates.items() if len(text) < 1000}
    return {
        "tokenizer": pipelines() | vocabularies(),
        "tokenizer_config": json_texts("0") | prefixed("template", after("1{}\n%%\n", short)),
        "chat_template": templates,
        "chat_variables": {name: '{{ messages }}\n%%\n{"messages": ' + text + "}" for name, text in FEW.items()},
        "model_template": {"deep-call": DEEP_CALL_TURNS},
        "named_templates": {"deep-call": "00" + DEEP_CALL_TURNS},
        "encoded_text": {"long": "ab " * 100_000, "one-word": "a" * 200_000, "no-text": b"\xff" * 50_000},
        "decoded_ids": {"negative": b"\xff" * 64},
        "terminal_text": {"title": "\x1b]0;x\x07", "c1": "\u009b2J"},
        "event_files": {
            "length-lies": b"1" + (2**64 - 1).to_bytes(8, "little") + bytes(8),
            "length-wraps": b"1" + (2**64 - 13).to_bytes(8, "little") + bytes(40),
        },
    }


def training_states():
    plain = {"format": 1, "launch": "", "saved_at": 0, "world_size": 1, "sequence_parallel_size": 1, "averages": []}
    changes = {"double": {"world_size": 1e300}, "short-averages": {"averages": [{"a": [1]}]},
               "number-as-stage": {"run": {"stage": 1}}}
    return {name: json.dumps(plain | change) for name, change in changes.items()}


def trainer_states():
    histories = {
        "integer-loss": [{"loss": 1, "step": 1}],
        "fraction-of-step": [{"loss": 1.5, "step": 2.5}],
        "wide-step": [{"loss": 1.5, "step": 18446744073709551615}],
        "no-step": [{"loss": 1.5}],
        "empty": [{}],
        "no-objects": [1, [2], None],
        "integer-flos": [{"total_flos": 1, "step": 1}],
    }
    return {name: json.dumps({"log_history": history}) + "\n%%\n" for name, history in histories.items()}


def trainer_logs():
    """(draws, [(step, loss)])."""
    logs = {
        "null-step": ("0", [(None, 1)]),
        "text-step": ("0", [("1", 1)]),
        "subnormal-steps": ("1", [(5e-324, 1), (1e-323, 2)]),
        "wide-steps": ("1", [(1e308, 1e308), (-1e308, -1e308)]),
        "one-step": ("1", [(1, 1)]),
        "tiny-losses": ("1", [(1, 5e-324), (2, 0)]),
    }
    return {name: draws + "".join(json.dumps({"current_steps": step, "loss": loss}) + "\n" for step, loss in points)
            for name, (draws, points) in logs.items()}


def of_checkpoints():
    files = '{{"files": {{"a.txt": {{"size": {}, "xxh64": "0"}}, "b.txt": {{"size": {}, "xxh64": "0"}}}}}}'
    chat_files = {}
    for way in "0123":
        chat_files |= prefixed(way, json_texts(way))
    return {
        "model_config": json_texts() | model_configs(),
        "quantization_keys": json_texts("0") | prefixed("awq", json_texts("1")) | quantization_keys(),
        "model_place": after("0", FEW) | prefixed("adapter", after("4", FEW)),
        "adapter_positions": json_texts() | prefixed("in", json_texts("", "rope_scaling")),
        "chat_files": chat_files | {
            "wide-ids": '2{"eos_token_id": [4294967296, 18446744073709551615, 1.5]}',
            "list-as-content": '0{"eos_token": {"content": []}}',
        },
        "checksums": json_texts() | prefixed("in", json_texts("", "files")) | {
            "negative": files.format(-9223372036854775808, 1),
            "wide": files.format(9223372036854775807, 9223372036854775807),
            "double": files.format(1e300, 1),
            "outside": files.replace("b.txt", "../../../../etc/hostname").format(1, 1),
        },
        "training_state": json_texts() | training_states(),
        "trainer_state": {name: text + "\n%%\n" for name, text in json_texts("", "log_history").items()} |
        trainer_states(),
        "trainer_logs": json_texts("0") | trainer_logs(),
        "beats": {
            "numbers": "99999999999999999999\nh\nm\n1\n1\nd\n0\n",
            "ending": "1\nh\nm\n1\n1\nd\n2147483647\n",
            "nothing": "",
        },
    }


def of_tensors():
    assistant = {}
    for way in "0124":
        assistant |= prefixed(way, json_texts(way))
    return {
        "safetensors": tensor_files(),
        "weights": tensor_files(),
        "value_head": tensor_files(),
        "state_parts": state_files(),
        "weights_index": json_texts() | prefixed("in", json_texts("", "weight_map")) | {
            "outside": '{"weight_map": {"a": "../../../../etc/hostname"}}',
            "absolute": '{"weight_map": {"a": "/dev/zero"}}',
            "number": '{"weight_map": {"a": 1}}',
        },
        "config_beside_weights": model_configs(),
        "adapter_config": json_texts() | prefixed("in", json_texts("", "r")) | adapter_configs(),
        "adapter_weights": tensor_files() | {"i32-matrices": adapter_weights("I32"),
                                             "i64-matrices": adapter_weights("I64")},
        "mxfp4_weights": tensor_files() | expert_weights(),
        "fp8_weights": tensor_files() | fp8_weights(),
        "gptq_weights": tensor_files() | grouped_weights("gptq"),
        "awq_weights": tensor_files() | grouped_weights("awq"),
        "stacked_adapters": after("0", tensor_files()) | stacked_adapters() | prefixed("config", json_texts("1")),
        "assistant": assistant | {
            "tokens": '0{"max_new_tokens": 1e300}',
            "negative-tokens": '0{"max_new_tokens": -1}',
            "wide-id": '0{"eos_token_id": 4294967298}',
            "temperature": '0{"do_sample": true, "temperature": 1e999}',
            "negative-top-k": '0{"do_sample": true, "top_k": -5}',
        },
        "reference_cache": json_texts("", "logps") | {
            "null": '{"example": 0, "logps": [null, 1]}',
            "negative": '{"example": -1, "logps": [1, 2]}',
            "double": '{"example": 1e300, "logps": [1, 2]}',
            "text": '{"example": "a", "logps": "b"}',
            "object": '{"example": 0, "logps": {}}',
        },
    }


MADE = {}


def inputs_of(reader):
    if not MADE:
        MADE.update(of_configurations() | of_data() | of_texts() | of_checkpoints() | of_tensors())
    return {name: text if isinstance(text, bytes) else text.encode() for name, text in MADE.get(reader, {}).items()}


def readers():
    inputs_of("")
    return MADE.keys()
