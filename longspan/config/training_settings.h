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

/// Returns all keys that have a value.
Settings all_settings(const Config& config);

/// Returns the keys that all ranks of a run must have alike, since they may decide whether a
/// collective is called, or its size: all keys that have a value, except those of
/// keys_of_one_process().
Settings settings_of_all_ranks(const Config& config);
/// Returns the keys that may differ between the ranks of a run: names of places, and settings of a
/// process and its machine.
std::vector<std::string_view> keys_of_one_process();

/// Returns the keys that determine how data sets become rows: the keys of the data section that
/// name no place, and the stage.
Settings row_settings(const Config& config);

/// Returns the keys that determine the training rows of streamed data sets.
Settings stream_settings(const Config& config);
/// Whether another value of the key may make other training rows of streamed data sets.
bool makes_streamed_rows(std::string_view key);

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
