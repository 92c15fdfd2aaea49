#include "longspan/registers/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "longspan/base/user_error.h"
#include "longspan/input/numbers.h"

namespace longspan {
namespace {

/// Share of the way from the end of warmup to the end of training.
double progress_after_warmup(int64_t step, int64_t num_warmup_steps, int64_t num_training_steps) {
  return static_cast<double>(step - num_warmup_steps) /
         static_cast<double>(std::max<int64_t>(1, num_training_steps - num_warmup_steps));
}

double constant(double /*progress*/) { return 1.0; }
double linear(double progress) { return std::max(0.0, 1.0 - progress); }
double cosine(double progress) {
  return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

struct Schedule {
  const char* name;
  bool warms_up;
  double (&factor)(double progress);  // after warmup
};
constexpr Schedule kSchedules[] = {{"linear", true, linear},
                                   {"cosine", true, cosine},
                                   {"constant", false, constant},
                                   {"constant_with_warmup", true, constant}};

const Schedule& schedule_named(const std::string& name) {
  for (const Schedule& schedule : kSchedules) {
    if (name == schedule.name) return schedule;
  }
  throw UserError(fmt::format("lr_scheduler_type: {} is not supported; use one of {}.", name,
                              fmt::join(names_of_schedules(), ", ")));
}

}  // namespace

std::vector<std::string_view> names_of_schedules() {
  std::vector<std::string_view> names;
  for (const Schedule& schedule : kSchedules) names.push_back(schedule.name);
  return names;
}

bool warms_up(const std::string& name) { return schedule_named(name).warms_up; }

double schedule_factor(const std::string& name, int64_t step, int64_t num_warmup_steps,
                       int64_t num_training_steps) {
  const Schedule& schedule = schedule_named(name);
  if (schedule.warms_up && step < num_warmup_steps) {
    return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, num_warmup_steps));
  }
  return schedule.factor(progress_after_warmup(step, num_warmup_steps, num_training_steps));
}

int64_t warmup_steps_of(double warmup_ratio, double warmup_steps, int64_t num_training_steps) {
  const double share = warmup_steps > 0 ? warmup_steps : warmup_ratio;
  return whole_number(
      warmup_steps >= 1 ? warmup_steps : std::ceil(share * static_cast<double>(num_training_steps)),
      "warmup_steps", 0, kMostCounted);
}

}  // namespace longspan
