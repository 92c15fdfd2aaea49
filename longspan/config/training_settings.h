// What a run remembers of its configuration: the keys that decide what is trained, and how. No
// torch.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/config/config.h"

namespace longspan {

/// What a run that goes on makes of a key that has another value than at the start.
enum class OnResume {
  kRefused,  // the weights so far would mean something else
  kNamed,    // it trains otherwise from there on, which is said with both values
  kFree,     // where and how: what is trained does not depend on it, but for roundings
};

/// Of a key in key_sections(). Throws std::logic_error for a name that is none.
OnResume on_resume(std::string_view key);

/// Keys and their values as text ("not set" where there is none), in the order of the table.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// All keys but the free ones, without those of other stages and other kinds of fine-tuning.
Settings training_settings(const Config& config);

/// Puts another value where the key is in the list: what it comes to, if that is not what the
/// configuration says.
void set_value(Settings& settings, std::string_view key, std::string value);

struct ChangedSetting {
  std::string key, then, now;
  OnResume on_resume = OnResume::kNamed;
};
/// Keys that both lists have, with another value.
std::vector<ChangedSetting> changed_settings(const Settings& then, const Settings& now);

}  // namespace longspan
