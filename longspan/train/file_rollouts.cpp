#include "longspan/train/file_rollouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/rollouts/rollout_line.h"

namespace longspan {
namespace {

constexpr auto kPause = std::chrono::milliseconds(200);
constexpr int64_t kLinesAtOnce = 256;

}  // namespace

FileRollouts::FileRollouts(const RolloutRun& run, const RolloutRules& rules)
    : run_(run),
      file_(run.policy.rollouts, rules),
      groups_({.num_generations = run.policy.num_generations,
               .max_staleness = run.policy.max_staleness}) {}

std::optional<std::vector<Rollout>> FileRollouts::make(int64_t batch, int64_t num_groups,
                                                       int64_t policy_version, bool) {
  std::optional<std::vector<Rollout>> rollouts;
  all_or_none_patiently(run_.world, run_.notices, [&] {
    if (run_.world.rank() != 0) return;
    for (; next_batch_ <= batch; ++next_batch_) {
      const int64_t version = policy_version - (batch - next_batch_) * run_.policy.num_iterations;
      std::optional<std::vector<RolloutGroup>> groups = take(num_groups, version);
      if (!groups) return;
      std::string digest = digests_.empty() ? "" : digests_.back();
      std::vector<Rollout> of_batch;
      for (RolloutGroup& group : *groups) {
        for (const Rollout& rollout : group.rollouts) {
          digest = fmt::format("{:016x}", fnv1a(digest + write_rollout(rollout)));
        }
        std::ranges::move(group.rollouts, std::back_inserter(of_batch));
      }
      digests_.push_back(std::move(digest));
      if (next_batch_ == batch) rollouts = std::move(of_batch);
    }
    if (rollouts) say_unused(*rollouts);
  });
  return rollouts;
}

std::string FileRollouts::digest(int64_t batch) const {
  return batch < std::ssize(digests_) ? digests_[batch] : std::string();
}

void FileRollouts::say_unused(const std::vector<Rollout>& rollouts) {
  if (std::exchange(said_unused_, true)) return;
  const auto say_if = [&](bool holds, std::string_view what) {
    if (holds) run_.events.say(fmt::format("warning: {}: {}", run_.policy.rollouts, what));
  };
  const auto any = [&](auto has) { return std::ranges::any_of(rollouts, has); };
  const RolloutNeeds& needs = run_.needs;
  const bool has_reward = any([](const Rollout& r) { return r.reward.has_value(); }),
             has_parts = any([](const Rollout& r) { return !r.rewards.empty(); }),
             has_advantage = any([](const Rollout& r) { return !r.advantages.empty(); }),
             has_teacher = any([](const Rollout& r) { return !r.teacher_logprobs.empty(); }),
             has_sampler = any([](const Rollout& r) { return !r.logprobs.empty(); });
  say_if(!needs.teacher_logprobs && has_teacher,
         "teacher_logprobs are for stage distill without ref_model, and have no use here.");
  say_if(!needs.rewards && (has_reward || has_parts || has_advantage),
         "reward, rewards and advantage have no use in stage distill.");
  say_if(needs.rewards && has_parts && has_reward,
         "the numbers in rewards are not logged one by one; the run uses reward, or their sum.");
  say_if(needs.rewards && has_advantage && has_reward,
         "advantage replaces reward, which is only logged.");
  say_if(needs.sampler_logprobs && !has_sampler,
         "the rollouts have no logprobs of the sampler, so importance_sampling_correction has no "
         "effect.");
  say_if(!needs.sampler_logprobs && has_sampler, "logprobs of the sampler have no use here.");
}

std::optional<std::vector<RolloutGroup>> FileRollouts::take(int64_t num_groups,
                                                            int64_t policy_version) {
  auto grew = std::chrono::steady_clock::now();
  bool said = false;
  for (;;) {
    std::vector<std::string> notes;
    std::vector<RolloutGroup> groups = groups_.take(num_groups, policy_version, notes);
    for (const std::string& note : notes) run_.events.say(note);
    if (!groups.empty()) return groups;
    BadRows bad;
    std::vector<Rollout> more = file_.next(kLinesAtOnce, bad);
    const std::string left_out =
        bad.settle(run_.on_bad_row, run_.policy.rollouts, std::ssize(more) + bad.count());
    if (!left_out.empty()) run_.events.say("warning: " + left_out);
    if (!more.empty()) {
      for (Rollout& rollout : more) groups_.add(std::move(rollout));
      grew = std::chrono::steady_clock::now();
      said = false;
      continue;
    }
    if (run_.stops()) return std::nullopt;
    const auto waited = std::chrono::steady_clock::now() - grew;
    if (waited >= std::chrono::seconds(run_.policy.rollout_timeout)) {
      const std::string incomplete = groups_.incomplete();
      throw UserError(fmt::format(
          "{}: the file has {} complete groups for a step that needs {}{}{}. Let the sampler write "
          "more rollouts, lower max_steps, or raise rollout_timeout ({} s).",
          run_.policy.rollouts, groups_.num_complete(), num_groups, incomplete.empty() ? "" : "; ",
          incomplete, run_.policy.rollout_timeout));
    }
    if (!said && waited > std::chrono::seconds(2)) {
      run_.events.say(fmt::format("Waiting for rollouts in {} ({} of {} groups are complete).",
                                  run_.policy.rollouts, groups_.num_complete(), num_groups));
      said = true;
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace longspan
