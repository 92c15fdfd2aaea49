// An optimizer as a description: keys, help, the accounts of memory and disk and the run read it,
// and know no optimizer by name. No torch.
//
// Each is one constant in its file in optim/. Functions are references: a description that forgets
// one does not compile.
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
  std::span<const std::string_view> names;  // the values of optim that mean it
  std::string_view help;                    // a part of the help of the key optim
  /// Does an update need all numbers of the parameter at once? Sharding then makes it whole.
  bool (&wants_whole)(const ParameterSpec& parameter);
  /// Bytes of the state of a parameter that is trained, in the dtype in which it is updated: in
  /// memory, and in a checkpoint.
  int64_t (&state_bytes)(const HeldParameter& parameter);
  int64_t (&saved_bytes)(const HeldParameter& parameter);
  /// Bytes that the update of the parameter works with on the device beside all of these.
  int64_t (&working_bytes)(const HeldParameter& parameter, bool cuda);
  std::unique_ptr<Optimizer> (&make)(const OptimizerJob& job);
};

/// The register, in the order of the help. (optim/update_rules.cpp)
std::span<const UpdateRule* const> all_update_rules();

/// Throws UserError, with all names, where there is none.
const UpdateRule& update_rule_named(std::string_view name);
/// That of config.optim.
const UpdateRule& update_rule_of(const OptimizationSettings& config);

/// Rules that update each number by itself want nothing whole.
bool wants_nothing_whole(const ParameterSpec& parameter);
/// Rules that update in place work with nothing beside.
int64_t works_in_place(const HeldParameter& parameter, bool cuda);

}  // namespace longspan
