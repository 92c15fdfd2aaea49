"""Few runs in which many values meet: each pair of values of two axes is in one of them."""

import itertools


def covering_array(axes, pairs_of_axes, allowed):
    """Dictionaries of a value for each of the axes ({name: [values]}), so that every two values of each of
    `pairs_of_axes` meet in one that is `allowed`, where there is such a one. The same list each time."""
    names = list(axes)
    possible = [dict(zip(names, values)) for values in itertools.product(*axes.values())]
    possible = [row for row in possible if allowed(row)]

    def pairs_of(row):
        return {(one, row[one], other, row[other]) for one, other in pairs_of_axes if one in row and other in row}

    left = {pair: None for row in possible for pair in sorted(pairs_of(row), key=pairs_order(names))}
    rows = []
    while left:
        one, value, other, other_value = next(iter(left))
        row = {one: value, other: other_value}
        able = [whole for whole in possible if whole[one] == value and whole[other] == other_value]
        for name in sorted((name for name in names if name not in row), key=lambda name: -len(axes[name])):
            def gain(value, name=name):
                uses = sum(value == earlier[name] for earlier in rows)  # each value about as often
                return len(pairs_of(row | {name: value}) & left.keys()), -uses

            row[name] = max((v for v in axes[name] if any(whole[name] == v for whole in able)), key=gain)
            able = [whole for whole in able if whole[name] == row[name]]
        rows.append({name: row[name] for name in names})
        for pair in pairs_of(row):
            left.pop(pair, None)
    return rows


def pairs_order(names):
    return lambda pair: (names.index(pair[0]), names.index(pair[2]), str(pair[1]), str(pair[3]))
