// The table of keys of a configuration file. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "longspan/settings/choices.h"

namespace longspan {

struct Config;

/// A field of type T in one of the sections of a Config.
template <class T>
class FieldOf {
 public:
  using Value = T;

  /// Needs config/config.h at the call.
  template <class Section>
  FieldOf(T Section::* member) {
    const auto field = [member](auto& config) -> auto& {
      using Own = std::conditional_t<std::is_const_v<std::remove_reference_t<decltype(config)>>,
                                     const Section, Section>;
      return std::get<Own&>(std::tie(config.model, config.method, config.method.generation,
                                     config.preferences, config.preferences.policy, config.data,
                                     config.output, config.output.services, config.optimization,
                                     config.memory, config.exporting, config.parallel)).*
             member;
    };
    read_ = field;
    write_ = field;
  }

  const T& in(const Config& config) const { return read_(config); }
  T& in(Config& config) const { return write_(config); }

 private:
  std::function<const T&(const Config&)> read_;
  std::function<T&(Config&)> write_;
};

/// The field that receives a key's value.
using Field = std::variant<FieldOf<std::string>, FieldOf<bool>, FieldOf<int64_t>, FieldOf<double>,
                           FieldOf<std::optional<std::string>>, FieldOf<std::optional<int64_t>>,
                           FieldOf<std::optional<double>>, FieldOf<std::optional<bool>>,
                           FieldOf<int>, FieldOf<std::optional<int>>>;

/// The action of a resumed run for a key whose value has changed since the start. Contents of
/// folders are compared separately, so their names are kFree.
enum class OnResume {
  kRefused,  // refuses: the new value would change the meaning of the weights trained so far
  kNamed,    // continues with the new value, and reports both
  kFree,     // no action: the key affects rounding at most, or another key covers it
};

/// A supported key.
struct Key {
  std::string_view name;
  Field field;
  OnResume on_resume;
  std::string_view help;
  std::string_view differs = {};  // how LLaMA-Factory differs: one sentence or more
  // Numbers: the smallest and the largest value. above_least excludes the smallest value ("above
  // 0").
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;
  bool below_most = false;  // excludes the largest value; check_config() gives the reason
  bool not_zero = false;
  std::string_view zero_word = {};  // a word that is accepted in place of a number, and means 0
  // Accepted words; empty: any text.
  std::vector<std::string_view> choices = {};
  // Words of LLaMA-Factory that are unsupported here.
  std::vector<std::string_view> unsupported_choices = {};
  std::string_view unsupported_remedy = {};  // more advice than "remove it"
  std::string (*unsupported_remedy_of)(std::string_view word) =
      nullptr;  // for advice that differs by word
  // Several words are accepted, as a list or with commas.
  bool list = false;
  // Also accepts a boolean, as the word true or false.
  bool truth = false;
  // A count of steps: a whole number; below 1, a fraction of all steps.
  bool steps = false;
  // The only finetuning_type that uses the key; not set: every type uses the key.
  std::optional<FinetuningType> finetuning_type = {};
};

struct KeySection {
  std::string_view title;
  std::vector<Key> keys;
};
const std::vector<KeySection>& key_sections();

/// A key that is accepted with any value, and has no effect here.
struct IdleKey {
  std::string_view name;
  std::string_view reason;
};
const std::vector<IdleKey>& idle_keys();

/// An unsupported key of LLaMA-Factory. The key is refused, unless its value is a no-op: null;
/// false where `neutral` is empty; or one of the JSON values in `neutral`.
struct UnsupportedKey {
  std::string_view name;
  std::string_view neutral = {};  // JSON values separated by |
  std::string_view remedy = {};   // more advice than "remove it"
  bool of_generation = false;     // a key of `longspan chat` and `longspan generate`
};
const std::vector<UnsupportedKey>& unsupported_keys();
/// Splits `neutral` into its values.
std::vector<std::string> split_values(std::string_view values);

/// An old name of a key. The value of the old name goes to the key `today`.
struct RenamedKey {
  std::string_view name, today;
};
const std::vector<RenamedKey>& renamed_keys();

/// A boolean key with the opposite meaning of the key `of`: false for this key is true for `of`.
struct OppositeKey {
  std::string_view name, of, help;
};
const std::vector<OppositeKey>& opposite_keys();

/// Returns the text of `longspan help NAME` for a key of any table; "" for an unknown name.
std::string explain_key(std::string_view name);

/// Returns the supported key that is nearest to the given name, or the first key that has all words
/// of that name (num_epochs: num_train_epochs); "" where there is no such key.
std::string nearest_key(std::string_view name);

/// Returns a JSON schema (draft 7) of configuration files, for editors.
std::string json_schema();

/// One line of `longspan help train`.
struct KeyDescription {
  std::string section, name, wants, default_value, help;
  std::string stages;  // "dpo, kto"; empty: all stages
};
std::vector<KeyDescription> describe_keys();

/// Returns the key's value as text, for example "true"; "" for a key that is left out.
std::string value_of(const Key& key, const Config& config);

/// Returns "a whole number, at least 1", "one of: no, steps, epoch", "text", ...
std::string what_is_wanted(const Key& key);

}  // namespace longspan
