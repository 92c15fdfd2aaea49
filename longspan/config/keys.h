// The table of keys: what can be written into a configuration file. No torch.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "longspan/config/choices.h"

namespace longspan {

struct Config;

/// Where a key's value goes.
using Field =
    std::variant<std::string Config::*, bool Config::*, int64_t Config::*, double Config::*,
                 std::optional<std::string> Config::*, std::optional<int64_t> Config::*,
                 std::optional<double> Config::*, std::optional<bool> Config::*, int Config::*,
                 std::optional<int> Config::*>;

/// What a resumed run does about a key whose value has changed since the start. What lies in
/// folders is compared by itself, so that their names are free.
enum class OnResume {
  kRefused,  // refuses: with this value the weights so far would mean something else
  kNamed,    // trains on with the new value, and says both
  kFree,     // nothing: the key changes what is trained by roundings at most, or another key does
};

/// A key that works.
struct Key {
  std::string_view name;
  Field field;
  OnResume on_resume;
  std::string_view help;
  std::string_view differs = {};  // how LLaMA-Factory does: one sentence or more
  // Numbers: the smallest and largest value; the smallest itself may be excluded ("above 0").
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;
  bool below_most = false;  // the largest is excluded, too; the checks of values say why
  bool not_zero = false;
  // Words: what may be written; empty means any text.
  std::vector<std::string_view> choices = {};
  // Words that LLaMA-Factory knows and that are unsupported here.
  std::vector<std::string_view> unsupported_choices = {};
  std::string_view unsupported_remedy = {};  // what to do instead, when there is more to say
  std::string (*unsupported_remedy_of)(std::string_view word) =
      nullptr;  // where words differ in it
  // A list of words may be written instead of one word with commas.
  bool list = false;
  // A truth value may be written instead of a word; it is then the word true or false.
  bool truth = false;
  // A count of steps: a whole number, or below 1 a share of all steps.
  bool steps = false;
  // The one finetuning_type that uses the key; absent: all do.
  std::optional<FinetuningType> finetuning_type = {};
};

struct KeySection {
  std::string_view title;
  std::vector<Key> keys;
};
const std::vector<KeySection>& key_sections();

/// A key that is taken whatever its value, since there is nothing for it to change here.
struct IdleKey {
  std::string_view name;
  std::string_view reason;
};
const std::vector<IdleKey>& idle_keys();

/// A key of LLaMA-Factory's that is unsupported. It is refused by name unless its value asks for
/// nothing: null, false where `neutral` is empty, or one of the JSON values in `neutral`.
struct UnsupportedKey {
  std::string_view name;
  std::string_view neutral = {};  // JSON values with | between them
  std::string_view remedy = {};   // what to do instead, when there is more to say than "remove it"
  bool of_generation = false;     // a key of `longspan chat` and `longspan generate`
};
const std::vector<UnsupportedKey>& unsupported_keys();
/// The values of `neutral`, one by one.
std::vector<std::string> split_values(std::string_view values);

/// A key by the name that it had once; its value goes to the key of today.
struct RenamedKey {
  std::string_view name, today;
};
const std::vector<RenamedKey>& renamed_keys();

/// A truth value that says the opposite of what the key `of` says: false here is true there.
struct OppositeKey {
  std::string_view name, of, help;
};
const std::vector<OppositeKey>& opposite_keys();

/// What `longspan help NAME` says of a key of any of the tables; empty when no table has it.
std::string explain_key(std::string_view name);

/// The key that works and is nearest to what was written, or the first that has all of its words
/// (num_epochs: num_train_epochs); empty when there is none such.
std::string nearest_key(std::string_view name);

/// A JSON schema (draft 7) of configuration files, for editors.
std::string json_schema();

/// One line of `longspan help train`.
struct KeyDescription {
  std::string section, name, wants, default_value, help;
  std::string stages;  // "dpo, kto"; empty: all
};
std::vector<KeyDescription> describe_keys();

/// "a whole number, at least 1", "one of: no, steps, epoch", "text", ...
std::string what_is_wanted(const Key& key);

}  // namespace longspan
