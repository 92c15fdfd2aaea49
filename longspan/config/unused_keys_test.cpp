#include "longspan/config/unused_keys.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"

namespace longspan {
namespace {

using Words = std::vector<std::string>;

/// Returns the UserError's message for these keys; "" where none is thrown.
std::string complaint_about(Words words) {
  const Words least{"model_name_or_path=m", "output_dir=o", "do_train=true", "max_steps=1"};
  words.insert(words.end(), least.begin(), least.end());
  try {
    load_config("", words);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kFile{"stage=grpo", "rollouts=r"},
    kSelf{"stage=grpo", "rollout=self", "dataset=d", "rewards=number"},
    kServer{"stage=grpo",     "rollout=server",       "dataset=d",
            "rewards=number", "rollout_url=http://h", "rollout_update=none"},
    kLoraServer{"stage=grpo",          "rollout=server",       "dataset=d",
                "rewards=number",      "rollout_url=http://h", "rollout_update=lora",
                "finetuning_type=lora"},
    kTextServer{"stage=grpo",
                "rollout=server",
                "dataset=d",
                "rewards=number",
                "rollout_url=http://h",
                "rollout_update=disk",
                "rollout_server=transformers",
                "importance_sampling_correction=none"},
    kTeacherModel{"stage=distill", "rollouts=r", "ref_model=t"},
    kTeacherInFile{"stage=distill", "rollouts=r"};

struct Case {
  Words accepted;             // without the key
  std::vector<Words> unused;  // each refused beside `accepted`; the last word's key is at fault
};

const std::vector<Case> kCases = {
    {kSelf,
     {{"rollouts=r"},
      {"rollout_url=http://h"},
      {"rollout_server=sglang"},
      {"rollout_model=m"},
      {"rollout_api_key_env=K"},
      {"rollout_concurrency=2"},
      {"rollout_update=none"},
      {"rollout_update_command=c"},
      {"rollout_update_steps=2"},
      {"async_steps=1"},
      {"rollout_timeout=5"},
      {"max_staleness=1"},
      {"reward_timeout=5"},
      {"max_turns=2"}}},
    {kServer, {{"rollout_update_command=c"}, {"rollout_update_steps=2"}}},
    {joined(kServer, {"rollout_server=sglang"}), {{"rollout_model=m"}}},
    {kLoraServer, {{"rollout_model=m"}}},
    {kTextServer, {{"rollout_model=m"}, {"importance_sampling_clip_max=2"}}},
    {kFile,
     {{"max_completion_length=64"},
      {"rewards=number"},
      {"reward_weights=2,1"},
      {"reward_command=c"},
      {"reward_format=f"},
      {"reward_url=http://h"},
      {"reward_timeout=5"},
      {"environment_command=c"},
      {"epsilon=0.1"},
      {"epsilon_high=0.3"},
      {"delta=2"},
      {"ref_model=b"},
      {"ref_model=b", "ref_model_adapters=a"},
      {"kl_estimator=k1"},
      {"kl_in_reward=false"},
      {"use_bias_correction_kl=false"}}},
    {kTeacherModel,
     {{"rollout_temperature=0.7"},
      {"rewards=number"},
      {"reward_weights=2,1"},
      {"reward_command=c"},
      {"reward_format=f"},
      {"reward_url=http://h"},
      {"epsilon=0.1"},
      {"epsilon_high=0.3"},
      {"importance_sampling_correction=none"},
      {"importance_sampling_clip_max=2"},
      {"importance_sampling_clip_min=0.5"}}},
    {kTeacherInFile, {{"distill_beta=0.1"}, {"distill_temperature=2"}, {"distill_top_k=5"}}},
    {joined(kFile, {"loss_type=cispo", "epsilon_high=5"}), {{"epsilon=0.1"}, {"delta=7"}}},
    {joined(kFile, {"loss_type=rloo"}),
     {{"importance_sampling_level=token"}, {"scale_rewards=batch"}}},
    {joined(kFile, {"loss_type=rloo", "beta=0.1"}), {{"use_bias_correction_kl=false"}}},
    {joined(kFile, {"importance_sampling_correction=none"}),
     {{"importance_sampling_clip_max=2"}, {"importance_sampling_clip_min=0.5"}}},
};

TEST_CASE("unused keys: each entry refuses each of its keys, and nothing without the key") {
  std::set<std::pair<const UnusedKeys*, std::string_view>> seen;
  for (const Case& one : kCases) {
    CHECK(complaint_about(one.accepted) == "");
    for (const Words& unused : one.unused) {
      const std::string key = unused.back().substr(0, unused.back().find('=')),
                        value = unused.back().substr(key.size() + 1),
                        said = complaint_about(joined(one.accepted, unused));
      size_t num_entries = 0;
      for (const UnusedKeys& entry : unused_keys()) {
        const auto found = std::ranges::find(entry.keys, key);
        const std::string sentence =
            key + ": " + value + " has no effect " + std::string(entry.where) + "; remove the key";
        if (found == entry.keys.end() || said.find(sentence) == std::string::npos) continue;
        ++num_entries;
        seen.emplace(&entry, *found);
        CHECK(entry.where.find(';') == std::string::npos);
      }
      CHECK_MESSAGE(num_entries == 1, said);
    }
  }
  for (const UnusedKeys& entry : unused_keys()) {
    for (const std::string_view key : entry.keys) {
      CHECK_MESSAGE(seen.contains({&entry, key}), key << " " << entry.where);
    }
  }
}

TEST_CASE("unused keys: keys with an effect are accepted, and default values everywhere") {
  const std::vector<Words> all = {
      joined(kFile, {"loss_type=dr_grpo", "max_completion_length=64", "scale_rewards=none"}),
      joined(kFile, {"rollout_timeout=5", "max_staleness=1", "rollout_temperature=0.7"}),
      joined(kFile, {"num_iterations=2", "epsilon=0.1", "epsilon_high=0.3", "delta=2"}),
      joined(kFile, {"loss_type=cispo_range", "num_iterations=2", "epsilon=0.1"}),
      joined(kFile, {"loss_type=cispo", "epsilon_high=0.5"}),
      joined(kFile, {"beta=0.1", "ref_model=b", "kl_estimator=k1", "use_bias_correction_kl=false"}),
      joined(kFile, {"importance_sampling_clip_max=2", "importance_sampling_clip_min=0.5"}),
      joined(kFile, {"max_completion_length=512", "async_steps=0", "epsilon=0.2", "max_turns=8"}),
      joined(kSelf, {"max_completion_length=64", "rollout_temperature=0.7"}),
      joined(kSelf, {"reward_command=c", "reward_timeout=5"}),
      joined(kSelf, {"environment_command=c", "reward_timeout=5", "max_turns=2"}),
      joined(kServer, {"rollout_model=m", "rollout_timeout=5", "async_steps=1"}),
      joined(kLoraServer, {"rollout_update_steps=2", "max_staleness=1"}),
      joined(kTeacherModel, {"distill_beta=0.1", "distill_top_k=5", "num_iterations=2"}),
      joined(kTeacherInFile, {"rollout_temperature=0.7", "num_iterations=2", "epsilon=0.1"}),
      {"stage=distill", "rollout=self", "dataset=d", "ref_model=t", "rollout_temperature=0.7",
       "environment_command=c", "max_turns=2", "max_completion_length=64"}};
  for (const Words& words : all) CHECK(complaint_about(words) == "");
}

TEST_CASE("unused keys: a session has no source of rollouts") {
  const auto problems = [](const std::string& word) -> std::string {
    try {
      load_session_config("", {"model_name_or_path=m", "stage=grpo", word});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(problems("rewards=number") == "");
  CHECK(problems("kl_estimator=k1").find("kl_estimator: k1 has no effect with beta: 0") !=
        std::string::npos);
}

}  // namespace
}  // namespace longspan
