"""Tables of what liblaunches.so wrote: where a training step's time on the GPU goes.

  python tests/gpu/launches.py records.tsv --steps 6

Takes the records of the last step: from the end of one optimizer's update to the end of the next."""

import argparse
import collections
import re


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records")
    parser.add_argument("--steps", type=int, required=True, help="of the run; the last whole one is looked at")
    parser.add_argument("--update", default="dam", help="what the names of the optimizer's kernels have in them")
    parser.add_argument("--rows", type=int, default=30)
    return parser.parse_args()


def short(name):
    name = re.sub(r"^_Z\w*?(?=[a-z]{4})", "", name) if name.startswith("_Z") else name
    return name[:150]


# By the first pattern that a name has in it: FlashAttention 3 is written in CUTLASS, and NCCL broadcasts.
KINDS = [
    ("NCCL", r"nccl"),
    ("attention forward", r"flash_fwd|FlashAttnFwd|flash_fprop"),
    ("attention backward", r"flash_bwd|FlashAttnBwd|flash_bprop|cudnn.*(dot_do_o|convert_dq)"),
    ("optimizer", r"adam|multi_tensor|foreach"),
    # The names in longspan/cuda/rows.
    ("recurrences", r"^(unit_heads|delta_chunks|delta_scan|causal_conv)_"),
    ("experts", r"^(grouped_\w+|group_tiles|cast_matrices|combine_rows|order_arrived)$"),
    ("rows (longspan/cuda/rows)", r"_v\d+$|^sum_weight_gradients$"),
    ("gemm", r"gemm|cutlass|nvjet|Kernel2|sm90_xmma|splitK|cublas"),
    ("softmax, loss", r"oftmax|logsumexp|nll"),
    ("reductions", r"reduce_kernel"), ("copies and casts", r"copy|Copy|cast"),
    ("elementwise", r"elementwise|Elementwise|vectorized"), ("index", r"index|gather|scatter|Scatter"),
]


def kind_of(name):
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def last_step(records, options):
    """From the end of the last but one update to that of the last."""
    updates = [r for r in records if r[0] == "kernel" and re.search(options.update, r[5])]
    if not updates or len(updates) % options.steps != 0 or options.steps < 2:
        raise SystemExit(f"{len(updates)} kernels of the optimizer are not of {options.steps} steps (two or more)")
    each = len(updates) // options.steps
    return updates[-each - 1][2], updates[-1][2]


def overlap(records, chosen):
    """(ns of these records in which a kernel that is none of them runs too, ns of them in all)"""
    edges = []
    for record in records:
        if record[0] == "wait" or not (chosen(record) or record[0] == "kernel"):
            continue
        which = 0 if chosen(record) else 1
        edges += [(record[1], which, 1), (record[2], which, -1)]
    running, hidden, total, last = [0, 0], 0, 0, 0
    for time, which, change in sorted(edges):
        if running[0]:
            total += time - last
            hidden += (time - last) if running[1] else 0
        running[which] += change
        last = time
    return hidden, total


def read(path):
    """(kernel, copy, memset or wait; begin and end in ns; stream; size; name or type) of each, by their beginnings."""
    records = []
    try:
        with open(path, errors="replace") as file:
            for line in file:
                parts = line.rstrip("\n").split("\t")
                if len(parts) == 6:
                    records.append((parts[0], int(parts[1]), int(parts[2]), parts[3], int(parts[4]), parts[5]))
    except FileNotFoundError:
        raise SystemExit(f"there is no {path}: the driver has not loaded liblaunches.so") from None
    return sorted(records, key=lambda record: record[1])


WAITS = {"1": "for an event", "3": "for a stream", "4": "for the device"}  # of the host, by CUPTI's number


def main():
    options = parse_arguments()
    records = read(options.records)
    begin, end = last_step(records, options)
    # What goes on behind the update counts until then.
    records = [(what, start, min(stop, end), *rest) for what, start, stop, *rest in records if begin <= start < end]
    waits = [record for record in records if record[0] == "wait" and record[5] in WAITS]
    seconds = (end - begin) / 1e9
    work = sorted((start, end) for what, start, end, *_ in records if what != "wait")
    busy, gaps = 0, []
    reached = begin
    for start, end in work:
        if start > reached:
            gaps.append(start - reached)
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    kernels = [record for record in records if record[0] == "kernel"]
    print(f"{len(kernels)} kernels, {sum(r[0] == 'copy' for r in records)} copies, "
          f"{sum(r[0] == 'memset' for r in records)} memsets, {len(waits)} waits of the host in "
          f"{seconds:.3f} s; the GPU is busy for {busy / 1e9:.3f} s")
    long_gaps = [gap for gap in gaps if gap >= 10_000]
    print(f"gaps in which the GPU does nothing: {len(gaps)}, {sum(gaps) / 1e6:.1f} ms; of 10 us and longer: {len(long_gaps)}, "
          f"{sum(long_gaps) / 1e6:.1f} ms; the longest: {max(gaps, default=0) / 1e6:.2f} ms")
    beside = {"copies": lambda r: r[0] == "copy", "NCCL": lambda r: r[0] == "kernel" and "nccl" in r[5].lower()}
    for name, chosen in beside.items():
        hidden, total = overlap(records, chosen)
        if total:
            print(f"{name}: {total / 1e6:.1f} ms, of which beside kernels: {hidden / 1e6:.1f} ms ({hidden / total:.0%})")
    for number, name in WAITS.items():
        took = [stop - start for _, start, stop, _, _, which in waits if which == number]
        if took:
            print(f"the host waits {name}: {len(took)} times, {sum(took) / 1e6:.1f} ms")
    between = sum(record[0] == "wait" and record[5] == "2" for record in records)
    print(f"streams wait for events of others: {between} times")
    copies = collections.defaultdict(lambda: [0, 0, 0])
    for what, start, end, _, size, kind in records:
        if what == "copy":
            copies[kind][0] += 1; copies[kind][1] += size; copies[kind][2] += end - start
    print("copies by kind (1 to device, 2 to host, 8 on the device): count, MB, ms:",
          {kind: (n, round(size / 1e6, 1), round(ns / 1e6, 1)) for kind, (n, size, ns) in copies.items()})
    kinds, names = collections.defaultdict(lambda: [0, 0]), collections.defaultdict(lambda: [0, 0])
    for _, start, end, _, _, name in kernels:
        for table, key in ((kinds, kind_of(name)), (names, name)):
            table[key][0] += 1; table[key][1] += end - start
    for table, rows in ((kinds, 20), (names, options.rows)):
        print("\n| ms | share | launches | us each | what |\n|---|---|---|---|---|")
        for key, (count, ns) in sorted(table.items(), key=lambda item: -item[1][1])[:rows]:
            print(f"| {ns / 1e6:.1f} | {ns / 1e9 / seconds:.1%} | {count} | {ns / 1e3 / count:.1f} | {short(key)} |")


if __name__ == "__main__":
    main()
