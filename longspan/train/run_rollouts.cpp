#include "longspan/train/run_rollouts.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/data/turns.h"
#include "longspan/liveness/agreement.h"
#include "longspan/registers/rollout_server.h"
#include "longspan/registers/stage.h"
#include "longspan/saving/training_state.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/output_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/train/file_rollouts.h"
#include "longspan/train/file_rules.h"
#include "longspan/train/rollout_source.h"
#include "longspan/train/sampled_rollouts.h"
#include "longspan/train/self_answers.h"
#include "longspan/train/server_answers.h"

namespace longspan {
namespace {

/// Returns the token after answers that a server gives as texts; nullopt: it gives tokens. Throws
/// UserError: there is no such token.
std::optional<int32_t> end_of_texts(const PolicySettings& policy, const Tokenizer& tokenizer,
                                    const TurnEncoder& turns) {
  if (!server_kind_named(policy.rollout_server).token_ids.empty()) return std::nullopt;
  const std::optional<int32_t> end = end_of_answers(tokenizer, turns);
  if (!end) {
    throw UserError(fmt::format(
        "rollout_server: {} gives texts, and neither the tokenizer nor the chat template has "
        "a token that ends an answer; give the tokenizer an eos_token",
        policy.rollout_server));
  }
  return end;
}

std::unique_ptr<AnswerSource> source_of_answers(const RolloutSettings& config,
                                                const RolloutParts& parts, const RolloutRun& run,
                                                const Tokenizer& tokenizer,
                                                const TurnEncoder& turns) {
  const PolicySettings& policy = run.policy;
  std::set<int32_t> end_tokens = ends_of(tokenizer, turns);
  if (policy.rollout == "self") {
    return std::make_unique<SelfAnswers>(policy, parts.session, std::move(end_tokens));
  }
  if (policy.rollout != "server") throw std::logic_error("answers of no kind");
  return std::make_unique<ServerAnswers>(ServerAnswers::Parts{
      .run = run,
      .model =
          policy.rollout_model.empty() ? config.model.model_name_or_path : policy.rollout_model,
      .end_tokens = std::move(end_tokens),
      .vocab_size = parts.session.model().spec.vocab_size,
      .tokenizer = tokenizer,
      .end_of_text = end_of_texts(policy, tokenizer, turns),
      .folders =
          std::make_unique<PolicyFolders>(parts.session, run.world, run.notices, parts.data.chat,
                                          config.output.output_dir + "/policy")});
}

/// A maker with the objects that it refers to.
class FromFile final : public RolloutMaker {
 public:
  FromFile(const RolloutSettings& config, const RolloutParts& parts, const RolloutRun& run)
      : rules_({config.model, config.method, config.preferences, config.data},
               parts.session.model().spec.vocab_size, parts.template_time),
        rollouts_(run, rules_.rules()) {}

  std::optional<std::vector<Rollout>> make(int64_t batch, int64_t num_groups,
                                           int64_t policy_version, bool is_begun) override {
    return rollouts_.make(batch, num_groups, policy_version, is_begun);
  }
  std::string digest(int64_t batch) const override { return rollouts_.digest(batch); }
  std::string origin() const override { return rollouts_.origin(); }

 private:
  FileRules rules_;
  FileRollouts rollouts_;
};

/// A maker with the source of its answers.
class Sampled final : public RolloutMaker {
 public:
  Sampled(const RolloutSettings& config, const RolloutParts& parts, const RolloutRun& run)
      : tokenizer_(run_tokenizer(config.model.model_name_or_path, config.data)),
        turns_(make_turn_encoder(config.data, stage_of(config.method), tokenizer_,
                                 parts.template_time)),
        source_(source_of_answers(config, parts, run, tokenizer_, *turns_)),
        conversations_({.policy = run.policy,
                        .source = *source_,
                        .tokenizer = tokenizer_,
                        .encoder = *turns_,
                        .cutoff_len = config.data.cutoff_len,
                        .world = run.world,
                        .notices = run.notices}),
        rollouts_({.run = run,
                   .source = *source_,
                   .conversations = conversations_,
                   .questions = *parts.data.train,
                   .tokenizer = tokenizer_,
                   .folder = config.output.output_dir + "/rollouts",
                   .resumed = parts.start.resumed.has_value(),
                   .goes_on = parts.start.launch.is_restart || goes_on_by_itself(config.output),
                   .identity = digest_of(parts.start.identity),
                   .seed = config.optimization.seed,
                   .shuffles = !config.method.disable_shuffling,
                   .cutoff_len = config.data.cutoff_len,
                   .num_batches = (config.optimization.max_steps + run.policy.num_iterations - 1) /
                                  run.policy.num_iterations}) {}

  std::optional<std::vector<Rollout>> make(int64_t batch, int64_t num_groups,
                                           int64_t policy_version, bool is_begun) override {
    return rollouts_.make(batch, num_groups, policy_version, is_begun);
  }
  std::string digest(int64_t batch) const override { return rollouts_.digest(batch); }
  std::string origin() const override { return rollouts_.origin(); }

 private:
  Tokenizer tokenizer_;
  std::unique_ptr<TurnEncoder> turns_;
  std::unique_ptr<AnswerSource> source_;
  Conversations conversations_;
  SampledRollouts rollouts_;
};

std::unique_ptr<RolloutMaker> maker_of(const RolloutSettings& config, const RolloutParts& parts,
                                       const RolloutRun& run) {
  const std::string& rollout = config.preferences.policy.rollout;
  if (rollout == "file") return std::make_unique<FromFile>(config, parts, run);
  if (rollout == "self" || rollout == "server")
    return std::make_unique<Sampled>(config, parts, run);
  throw std::logic_error("rollouts of no kind");
}

}  // namespace

std::unique_ptr<ExampleSource> rollout_source(const RolloutSettings& config,
                                              const RolloutParts& parts) {
  const PolicySettings& policy = config.preferences.policy;
  const RolloutNeeds needs = rollout_needs(config.method, config.preferences);
  const RolloutRun run{.policy = policy,
                       .needs = needs,
                       .on_bad_row = on_bad_row_of(config.data),
                       .world = parts.workers.world(),
                       .notices = parts.workers.notices(),
                       .events = parts.events,
                       .stops = [&control = parts.control] {
                         return control.requested() || control.told_to_stop();
                       }};
  std::unique_ptr<RolloutMaker> maker;
  all_or_none(parts.workers.world(), [&] { maker = maker_of(config, parts, run); });
  const OptimizationSettings& optimization = config.optimization;
  return std::make_unique<RolloutSource>(
      RolloutLimits{policy, config.data.cutoff_len, optimization.per_device_train_batch_size},
      needs, optimization.gradient_accumulation_steps, parts.session.mesh(),
      parts.workers.notices(), std::move(maker));
}

}  // namespace longspan
