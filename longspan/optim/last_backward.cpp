#include "longspan/optim/last_backward.h"

#include <c10/core/GradMode.h>

#include <algorithm>

namespace longspan {

void LastBackward::end() {
  is_on_ = false;
  uses_left_.clear();
}

void LastBackward::before(int unit, ParameterHooks::Use use) {
  if (is_on_ && use == ParameterHooks::Use::kForward && c10::GradMode::is_enabled())
    ++uses_left_[unit];
}

void LastBackward::after(int unit, ParameterHooks::Use use) {
  if (is_on_ && use != ParameterHooks::Use::kForward) --uses_left_[unit];
}

bool LastBackward::is_complete(int unit) const {
  if (!is_on_ || unit > top_unit_) return false;
  return std::ranges::all_of(uses_left_, [&](const auto& left) {
    return left.first < unit || left.first > top_unit_ || left.second <= 0;
  });
}

}  // namespace longspan
