// Callbacks around the decoder's uses of its parameters, so that parameters can be gathered before
// and freed after each use.
#pragma once

namespace longspan {

/// The decoder announces each use of a unit of parameters (spec/parameter_spec.h). The parameters
/// of kAlwaysThere are not announced, and must always exist.
class ParameterHooks {
 public:
  enum class Use {
    kForward,    // values are read
    kBackward,   // values are read, gradients of trained parameters accumulate
    kGradients,  // gradients accumulate (of the head: from its forward on), values are not read
  };

  virtual ~ParameterHooks() = default;
  /// Called before a unit is used. `next`: the unit used after `unit`, if this unit is known and
  /// its values are read; otherwise -1. A unit may be used again before after() is called. The
  /// backward is the last use of a unit for which after() is called.
  virtual void before(int unit, Use use, int next) = 0;
  /// Called when the unit's values are no longer read. After a backward, its gradients of this use
  /// are complete. Not called after the backward of the lowest trained unit.
  virtual void after(int unit, Use use) = 0;
};

}  // namespace longspan
