"""A model whose chat template writes the date: all rows of a run have one, however long it takes and wherever it runs.

The clock stays; the time zone is what changes the date. Local times of the first zone and of the last are 46 hours apart.
"""

import json
import shutil

import pytest
from conftest import Running, settings_of, write_model
from shared import made_once
from test_resume import change_state, halfway, same_bytes

DAY, NEXT_DAYS = dict(TZ="UTC+23"), dict(TZ="UTC-23")


@pytest.fixture
def settings(place, data, tmp_path):
    def make(folder):
        write_model(folder, "llama")
        template = folder / "chat_template.jinja"
        template.write_text("{{ strftime_now('Today is %d %B %Y\\n') }}" + template.read_text())

    dated = made_once(place / "dated", make)

    def of(name, **changes):
        return settings_of(dated, data, tmp_path / name, save_strategy="steps", save_steps=3, max_steps=6,
                           eval_dataset="held_out", eval_strategy="steps", eval_steps=3, cutoff_len=64) | changes

    return of


def ended(settings, num_ranks=1, status=0, **variables):
    run = Running(settings, num_ranks, **variables).wait(120)
    assert set(run.statuses) == {status}, run.text
    return run


def time_of(folder):
    return json.loads((folder / "training_state.json").read_text())["run"]["moment"]


def test_a_run_goes_on_another_day(settings, tmp_path):
    whole = ended(settings("whole"), **DAY)
    output_dir = halfway(whole, 3, tmp_path / "halves")
    resumed = ended(settings("halves") | dict(output_dir=output_dir), **NEXT_DAYS)
    assert "step 3 of 6" in resumed.text
    same_bytes(whole, resumed)  # losses of evaluations too
    time = time_of(whole.output_dir / "checkpoint-6")
    assert time_of(resumed.output_dir / "checkpoint-6") == time
    assert f"is {time}." in whole.text and f"is {time}." in resumed.text
    # The template that is saved is the model's own, which writes the day when it is used.
    own = (tmp_path.__class__(settings("x")["model_name_or_path"]) / "chat_template.jinja").read_bytes()
    assert (resumed.output_dir / "chat_template.jinja").read_bytes() == own


def test_ranks_on_both_sides_of_midnight(settings, tmp_path):
    """They train the rows of rank 0's day, as one process does that goes on from there another day."""
    two = ended(settings("two", gradient_accumulation_steps=2), 2, own=[DAY, NEXT_DAYS])
    one = settings("one") | dict(output_dir=halfway(two, 3, tmp_path / "one"))
    assert "step 3 of 6" in ended(one, **NEXT_DAYS).text


def test_a_checkpoint_of_an_earlier_version_has_no_time(settings, tmp_path):
    """The day when it was saved stands for it, which is right where the run began on that day."""
    whole = ended(settings("whole", save_total_limit=1, max_steps=3), **DAY)
    checkpoint = whole.output_dir / "checkpoint-3"
    change_state(checkpoint, lambda state: state["run"].pop("moment"))
    shutil.copytree(whole.output_dir, tmp_path / "other")
    assert "step 3 of 6" in ended(settings("whole"), **DAY).text
    refused = ended(settings("other"), status=1, **NEXT_DAYS)
    assert "the fingerprint of the training rows was" in refused.text
    assert "saved no time" in refused.text and "strftime_now" in refused.text
