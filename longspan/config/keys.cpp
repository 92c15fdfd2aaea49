#include "longspan/config/keys.h"

#include <algorithm>
#include <utility>

#include "longspan/config/key_tables.h"

namespace longspan {
namespace key_tables {

Key number(std::string_view name, Field field, OnResume on_resume, double least,
           std::string_view help, double most) {
  return {.name = name,
          .field = field,
          .on_resume = on_resume,
          .help = help,
          .least = least,
          .most = most};
}

Key choice(std::string_view name, Field field, OnResume on_resume,
           std::vector<std::string_view> choices, std::string_view help,
           std::vector<std::string_view> others) {
  std::erase_if(others,
                [&](std::string_view word) { return std::ranges::count(choices, word) > 0; });
  return {.name = name,
          .field = field,
          .on_resume = on_resume,
          .help = help,
          .choices = std::move(choices),
          .unsupported_choices = std::move(others)};
}

Key steps(std::string_view name, Field field, OnResume on_resume, std::string_view help,
          bool none_allowed) {
  return {.name = name,
          .field = field,
          .on_resume = on_resume,
          .help = help,
          .least = 0,
          .most = kMostSteps,
          .above_least = !none_allowed,
          .steps = true};
}

Key plain(std::string_view name, Field field, OnResume on_resume, std::string_view help) {
  return {.name = name, .field = field, .on_resume = on_resume, .help = help};
}

Key or_zero(std::string_view word, Key key) {
  key.zero_word = word;
  return key;
}

Key only_for(FinetuningType type, Key key) {
  key.finetuning_type = type;
  return key;
}

Key noted(Key key, std::string_view differs) {
  key.differs = differs;
  return key;
}

}  // namespace key_tables

const std::vector<KeySection>& key_sections() {
  using namespace key_tables;
  static const std::vector<KeySection> sections = {
      model_keys(),      method_keys(),   preference_keys(), policy_keys(),
      generation_keys(), data_keys(),     output_keys(),     optimization_keys(),
      memory_keys(),     parallel_keys(), export_keys()};
  return sections;
}

}  // namespace longspan
