"""Parametrized sets of which `make test` runs a part. If a set is marked `thinned(n)`, the cases run whose numbers along all
axes sum to a multiple of n: each value of an axis is among them if another axis has n values. Cases that are marked `rest` do
not run. `make test-cases` runs all cases, and so does pytest if a node id or -k names one (with "[")."""

import os


def thin(config, items):
    named = [*config.args, config.option.keyword]
    if os.environ.get("LONGSPAN_ALL_CASES") or any("[" in argument for argument in named):
        return
    others = {item for item in items if is_of_the_rest(item)}
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]


def is_of_the_rest(item):
    if item.get_closest_marker("rest"):
        return True
    mark = item.get_closest_marker("thinned")
    if not mark:
        return False
    numbers = dict(item.callspec.indices)  # right for the parameters of fixtures alone
    for parametrized in item.iter_markers("parametrize"):
        names, cases = parametrized.args[0].replace(" ", "").split(","), parametrized.args[1]
        for name in names:
            del numbers[name]
        own = [item.callspec.params[name] for name in names]
        numbers[names[0]] = [values_of(case, len(names)) for case in cases].index(own)
    return sum(numbers.values()) % mark.args[0] != 0


def values_of(case, num_names):
    if hasattr(case, "marks"):  # of pytest.param
        return list(case.values)
    return [case] if num_names == 1 else list(case)
