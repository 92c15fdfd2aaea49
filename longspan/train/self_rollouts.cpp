#include "longspan/train/self_rollouts.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/permutation.h"
#include "longspan/files/atomic_file.h"
#include "longspan/kernels/dropout.h"
#include "longspan/liveness/agreement.h"
#include "longspan/rollouts/rollout_file.h"
#include "longspan/rollouts/rollout_line.h"

namespace longspan {
namespace {

constexpr int64_t kAnswersAtOnce = 16;

}  // namespace

SelfRollouts::SelfRollouts(Parts parts) : parts_(std::move(parts)) {
  if (parts_.run.needs.rewards) rewards_.emplace(parts_.run.policy);
}

std::string SelfRollouts::file_of(int64_t batch) const {
  return fmt::format("{}/batch-{:06}.jsonl", parts_.folder, batch);
}

std::vector<int64_t> SelfRollouts::questions_of(int64_t batch, int64_t num_groups) const {
  const int64_t size = parts_.questions.size();
  std::vector<int64_t> places, order;
  int64_t pass = -1;
  for (int64_t i = batch * num_groups; i < (batch + 1) * num_groups; ++i) {
    if (i / size != pass) {
      pass = i / size;
      order = seeded_permutation(size, parts_.seed, pass);
    }
    places.push_back(order[i % size]);
  }
  return places;
}

std::optional<std::vector<Rollout>> SelfRollouts::make(int64_t batch, int64_t num_groups,
                                                       int64_t policy_version, bool is_begun) {
  if (!is_begun) return answered(batch, num_groups, policy_version);
  std::vector<Rollout> rollouts;
  all_or_none(parts_.run.world, [&] {
    if (parts_.run.world.rank() != 0) return;
    std::vector<std::string> notes;
    rollouts = read_rollouts(file_of(batch), {.needs_reward = parts_.run.needs.rewards}, OnBadRow::kStop, notes);
  });
  return rollouts;
}

void SelfRollouts::require_room(const std::vector<ExamplePointer>& questions) const {
  const int64_t answer = parts_.run.policy.max_completion_length;
  for (const ExamplePointer& question : questions) {
    const int64_t length = std::ssize(question->documents.front().input_ids);
    if (length + answer <= parts_.cutoff_len) continue;
    throw UserError(fmt::format(
        "question {} of dataset has {} tokens; with an answer of {} (max_completion_length) it "
        "exceeds cutoff_len ({}). Raise cutoff_len, or remove the question.",
        question->number + 1, length, answer, parts_.cutoff_len));
  }
}

std::vector<Rollout> SelfRollouts::answered(int64_t batch, int64_t num_groups,
                                            int64_t policy_version) {
  const PolicySettings& policy = parts_.run.policy;
  const int64_t N = policy.num_generations;
  std::vector<ExamplePointer> questions;
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t place : questions_of(batch, num_groups)) {
    questions.push_back(parts_.questions.example(place));
  }
  all_or_none(parts_.run.world, [&] { require_room(questions); });
  for (const ExamplePointer& question : questions) {
    for (int64_t i = 0; i < N; ++i) prompts.push_back(question->documents.front().input_ids);
  }
  const GenerationOptions options{
      .sampling = {.do_sample = true,
                   .temperature = policy.rollout_temperature,
                   .top_k = 0,
                   .top_p = 1.0},
      .max_new_tokens = policy.max_completion_length,
      .end_tokens = parts_.end_tokens,
      .seed = mix_seed(static_cast<uint64_t>(parts_.seed), static_cast<uint64_t>(batch)),
      .logprobs = true};
  const std::vector<Answer> answers = parts_.session.generate(prompts, options, kAnswersAtOnce);

  std::vector<Rollout> rollouts;
  all_or_none_patiently(parts_.run.world, parts_.run.notices, [&] {
    if (parts_.run.world.rank() != 0) return;
    std::vector<JudgedAnswer> judged;
    for (size_t i = 0; i < answers.size(); ++i) {
      const Answer& answer = answers[i];
      Rollout& rollout = rollouts.emplace_back();
      rollout.group = fmt::format("{}.{}", batch, static_cast<int64_t>(i) / N);
      rollout.token_ids = prompts[i];
      rollout.mask.assign(prompts[i].size(), false);
      rollout.logprobs.assign(prompts[i].size(), 0.0);
      std::vector<int32_t> tokens = answer.tokens;
      if (answer.end_token) tokens.push_back(*answer.end_token);
      rollout.token_ids.insert(rollout.token_ids.end(), tokens.begin(), tokens.end());
      rollout.mask.resize(rollout.token_ids.size(), true);
      rollout.logprobs.insert(rollout.logprobs.end(), answer.logprobs.begin(),
                              answer.logprobs.end());
      rollout.policy_version = policy_version;
      rollout.is_truncated = !answer.end_token;
      judged.push_back({.prompt = parts_.tokenizer.decode(prompts[i], true),
                        .answer = parts_.tokenizer.decode(answer.tokens, true),
                        .solution = questions[i / N]->solution,
                        .num_tokens = std::ssize(tokens),
                        .is_truncated = rollout.is_truncated});
    }
    if (rewards_) {
      const auto rewards = rewards_->of(judged);
      for (size_t i = 0; i < rollouts.size(); ++i) {
        rollouts[i].rewards = rewards[i];
        rollouts[i].reward = 0.0;
        for (const auto& [name, weight] : rewards_->weights()) {
          *rollouts[i].reward += weight * rewards[i].at(name);
        }
      }
    }
    std::string lines;
    for (const Rollout& rollout : rollouts) lines += write_rollout(rollout) + "\n";
    std::error_code error;
    std::filesystem::create_directories(parts_.folder, error);
    if (error) {
      throw UserError(fmt::format("the folder {} for rollouts cannot be made: {}", parts_.folder,
                                  error.message()));
    }
    write_file_atomically(file_of(batch), lines);
  });
  return rollouts;
}

}  // namespace longspan
