#include "longspan/train/rollout_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/liveness/agreement.h"
#include "longspan/registers/policy_loss.h"
#include "longspan/registers/stage.h"
#include "longspan/rollouts/rollout_check.h"
#include "longspan/rollouts/rollout_examples.h"
#include "longspan/rollouts/rollout_line.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/preference_settings.h"

namespace longspan {
namespace {

/// Divides rollouts into groups. The rollouts of a group are next to each other.
std::vector<RolloutGroup> groups_of(std::vector<Rollout> rollouts, int64_t num_generations) {
  std::vector<RolloutGroup> groups;
  for (Rollout& rollout : rollouts) {
    if (groups.empty() || std::ssize(groups.back().rollouts) == num_generations) {
      groups.push_back({rollout.group, {}});
    }
    groups.back().rollouts.push_back(std::move(rollout));
  }
  return groups;
}

/// The first line of the text has the digest.
std::vector<Rollout> rollouts_from(std::istringstream& lines, const RolloutNeeds& needs) {
  std::vector<Rollout> rollouts;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    rollouts.push_back(
        parse_rollout(line, "the rollouts of rank 0", number, {.needs_reward = needs.rewards}));
  }
  return rollouts;
}

/// Throws where the loss cannot use the rollouts' advantages.
void check_advantages(const std::vector<RolloutGroup>& groups, const PolicySettings& policy) {
  const PolicyLoss loss = policy_loss_of(policy);
  for (const RolloutGroup& group : groups) {
    for (const Rollout& rollout : group.rollouts) {
      if (rollout.advantages.empty()) continue;
      if (loss.kl_in_reward && policy.beta > 0) {
        throw UserError(fmt::format(
            "{}: the rollout has an advantage instead of a reward, and kl_in_reward subtracts KL "
            "from rewards. Give rewards, or set kl_in_reward: false.",
            place_of(rollout)));
      }
      if (loss.level == RatioLevel::kToken) continue;
      std::optional<double> first;
      for (size_t i = 0; i < rollout.advantages.size(); ++i) {
        if (!rollout.mask[i]) continue;
        if (rollout.advantages[i] == first.value_or(rollout.advantages[i])) {
          first = rollout.advantages[i];
          continue;
        }
        throw UserError(fmt::format(
            "{}: advantage differs among the tokens, and loss_type: {} has one ratio for the whole "
            "rollout. Give one number, or take a loss_type with a ratio of tokens.",
            place_of(rollout), policy.loss_type));
      }
    }
  }
}

}  // namespace

RolloutNeeds rollout_needs(const MethodSettings& method, const PreferenceSettings& preferences) {
  switch (stage_of(method).rollouts) {
    case RolloutUse::kRewards:
      return {.rewards = true,
              .sampler_logprobs = policy_loss_of(preferences.policy).correction.corrects};
    case RolloutUse::kTeacher:
      if (stage_of(method).has_reference(preferences)) return {};
      return {.teacher_logprobs = true,
              .sampler_logprobs = policy_loss_of(preferences.policy).correction.corrects};
    case RolloutUse::kNone:
      break;
  }
  throw std::logic_error("a stage without rollouts");
}

RolloutSource::RolloutSource(const RolloutLimits& limits, const RolloutNeeds& needs,
                             int64_t num_rows, const Mesh& mesh, Notices& notices,
                             std::unique_ptr<RolloutMaker> maker)
    : limits_(limits),
      needs_(needs),
      num_rows_(num_rows),
      mesh_(mesh),
      notices_(notices),
      maker_(std::move(maker)),
      groups_of_step_(limits.num_groups * mesh.data.size() * num_rows) {}

bool RolloutSource::prepare(int64_t step) {
  const int64_t number = step / limits_.policy.num_iterations;
  if (number == number_) return true;
  std::string own = made(step);
  if (mesh_.world.rank() != 0) own.clear();
  const std::string text = mesh_.world.gather_text(own)[0];
  if (text.empty()) return false;
  all_or_none(mesh_.world, [&] {
    std::istringstream lines(text);
    std::getline(lines, digest_);
    // Rank 0 has encoded its rollouts, whose errors name the places in the user's file.
    if (mesh_.world.rank() != 0) {
      groups_ = encoded(groups_of(rollouts_from(lines, needs_), limits_.policy.num_generations));
    }
  });
  for (size_t i = 0; i < groups_.size(); ++i) {
    Example example = *groups_[i];
    example.number = number * groups_of_step_ + static_cast<int64_t>(i);
    groups_[i] = std::make_shared<const Example>(std::move(example));
  }
  number_ = number;
  return true;
}

std::string RolloutSource::made(int64_t step) {
  const int64_t number = step / limits_.policy.num_iterations;
  std::optional<std::vector<Rollout>> rollouts =
      maker_->make(number, groups_of_step_, number * limits_.policy.num_iterations,
                   /*is_begun=*/step % limits_.policy.num_iterations != 0);
  std::string text;
  all_or_none_patiently(mesh_.world, notices_, [&] {
    if (mesh_.world.rank() != 0 || !rollouts) return;
    if (const std::string expected = std::exchange(expected_, ""); !expected.empty()) {
      const int64_t batch = std::stoll(expected);
      const std::string digest = maker_->digest(batch);
      if (!digest.empty() && fmt::format("{} {}", batch, digest) != expected) {
        throw UserError(fmt::format(
            "{}: the rollouts before step {} differ from the rollouts of the run that saved the "
            "checkpoint. Give the files as they were; a sampler may append to a file in rollouts.",
            maker_->origin(), step + 1));
      }
    }
    text = maker_->digest(number) + "\n";
    for (const Rollout& rollout : *rollouts) text += write_rollout(rollout) + "\n";
    const std::vector<RolloutGroup> groups =
        groups_of(*std::move(rollouts), limits_.policy.num_generations);
    if (needs_.rewards) check_advantages(groups, limits_.policy);
    groups_ = encoded(groups);
  });
  return text;
}

std::vector<ExamplePointer> RolloutSource::encoded(const std::vector<RolloutGroup>& groups) const {
  RolloutColumns columns = columns_of(groups);
  if (needs_.teacher_logprobs && !columns.teacher_logprobs) {
    throw UserError(fmt::format(
        "{}: the rollout has no teacher_logprobs, and ref_model is not given. Give one of them.",
        place_of(groups.front().rollouts.front())));
  }
  columns.teacher_logprobs = needs_.teacher_logprobs;
  columns.sampler_logprobs &= needs_.sampler_logprobs;
  columns.advantages &= needs_.rewards;
  const RolloutEncoding encoding{.cutoff_len = limits_.cutoff_len,
                                 .columns = columns,
                                 .masks_truncated = limits_.policy.mask_truncated_completions};
  BadRows bad;
  std::vector<ExamplePointer> examples;
  for (const RolloutGroup& group : groups) {
    RolloutExample encoded = encode_rollouts(group, encoding, bad);
    encoded.example.num_truncated = encoded.num_truncated;
    if (needs_.rewards) encoded.example.rewards = std::move(encoded.rewards);
    for (const int64_t kept : encoded.kept) {
      for (const auto& [name, reward] : group.rollouts[kept].rewards) {
        encoded.example.reward_sums[name] += reward;
      }
    }
    examples.push_back(std::make_shared<const Example>(std::move(encoded.example)));
  }
  bad.settle(OnBadRow::kStop, "the rollouts of a step",
             groups_of_step_ * limits_.policy.num_generations);
  if (std::ssize(examples) != groups_of_step_) throw std::logic_error("a batch of other groups");
  return examples;
}

DrawnExamples RolloutSource::next(int64_t, int64_t batch) {
  const int64_t of_step = batch % num_rows_;
  const int64_t begin = (of_step * mesh_.data.size() + mesh_.data.rank()) * limits_.num_groups;
  return {.examples = {groups_.begin() + begin, groups_.begin() + begin + limits_.num_groups},
          .pattern = groups_.front()};
}

std::string RolloutSource::state() const {
  return digest_.empty() ? "" : fmt::format("{} {}", number_, digest_);
}

void RolloutSource::resume(const std::string& state) {
  const size_t space = state.find(' ');
  if (!state.empty() && (space == 0 || space == std::string::npos ||
                         state.find_first_not_of("0123456789") != space || space > 15)) {
    throw UserError("the checkpoint has the state of another source of rows than rollouts");
  }
  expected_ = state;
}

}  // namespace longspan
