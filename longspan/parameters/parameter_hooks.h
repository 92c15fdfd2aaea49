// A decoder tells its hooks when it uses which of its parameters, so that these can be gathered
// before and freed after each use.
#pragma once

namespace longspan {

/// The decoder announces parameters by units (spec/parameter_spec.h), but for those of
/// kAlwaysThere, which must be there all the time.
class ParameterHooks {
 public:
  enum class Use {
    kForward,    // values are read
    kBackward,   // values are read, gradients of the trained ones are added to
    kGradients,  // gradients are added to, values are not read; the head's from its forward on
  };

  virtual ~ParameterHooks() = default;
  /// The unit is about to be used. `next`: the one after it, if it is known and its values are
  /// read; else -1. A unit may be used again before it was let go; the backward lets it go last.
  virtual void before(int unit, Use use, int next) = 0;
  /// The unit's values are no longer read; after a backward, its gradients of this use are
  /// complete. Is not called after the backward of the lowest trained unit.
  virtual void after(int unit, Use use) = 0;
};

}  // namespace longspan
