// Callbacks around the decoder's uses of its parameters, so that parameters can be gathered before
// and freed after each use.
#pragma once

namespace longspan {

/// The decoder announces parameters by units (spec/parameter_spec.h), except kAlwaysThere, whose
/// parameters must always be there.
class ParameterHooks {
 public:
  enum class Use {
    kForward,    // values are read
    kBackward,   // values are read, gradients of trained parameters accumulate
    kGradients,  // gradients accumulate (of the head: from its forward on), values are not read
  };

  virtual ~ParameterHooks() = default;
  /// Called before a unit is used. `next`: the unit used after `unit`, if this unit is known and
  /// its values are read; otherwise -1. A unit may be used again before after() is called. Of the
  /// uses of a unit, the backward is the last one with a call of after().
  virtual void before(int unit, Use use, int next) = 0;
  /// Called when the unit's values are no longer read. After a backward, its gradients of this use
  /// are complete. Not called after the backward of the lowest trained unit.
  virtual void after(int unit, Use use) = 0;
};

}  // namespace longspan
