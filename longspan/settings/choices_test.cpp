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
void check_words(const char* name, int num_words, const FieldOf<std::string>& field,
                 const Meaning& meaning) {
  int known = 0;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (std::string_view(key.name) != name) continue;
      for (const std::string_view word : key.choices) {
        CAPTURE(std::string(word));
        Config config;
        field.in(config) = std::string(word);
        CHECK_NOTHROW(meaning(config));
        ++known;
      }
    }
  }
  CHECK(known == num_words);
  Config config;
  field.in(config) = "sideways";
  CHECK_THROWS_AS(meaning(config), std::logic_error);
}

TEST_CASE("choices: each word that a key allows has a meaning") {
  check_words("finetuning_type", 3, &MethodSettings::finetuning_type,
              [](const Config& config) { finetuning_type_of(config.method); });
  check_words("device", 3, &ModelSettings::device,
              [](const Config& config) { wanted_device_of(config.model); });
  check_words("reduce_scatter", 3, &ModelSettings::reduce_scatter,
              [](const Config& config) { reduce_scatter_of(config.model); });
  check_words("on_bad_row", 2, &DataSettings::on_bad_row,
              [](const Config& config) { on_bad_row_of(config.data); });
  check_words("on_nonfinite", 2, &OptimizationSettings::on_nonfinite,
              [](const Config& config) { on_nonfinite_of(config.optimization); });
  check_words("offload_activations", 3, &MemorySettings::offload_activations,
              [](const Config& config) { activations_offloaded_to(config.memory); });
  check_words("eval_strategy", 3, &OptimizationSettings::eval_strategy,
              [](const Config& config) { interval_of(config.optimization.eval_strategy); });
  check_words("save_strategy", 3, &OutputSettings::save_strategy,
              [](const Config& config) { interval_of(config.output.save_strategy); });
  check_words("logging_strategy", 3, &OutputSettings::logging_strategy,
              [](const Config& config) { interval_of(config.output.logging_strategy); });
}

TEST_CASE("choices: NCCL sums where it connects processes, but for full_determinism and by word") {
  const auto by_nccl = [](const char* word, bool full_determinism, bool share_gpus, bool cuda) {
    ModelSettings model;
    model.reduce_scatter = word;
    model.full_determinism = full_determinism;
    model.share_gpus = share_gpus;
    return sums_by_nccl(model, cuda);
  };
  for (const char* word : {"auto", "nccl", "exchange"}) {
    CAPTURE(word);
    const bool exchange = std::string_view(word) == "exchange";
    CHECK(by_nccl(word, false, false, true) == !exchange);
    CHECK(by_nccl(word, true, false, true) == (std::string_view(word) == "nccl"));
    CHECK_FALSE(by_nccl(word, false, true, true));
    CHECK_FALSE(by_nccl(word, false, false, false));
  }
}

TEST_CASE("choices: what a run resumes from") {
  Config config;
  const auto from = [&](const char* word, bool overwrites) {
    config.output.resume_from_checkpoint = word;
    config.output.overwrite_output_dir = overwrites;
    return resume_from(config.output);
  };
  CHECK(from("", false) == ResumeFrom::kNewestIfAny);
  CHECK(goes_on_by_itself(config.output));
  CHECK(from("", true) == ResumeFrom::kNothing);
  CHECK(!goes_on_by_itself(config.output));
  for (const bool overwrites : {false, true}) {
    CHECK(from("true", overwrites) == ResumeFrom::kNewest);
    CHECK(goes_on_by_itself(config.output));
    CHECK(from("false", overwrites) == ResumeFrom::kNothing);
    CHECK(from("runs/checkpoint-7", overwrites) == ResumeFrom::kFolder);
    CHECK(!goes_on_by_itself(config.output));
  }
}

}  // namespace
}  // namespace longspan
