// The part of the configuration that a run saves: keys that determine the trained parameters and
// the training. No torch.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/config/keys.h"

namespace longspan {

struct Config;

/// Returns the OnResume of a key of key_sections(). Throws std::logic_error for another name.
OnResume on_resume(std::string_view key);

/// Keys and values as text ("not set" for none), in the order of the table.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Returns all keys except OnResume::kFree keys and keys of other stages and finetuning types.
Settings training_settings(const Config& config);

/// Replaces the value of a key in the list; no-op for another key. For values that the run computes
/// from the configuration (lora_target: all).
void set_value(Settings& settings, std::string_view key, std::string value);

struct ChangedSetting {
  std::string key, then, now;
  OnResume on_resume = OnResume::kNamed;
};
/// Returns the keys that are in both lists with different values.
std::vector<ChangedSetting> changed_settings(const Settings& then, const Settings& now);

}  // namespace longspan
