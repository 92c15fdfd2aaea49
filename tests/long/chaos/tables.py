"""What is printed: a line for each fault, and at the end the faults by kind."""

import statistics


def line_of(outcome):
    wrong = f"\n    WRONG: {outcome.wrong}" if outcome.wrong else ""
    if not outcome.struck:
        return f"  {outcome.fault}, {outcome.moment}: too late, {outcome.end}" + wrong
    verdict = "HANGS" if outcome.hang else outcome.end
    text = f"  {outcome.fault}, {outcome.moment}: {verdict} after {outcome.seconds:.1f} s (bound {outcome.bound:.0f})"
    if outcome.launcher_bound:
        text += f", a launcher after {outcome.launcher_seconds:.1f} s (bound {outcome.launcher_bound:.0f})"
    text += f" [{outcome.notes}]" if outcome.notes else ""
    return text + wrong


def lines_of(case, result):
    lines = [f"case {case.number}: {case.kind.name}"] + [line_of(outcome) for outcome in result.outcomes]
    if result.trouble:
        lines.append(f"  the harness itself: {result.trouble}")
    elif result.differences:
        lines += [f"  DIFFERENT: {difference}" for difference in result.differences]
    else:
        lines.append("  the same bits")
    if result.kept:
        lines.append(f"  kept in {result.kept}; again: {result.replay}")
    return "\n".join(lines)


def totals(results):
    """Of all cases: faults that struck, cases that differ, hangs, ends that are not promised, troubles of the harness."""
    struck = [outcome for result in results for outcome in result.outcomes if outcome.struck]
    return dict(cases=len(results), faults=len(struck), differences=sum(bool(result.differences) for result in results),
                hangs=sum(outcome.hang for outcome in struck),
                wrong=sum(bool(outcome.wrong) for result in results for outcome in result.outcomes),
                troubles=sum(bool(result.trouble) for result in results))


def rows_of(results):
    """By kind of fault: counts and times to the end. A case that differs counts for its last fault."""
    rows = {}
    for result in results:
        struck = [outcome for outcome in result.outcomes if outcome.struck]
        for outcome in struck:
            row = rows.setdefault(outcome.fault, dict(faults=0, went_on=0, differences=0, hangs=0, wrong=0, seconds=[], bound=0,
                                                      launchers=[], launcher_bound=0))
            row["faults"] += 1
            row["went_on"] += outcome.end == "done"
            row["hangs"] += outcome.hang
            row["wrong"] += bool(outcome.wrong)
            row["differences"] += bool(result.differences) and outcome is struck[-1]
            row["bound"] = max(row["bound"], outcome.bound)
            if outcome.launcher_bound:
                row["launchers"].append(outcome.launcher_seconds)
                row["launcher_bound"] = max(row["launcher_bound"], outcome.launcher_bound)
            if outcome.end != "done":
                row["seconds"].append(outcome.seconds)
    return rows


def table(results, ddp_timeout):
    """Times are from the fault to the end of the last process, in seconds, of runs that ended by it; last, of launchers that may end
    after the workers, the worst and their bound."""
    lines = [f"{'fault':<36} {'count':>5} {'went on':>7} {'differ':>6} {'hang':>5} {'wrong':>5} {'median':>7} {'worst':>7} {'bound':>6} "
             f"{'ddp_timeout':>11} {'launcher':>8} {'bound':>6}"]
    for name, row in sorted(rows_of(results).items()):
        median = f"{statistics.median(row['seconds']):.1f}" if row["seconds"] else "-"
        worst = f"{max(row['seconds']):.1f}" if row["seconds"] else "-"
        launcher = f"{max(row['launchers']):>8.1f} {row['launcher_bound']:>6.0f}" if row["launchers"] else f"{'-':>8} {'-':>6}"
        lines.append(f"{name:<36} {row['faults']:>5} {row['went_on']:>7} {row['differences']:>6} {row['hangs']:>5} {row['wrong']:>5} "
                     f"{median:>7} {worst:>7} {row['bound']:>6.0f} {ddp_timeout:>11} {launcher}")
    return "\n".join(lines)


def summary(results, minutes):
    counts = totals(results)
    return (f"{counts['faults']} faults in {counts['cases']} cases, {minutes:.1f} minutes: {counts['differences']} differences, "
            f"{counts['hangs']} hangs past the bound, {counts['wrong']} ends that are not promised"
            + (f", {counts['troubles']} troubles of the harness itself" if counts["troubles"] else ""))
