"""Two folders of finished runs: what differs between them, but for times."""

import json

# What tells of time or of the machine.
TIMES = {"elapsed_time", "remaining_time", "throughput", "train_runtime", "train_samples_per_second", "train_steps_per_second",
         "train_tokens_per_second", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "computed_throughput",
         "train_computed_tokens_per_second"}
NUMBERS = {"trainer_state.json", "train_results.json", "eval_results.json", "all_results.json"}
LINES = {"trainer_log.jsonl"}
# What a run did since it was started last, pictures, tables that are kept, owners.
NOT_COMPARED = {"memory.json", "sequence_parallel.json", "expert_parallel.json", "training_args.json", "runs", "lost+found", "filler"}


def is_compared(name):
    beside = (".", "checkpoint-", "reference_logps_", "rollouts.kept")
    return not (name in NOT_COMPARED or name.startswith(beside) or name.endswith((".png", ".lock")))


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def differing_bytes(name, left, right):
    if left == right:
        return []
    if len(left) != len(right):
        return [f"{name}: {len(left)} bytes, and {len(right)}"]
    places = [i for i, (a, b) in enumerate(zip(left, right)) if a != b]
    return [f"{name}: {len(places)} bytes differ, the first at {places[0]}"]


def differing_values(name, left, right):
    """The first that differs, by its path."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            if key not in left or key not in right:
                return [f"{name}: {key} is only in {'the undisturbed' if key in left else 'the disturbed'} run"]
            if found := differing_values(f"{name}: {key}", left[key], right[key]):
                return found
        return []
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return [f"{name}: {len(left)} entries, and {len(right)}"]
        for number, (a, b) in enumerate(zip(left, right)):
            if found := differing_values(f"{name}[{number}]", a, b):
                return found
        return []
    # Of equal type, and NaN is NaN.
    return [] if json.dumps(left) == json.dumps(right) else [f"{name}: {left!r}, and {right!r}"]


def places_of(model, record):
    """Path by name of what is compared, where logs and results are in a folder of their own."""
    found = {path.name: path for path in model.iterdir() if is_compared(path.name) and path.name != "rollouts"}
    found |= {f"rollouts/{path.name}": path for path in model.glob("rollouts/*") if is_compared(path.name)}
    if record != model:
        found = {name: path for name, path in found.items() if name not in NUMBERS | LINES}
        found |= {path.name: path for path in record.iterdir() if path.name in NUMBERS | LINES}
    return found


def differences(undisturbed, disturbed, record, disk_lost=False):
    """Sentences; none where both are the same bit for bit. disturbed: the folder of the model; record: that of its logs and
    results. disk_lost: the disk may have forgotten what was not synced, as that the lock was let go, which the next run
    takes over."""
    places = {"undisturbed": places_of(undisturbed, undisturbed), "disturbed": places_of(disturbed, record)}
    names = {side: set(found) for side, found in places.items()}
    found = [f"{name} is only in the {side} run" for side, other in (("undisturbed", "disturbed"), ("disturbed", "undisturbed"))
             for name in sorted(names[side] - names[other])]
    if not any(name.endswith(".safetensors") for name in names["undisturbed"]):
        found.append("the undisturbed run has no weights")
    for name in sorted(names["undisturbed"] & names["disturbed"]):
        left, right = places["undisturbed"][name], places["disturbed"][name]
        if name in NUMBERS:
            found += differing_values(name, *[without_times(json.loads(path.read_text())) for path in (left, right)])
        elif name in LINES:
            found += differing_values(name, *[[without_times(json.loads(line)) for line in path.read_text().splitlines()]
                                              for path in (left, right)])
        else:
            found += differing_bytes(name, left.read_bytes(), right.read_bytes())
    # Checkpoints of the same step hold the same model.
    for folder in sorted(undisturbed.glob("checkpoint-*")):
        other = disturbed / folder.name
        if other.is_dir():
            for path in sorted(folder.glob("*.safetensors")):
                if not (other / path.name).exists():
                    found.append(f"{folder.name}/{path.name} is only in the undisturbed run")
                else:
                    found += differing_bytes(f"{folder.name}/{path.name}", path.read_bytes(), (other / path.name).read_bytes())
    left_over = [path.name for folder in {disturbed, record} for path in folder.iterdir()
                 if path.name.startswith(".") and path.name.endswith((".partial", ".replaced", ".deleted", ".tmp", "-lock"))]
    return found + [f"{name} is left over" for name in sorted(left_over) if not (disk_lost and name == ".longspan-lock")]
