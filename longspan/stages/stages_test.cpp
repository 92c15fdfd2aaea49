// Checks of the description of every stage in the register. The parity tests check the training.
#include "longspan/registers/stage.h"

#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/config/checks.h"
#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/rows/example.h"

namespace longspan {
namespace {

TEST_CASE("stages: names are found, are one stage's each, and nothing else is a stage") {
  std::set<std::string_view> names;
  for (const Stage* stage : all_stages()) {
    CAPTURE(std::string(stage->name));
    CHECK(names.insert(stage->name).second);
    CHECK(&stage_named(stage->name) == stage);
    CHECK(!stage->title.empty());
    CHECK(!stage->help.empty());
    // A stage must use at least one head.
    CHECK((stage->uses_lm_head || stage->has_value_head));
  }
  for (const char* other : {"", "ppo", "SFT", "dpo, kto"}) {
    CHECK_THROWS_WITH_AS(stage_named(other), doctest::Contains("the stages are: pt, sft, "),
                         UserError);
  }
}

TEST_CASE("stages: a stage that nobody knows falls through to none of the others") {
  Config config;
  config.method.stage = "ppo";
  CHECK_THROWS_AS(stage_of(config.method), UserError);
  CHECK_THROWS_AS(check_config(config, TrainingRows::kOfDataSet), UserError);
}

TEST_CASE("stages: every part of every description answers") {
  Example pair;
  pair.documents.resize(2);
  for (const Stage* stage : all_stages()) {
    CAPTURE(std::string(stage->name));
    Config config;
    config.method.stage = stage->name;
    if (stage->name.starts_with("distill")) config.preferences.ref_model = "teacher";
    CHECK(stage->problems(config.preferences, config.method).empty());
    CHECK(packs(config.data, *stage) == stage->packs);
    CHECK(stage->document_name(pair, 0) != stage->document_name(pair, 1));
    const std::string summary = stage->summary(config.preferences);
    CHECK((summary.empty() || summary.starts_with(stage->name)));
    CHECK((!stage->has_reference(config.preferences) || is_for_stage("ref_model", *stage)));
  }
}

TEST_CASE("stages: keys of some stages are in the table, in one group, and refused by the others") {
  std::set<std::string_view> grouped;
  std::set<const StageKeys*> groups;
  for (const Stage* stage : all_stages()) {
    for (const StageKeys* group : stage->keys) {
      if (!groups.insert(group).second) continue;
      for (const std::string_view key : group->keys) CHECK(grouped.insert(key).second);
    }
  }
  std::set<std::string_view> known;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) known.insert(key.name);
  }
  for (const std::string_view key : grouped) CHECK_MESSAGE(known.contains(key), key);
  for (const std::string_view key : known) {
    CHECK((group_of_key(key) != nullptr) == grouped.contains(key));
    CHECK(stages_of_key(key).empty() == !grouped.contains(key));
  }
}

TEST_CASE("stages: what is refused names the keys and the stages that they are for") {
  const auto refused = [](const std::string& stage, const std::function<void(Config&)>& change) {
    Config config;
    config.method.stage = stage;
    config.model.model_name_or_path = config.data.dataset = config.output.output_dir = "x";
    config.method.do_train = true;
    change(config);
    return check_config(config, TrainingRows::kOfDataSet);
  };
  using Problems = std::vector<std::string>;
  CHECK(refused("sft", [](Config& c) { c.preferences.pref_beta = 0.2; }) ==
        Problems{"pref_beta and pref_ftx are for the stages dpo and kto"});
  CHECK(refused("sft", [](Config& c) { c.preferences.simpo_gamma = 1.0; }) ==
        Problems{"pref_loss, dpo_label_smoothing and simpo_gamma are for stage: dpo"});
  CHECK(refused("kto", [](Config& c) { c.preferences.pref_share_prompt = true; }) ==
        Problems{"pref_share_prompt is for pairs of answers: stages dpo and rm"});
  CHECK(refused("kto", [](Config& c) { c.data.packing = true; }) ==
        Problems{"packing is for the stages distill_sft, pt and sft"});
  CHECK(refused("kto", [](Config& c) { c.data.packing = false; }).empty());
  CHECK(refused("pt", [](Config& c) { c.data.train_on_prompt = c.data.neat_packing = true; }) ==
        Problems{"mask_history and train_on_prompt are for the stages distill_sft and sft",
                 "neat_packing is for the stages distill_sft and sft"});
  CHECK(refused("dpo",
                [](Config& c) {
                  c.preferences.pref_loss = "orpo", c.preferences.ref_model = "base";
                }) ==
        Problems{"pref_loss: orpo and simpo have no reference model; remove ref_model, "
                 "ref_model_adapters and precompute_ref_log_probs"});
}

}  // namespace
}  // namespace longspan
