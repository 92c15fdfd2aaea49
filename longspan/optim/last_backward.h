// The backward of a step's last row, in which the gradients of units become complete.
#pragma once

#include <map>

#include "longspan/parameters/parameter_hooks.h"

namespace longspan {

/// Follows the announced uses of units, from the beginning of the last row's forward on.
class LastBackward {
 public:
  /// `top_unit`: the highest unit of the language model. The backward of a vision tower, whose
  /// units are higher, comes last.
  explicit LastBackward(int top_unit) : top_unit_(top_unit) {}

  /// Called before the forward of the last row.
  void begin() { is_on_ = true; }
  void end();
  bool is_on() const { return is_on_; }

  /// As the members of ParameterHooks. Uses without a graph have no backward, and do not count.
  void before(int unit, ParameterHooks::Use use);
  void after(int unit, ParameterHooks::Use use);
  /// True if the step's gradients of this unit, and of all higher units of the language model, are
  /// complete.
  bool is_complete(int unit) const;

 private:
  int top_unit_;
  bool is_on_ = false;
  std::map<int, int> uses_left_;  // whose backward has not ended
};

}  // namespace longspan
