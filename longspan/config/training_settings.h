// What a run remembers of its configuration: the keys that decide what is trained, and how. No
// torch.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/config/keys.h"

namespace longspan {

struct Config;

/// The class of a key of key_sections(). Throws std::logic_error for another name.
OnResume on_resume(std::string_view key);

/// Keys and their values as text ("not set" where there is none), in the order of the table.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// All keys but the free ones, without those of other stages and other kinds of fine-tuning.
Settings training_settings(const Config& config);

/// Replaces the key's value, where the list has the key: for values that the run computes from the
/// configuration (lora_target: all).
void set_value(Settings& settings, std::string_view key, std::string value);

struct ChangedSetting {
  std::string key, then, now;
  OnResume on_resume = OnResume::kNamed;
};
/// The keys that both lists have and whose values differ.
std::vector<ChangedSetting> changed_settings(const Settings& then, const Settings& now);

}  // namespace longspan
