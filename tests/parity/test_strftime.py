"""strftime_now of chat templates against Python's strftime."""

import datetime
import json

import pytest
from test_text import probe  # noqa: F401

# Python's documented ones, and those of the C library that templates are written with.
DIRECTIVES = [f"%{letter}" for letter in "aAwdbBmyYHIMpfzZjUWcxXGuV%CDeFghklnPrRtT"] + ["%-d", "%-m", "%-H", "%_d", "%:z"]


@pytest.mark.parametrize("time", ["2026-11-26T00:05:09.000007", "2024-02-29T23:59:59.999999", "2027-01-01T12:00:00"])
def test_a_time_as_python_writes_it(probe, time):  # noqa: F811
    """Whatever the time is where it is written, and whatever the time zone."""
    python = datetime.datetime.fromisoformat(time)
    for directive in DIRECTIVES:
        written = probe.ask("render", template="[{{ strftime_now('" + directive + " of %B') }}]",
                            variables=json.dumps({"strftime_now": time}))
        # Before 3.12 Python leaves it to the C library, which does not know it.
        expected = "" if directive == "%:z" else python.strftime(directive)
        assert written.get("text") == f"[{expected} of {python.strftime('%B')}]", (directive, written)


@pytest.mark.parametrize("directive", ["%s", "%+", "%3f", "%Q", "%"])  # of epochs and other libraries
def test_a_time_is_not_written_otherwise(probe, directive):  # noqa: F811
    render = dict(template="{{ strftime_now('" + directive + "') }}")
    said = probe.ask("render", variables=json.dumps({"strftime_now": "2026-11-26T00:05:09"}), **render)
    assert "no such format" in said["error"], said
    for none, why in (({}, "no time is known"), ({"strftime_now": "26 Nov"}, "is no date and time")):
        said = probe.ask("render", template="{{ strftime_now('%d') }}", variables=json.dumps(none))
        assert why in said["error"], said
