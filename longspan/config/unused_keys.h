// Keys of rollouts and distillation that have no effect with certain values of other keys. No
// torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

struct Config;
struct UnusedKeyFacts;

/// Keys that are refused where nothing reads them.
struct UnusedKeys {
  std::vector<std::string_view> keys;
  /// Whether nothing reads the keys.
  bool (*are_unused)(const UnusedKeyFacts& facts);
  /// The same in words, after "has no effect": the other key and its value, and the reason.
  std::string_view where;
  std::string_view remedy = {};  // in addition to "remove the key"
  /// The keys belong to the source of rollouts. A Session, and a run on a caller's rows, have no
  /// such source.
  bool of_source = false;
};

/// The table. The first entry that applies to a key gives its explanation.
const std::vector<UnusedKeys>& unused_keys();

/// Returns a problem, as check_config does, for each key of the table that has another value than
/// its default and no effect. `has_source`: the run reads the key rollout.
std::vector<std::string> problems_of_unused_keys(const Config& config, bool has_source);

}  // namespace longspan
