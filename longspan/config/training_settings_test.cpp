#include "longspan/config/training_settings.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "longspan/config/config.h"
#include "longspan/config/keys.h"

namespace longspan {
namespace {

std::string value_of(const Settings& settings, const std::string& key) {
  for (const auto& [name, value] : settings) {
    if (name == key) return value;
  }
  return "absent";
}

}  // namespace

TEST_CASE("training settings: what keys are to a run that goes on") {
  CHECK_THROWS(on_resume("no_such_key"));
  CHECK(on_resume("lora_rank") == OnResume::kRefused);
  CHECK(on_resume("lora_alpha") == OnResume::kNamed);
  CHECK(on_resume("learning_rate") == OnResume::kNamed);
  CHECK(on_resume("output_dir") == OnResume::kFree);
}

TEST_CASE("training settings: those of the stage and of the kind of fine-tuning, in effect") {
  Config config;
  CHECK(value_of(training_settings(config), "learning_rate") == "5e-05");
  CHECK(value_of(training_settings(config), "max_samples") == "not set");
  CHECK(value_of(training_settings(config), "packing") == "false");
  for (const char* key : {"lora_rank", "pref_beta", "freeze_trainable_layers", "output_dir"}) {
    CHECK(value_of(training_settings(config), key) == "absent");
  }
  config.method.stage = "pt";
  CHECK(value_of(training_settings(config), "packing") == "true");
  config.method.stage = "kto";
  config.method.finetuning_type = "lora";
  CHECK(value_of(training_settings(config), "pref_beta") == "0.1");
  CHECK(value_of(training_settings(config), "kto_chosen_weight") == "1");
  CHECK(value_of(training_settings(config), "pref_loss") == "absent");
  CHECK(value_of(training_settings(config), "lora_alpha") == "16");
}

TEST_CASE("training settings: what changed, then and now") {
  Config config;
  config.method.finetuning_type = "lora";
  const Settings then = training_settings(config);
  CHECK(changed_settings(then, then).empty());
  config.method.lora_alpha = 16;  // its default before
  CHECK(changed_settings(then, training_settings(config)).empty());
  config.method.lora_alpha = 32;
  config.optimization.learning_rate = 1e-4;
  config.output.output_dir = "elsewhere";
  const std::vector<ChangedSetting> changed = changed_settings(then, training_settings(config));
  REQUIRE(changed.size() == 2);
  const auto alpha = std::ranges::find(changed, "lora_alpha", &ChangedSetting::key);
  REQUIRE(alpha != changed.end());
  CHECK(alpha->then == "16");
  CHECK(alpha->now == "32");
  CHECK(alpha->on_resume == OnResume::kNamed);
  const auto rate = std::ranges::find(changed, "learning_rate", &ChangedSetting::key);
  REQUIRE(rate != changed.end());
  CHECK(rate->then == "5e-05");
  CHECK(rate->now == "0.0001");
  CHECK(rate->on_resume == OnResume::kNamed);
  // A key in only one of the lists belongs to another version.
  CHECK(changed_settings({{"older_key", "1"}}, {{"learning_rate", "1"}}).empty());
}

}  // namespace longspan
