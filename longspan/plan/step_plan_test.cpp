#include "longspan/plan/step_plan.h"

#include <limits>

#include "doctest/doctest.h"
#include "longspan/base/user_error.h"

namespace longspan {

TEST_CASE("steps: the last of an epoch has what is left") {
  const StepPlan plan = StepPlan::make(10, 4, 2.0, -1);
  CHECK(plan.steps_per_epoch == 3);
  CHECK(plan.total_steps == 6);
  CHECK(plan.place(2).begin_batch == 8);
  CHECK(plan.place(2).end_batch == 10);
  CHECK(plan.place(2).epochs_done == 1.0);
  CHECK(plan.ends_epoch(2));
  CHECK_FALSE(plan.ends_epoch(3));
  CHECK(plan.place(3).epoch == 1);
  CHECK(plan.place(3).begin_batch == 0);
  CHECK(plan.place(3).epochs_done == 1.4);
}

TEST_CASE("steps: fractional epochs round up to whole steps, max_steps goes first") {
  CHECK(StepPlan::make(10, 4, 0.5, -1).total_steps == 2);
  CHECK(StepPlan::make(10, 4, 0.1, -1).total_steps == 1);
  CHECK(StepPlan::make(10, 4, 3.0, 7).total_steps == 7);
  CHECK(StepPlan::make(2, 8, 3.0, -1).total_steps == 3);
}

TEST_CASE("steps: a stream of examples ends by max_steps, and is one epoch") {
  const StepPlan plan = StepPlan::make(std::nullopt, 4, 3.0, 7);
  CHECK(plan.total_steps == 7);
  CHECK(plan.place(6).epoch == 0);
  CHECK(plan.place(6).begin_batch == 24);
  CHECK(plan.place(6).end_batch == 28);
  CHECK(plan.place(6).epochs_done == 1.0);
  CHECK(plan.ends_epoch(6));
  CHECK_THROWS_WITH_AS(StepPlan::make(std::nullopt, 4, 3.0, -1), doctest::Contains("Set max_steps"),
                       UserError);
  CHECK_THROWS_AS(StepPlan::make(std::nullopt, 4, 3.0, int64_t{1} << 60), UserError);
}

TEST_CASE("steps: below 1 a share of all, rounded up") {
  CHECK(steps_of(0.25, 10) == 3);
  CHECK(steps_of(0.001, 10) == 1);
  CHECK(steps_of(1, 10) == 1);
  CHECK(steps_of(500, 10) == 500);
}

TEST_CASE("steps: what cannot be counted is refused, and trains not nothing") {
  CHECK(StepPlan::make(10, 1, 1e14, -1).total_steps == 1'000'000'000'000'000);
  CHECK_THROWS_WITH_AS(StepPlan::make(10, 1, 1e18, -1),
                       doctest::Contains("num_train_epochs 1e+18 with 10 each: 1e+19 was given"),
                       UserError);
  CHECK_THROWS_AS(StepPlan::make(10, 1, std::numeric_limits<double>::infinity(), -1), UserError);
  CHECK_THROWS_AS(steps_of(1e19, 10), UserError);
  CHECK_THROWS_AS(steps_of(2.5, 10), UserError);
  CHECK(epochs_of(2.5) == 3);
  CHECK_THROWS_AS(epochs_of(1e19), UserError);
}

}  // namespace longspan
