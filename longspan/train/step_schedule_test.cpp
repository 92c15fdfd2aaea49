#include "longspan/train/step_schedule.h"

#include <doctest/doctest.h>

#include <string>

namespace longspan {
namespace {

/// Settings of 3 epochs of 4 batches: 6 steps of two batches each, two steps per epoch.
struct ScheduleCase {
  MethodSettings method;
  OptimizationSettings optimization;
  OutputSettings output;

  ScheduleCase() {
    optimization.num_train_epochs = 3;
    optimization.gradient_accumulation_steps = 2;
    output.logging_strategy = output.save_strategy = optimization.eval_strategy = "no";
    output.logging_steps = 4;
  }
  StepSchedule schedule() const { return {method, optimization, output, 4}; }
  /// Returns the steps, counted from 1, after which `is_due` is true.
  std::string steps(bool DueAfterStep::* is_due) const {
    const StepSchedule made = schedule();
    std::string steps;
    for (int64_t step = 0; step < made.plan().total_steps; ++step) {
      if (made.due_after(step).*is_due) steps += std::to_string(step + 1) + " ";
    }
    return steps;
  }
};

}  // namespace

TEST_CASE("step schedule: what is due by steps, by epochs and never") {
  ScheduleCase test;
  REQUIRE(test.schedule().plan().total_steps == 6);
  CHECK(test.steps(&DueAfterStep::log) == "");
  CHECK(test.steps(&DueAfterStep::evaluate) == "");
  CHECK(test.steps(&DueAfterStep::save) == "");
  CHECK(test.steps(&DueAfterStep::retry_save) == "4 ");
  CHECK_FALSE(test.schedule().evaluates_at_end());
  test.output.logging_first_step = true;
  CHECK(test.steps(&DueAfterStep::log) == "1 ");

  test.output.logging_strategy = test.output.save_strategy = "steps";
  test.optimization.eval_strategy = "steps";
  test.output.save_steps = 0.34;  // of 6 steps, rounded up
  CHECK(test.steps(&DueAfterStep::log) == "1 4 ");
  CHECK(test.steps(&DueAfterStep::evaluate) == "4 6 ");  // at the log's interval, and at the end
  CHECK(test.steps(&DueAfterStep::save) == "3 6 ");
  CHECK(test.schedule().num_saves_after(3) == 1);
  test.optimization.eval_steps = 5;
  CHECK(test.steps(&DueAfterStep::evaluate) == "5 6 ");

  test.output.logging_strategy = test.output.save_strategy = "epoch";
  test.optimization.eval_strategy = "epoch";
  test.output.logging_first_step = false;
  CHECK(test.steps(&DueAfterStep::log) == "2 4 6 ");
  CHECK(test.steps(&DueAfterStep::evaluate) == "2 4 6 ");
  CHECK(test.steps(&DueAfterStep::save) == "2 4 6 ");
  CHECK(test.schedule().evaluates_at_end());
}

TEST_CASE("step schedule: do_eval alone evaluates at the end") {
  ScheduleCase test;
  test.method.do_eval = true;
  CHECK(test.steps(&DueAfterStep::evaluate) == "");
  CHECK(test.schedule().evaluates_at_end());
}

}  // namespace longspan
