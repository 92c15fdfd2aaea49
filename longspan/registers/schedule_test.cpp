#include "longspan/registers/schedule.h"

#include <cmath>

#include "doctest/doctest.h"
#include "longspan/base/user_error.h"

namespace longspan {

TEST_CASE("schedules: warmup rises from 0 and the factor falls to 0 where it should") {
  for (const char* name : {"linear", "cosine", "constant_with_warmup"}) {
    CHECK(schedule_factor(name, 0, 4, 20) == 0.0);
    CHECK(schedule_factor(name, 1, 4, 20) == 0.25);
    CHECK(schedule_factor(name, 4, 4, 20) == 1.0);
  }
  CHECK(schedule_factor("linear", 12, 4, 20) == 0.5);
  CHECK(schedule_factor("linear", 20, 4, 20) == 0.0);
  CHECK(schedule_factor("cosine", 12, 4, 20) == doctest::Approx(0.5).epsilon(1e-15));
  CHECK(schedule_factor("cosine", 8, 4, 20) ==
        doctest::Approx(0.5 * (1 + std::sqrt(0.5))).epsilon(1e-15));
  CHECK(schedule_factor("constant_with_warmup", 19, 4, 20) == 1.0);
  CHECK(schedule_factor("constant", 0, 4, 20) == 1.0);
}

TEST_CASE("schedules: which begin with a warmup") {
  int warming = 0, others = 0;
  for (const std::string_view name : names_of_schedules()) {
    const bool rises = schedule_factor(std::string(name), 0, 4, 20) < 1.0;
    CHECK(warms_up(std::string(name)) == rises);
    ++(rises ? warming : others);
  }
  CHECK(warming == 3);
  CHECK(others == 1);
}

TEST_CASE("schedules: steps past the end stay at 0") {
  CHECK(schedule_factor("linear", 25, 0, 20) == 0.0);
  CHECK(schedule_factor("cosine", 20, 0, 20) == 0.0);
}

TEST_CASE("schedules: an unknown name is the user's mistake") {
  CHECK_THROWS_AS(schedule_factor("polynomial", 0, 0, 10), UserError);
}

TEST_CASE("warmup: steps go before ratio, a ratio is rounded up") {
  CHECK(warmup_steps_of(0.1, 7, 100) == 7);
  CHECK(warmup_steps_of(0.1, 0, 101) == 11);
  CHECK(warmup_steps_of(0.0, 0, 100) == 0);
  CHECK(warmup_steps_of(0.0, 0.1, 101) == 11);  // a share, as in transformers 5
  CHECK(warmup_steps_of(0.0, 1, 101) == 1);
}

}  // namespace longspan
