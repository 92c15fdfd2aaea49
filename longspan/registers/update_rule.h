// The description of an optimizer. Keys, help, the memory and disk estimates and the run read the
// description, and none of them names an optimizer. No torch.
//
// Each description is one constant in its file in optim/. Its functions are references, so that an
// incomplete description does not compile.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "longspan/spec/held_parameter.h"

namespace longspan {

class Optimizer;
struct OptimizationSettings;
struct OptimizerJob;

struct UpdateRule {
  std::span<const std::string_view> names;  // the values of optim that select it
  std::string_view help;                    // a part of the help of the key optim
  /// True if an update needs the whole parameter, which sharding gathers for the update.
  bool (&wants_whole)(const ParameterSpec& parameter);
  /// Bytes of the state of a trained parameter, in the dtype of the update: in memory, and in a
  /// checkpoint.
  int64_t (&state_bytes)(const HeldParameter& parameter);
  int64_t (&saved_bytes)(const HeldParameter& parameter);
  /// Bytes of temporaries that the update of the parameter needs on the device, besides its state.
  int64_t (&working_bytes)(const HeldParameter& parameter, bool cuda);
  std::unique_ptr<Optimizer> (&make)(const OptimizerJob& job);
};

/// The register, in the order of the help (optim/update_rules.cpp).
std::span<const UpdateRule* const> all_update_rules();

/// Throws UserError with all names if `name` is unknown.
const UpdateRule& update_rule_named(std::string_view name);
/// Returns the rule of config.optim.
const UpdateRule& update_rule_of(const OptimizationSettings& config);

/// Returns false: for rules that update elements independently.
bool wants_nothing_whole(const ParameterSpec& parameter);
/// Returns 0: for rules that update in place.
int64_t works_in_place(const HeldParameter& parameter, bool cuda);

}  // namespace longspan
