#include "longspan/config/training_settings.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
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

TEST_CASE("training settings: keys that make streamed rows") {
  const Settings then = stream_settings(Config());
  Config config;
  config.data.on_bad_row = "skip";
  config.data.eval_dataset = "held_out";
  config.data.image_max_pixels = 1;
  config.data.video_fps = 1;
  config.method.generation.predict_with_generate = true;
  config.data.dataset_dir = "elsewhere";
  CHECK(stream_settings(config) == then);
  CHECK(row_settings(config) != row_settings(Config()));
  for (const auto& change : std::vector<std::function<void(Config&)>>{
           [](Config& to) { to.method.stage = "dpo"; }, [](Config& to) { to.data.v1_rows = true; },
           [](Config& to) { to.data.packing = true; }, [](Config& to) { to.data.val_size = 2; },
           [](Config& to) { to.data.buffer_size = 2; }}) {
    Config other;
    change(other);
    CHECK(stream_settings(other) != then);
  }
  CHECK(makes_streamed_rows("val_size"));
  for (const char* key : {"on_bad_row", "video_maxlen", "dataset_dir", "learning_rate", "none"}) {
    CHECK_FALSE(makes_streamed_rows(key));
  }
}

TEST_CASE("training settings: all ranks have the same keys, except those of a process") {
  for (const std::string_view name : keys_of_one_process()) {
    INFO(name);
    CHECK_NOTHROW(on_resume(name));  // a key
  }
  Config config;
  const Settings before = settings_of_all_ranks(config);
  config.output.output_dir = "elsewhere";
  config.model.model_name_or_path = "/local/model";
  CHECK(settings_of_all_ranks(config) == before);
  config.output.save_async = !config.output.save_async;
  CHECK(settings_of_all_ranks(config) != before);
  config.output.save_async = !config.output.save_async;
  config.parallel.check_network = !config.parallel.check_network;
  CHECK(settings_of_all_ranks(config) != before);
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
