#include "longspan/settings/choices.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "longspan/config/config.h"
#include "longspan/config/keys.h"

namespace longspan {
namespace {

/// Tries every word of the table of keys.
template <typename Meaning>
void check_words(const char* name, int num_words, std::string Config::* field,
                 const Meaning& meaning) {
  int known = 0;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (std::string_view(key.name) != name) continue;
      for (const std::string_view word : key.choices) {
        CAPTURE(std::string(word));
        Config config;
        config.*field = std::string(word);
        CHECK_NOTHROW(meaning(config));
        ++known;
      }
    }
  }
  CHECK(known == num_words);
  Config config;
  config.*field = "sideways";
  CHECK_THROWS_AS(meaning(config), std::logic_error);
}

TEST_CASE("choices: each word that a key allows has a meaning") {
  check_words("finetuning_type", 3, &Config::finetuning_type,
              [](const Config& config) { finetuning_type_of(config); });
  check_words("device", 3, &Config::device, [](const Config& config) { wanted_device_of(config); });
  check_words("on_bad_row", 2, &Config::on_bad_row,
              [](const Config& config) { on_bad_row_of(config); });
  check_words("on_nonfinite", 2, &Config::on_nonfinite,
              [](const Config& config) { on_nonfinite_of(config); });
  check_words("offload_activations", 3, &Config::offload_activations,
              [](const Config& config) { activations_offloaded_to(config); });
  check_words("eval_strategy", 3, &Config::eval_strategy,
              [](const Config& config) { interval_of(config.eval_strategy); });
  check_words("save_strategy", 3, &Config::save_strategy,
              [](const Config& config) { interval_of(config.save_strategy); });
  check_words("logging_strategy", 3, &Config::logging_strategy,
              [](const Config& config) { interval_of(config.logging_strategy); });
}

TEST_CASE("choices: what a run resumes from") {
  Config config;
  const auto from = [&](const char* word, bool overwrites) {
    config.resume_from_checkpoint = word;
    config.overwrite_output_dir = overwrites;
    return resume_from(config);
  };
  CHECK(from("", false) == ResumeFrom::kNewestIfAny);
  CHECK(goes_on_by_itself(config));
  CHECK(from("", true) == ResumeFrom::kNothing);
  CHECK(!goes_on_by_itself(config));
  for (const bool overwrites : {false, true}) {
    CHECK(from("true", overwrites) == ResumeFrom::kNewest);
    CHECK(goes_on_by_itself(config));
    CHECK(from("false", overwrites) == ResumeFrom::kNothing);
    CHECK(from("runs/checkpoint-7", overwrites) == ResumeFrom::kFolder);
    CHECK(!goes_on_by_itself(config));
  }
}

}  // namespace
}  // namespace longspan
