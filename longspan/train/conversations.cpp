#include "longspan/train/conversations.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/data/observation.h"
#include "longspan/input/json_text.h"
#include "longspan/kernels/dropout.h"
#include "longspan/liveness/agreement.h"

namespace longspan {

Conversations::Conversations(Parts parts) : parts_(std::move(parts)) {
  const std::string& command = parts_.policy.environment_command;
  if (command.empty() || parts_.world.rank() != 0) return;
  environment_.emplace(command, parts_.policy.reward_timeout);
}

void Conversations::add_answer(Open& open, const Answer& answer) const {
  Rollout& rollout = open.held.rollout;
  rollout.token_ids.insert(rollout.token_ids.end(), answer.tokens.begin(), answer.tokens.end());
  if (answer.end_token) rollout.token_ids.push_back(*answer.end_token);
  rollout.mask.resize(rollout.token_ids.size(), true);
  rollout.logprobs.insert(rollout.logprobs.end(), answer.logprobs.begin(), answer.logprobs.end());
  rollout.is_truncated = !answer.end_token;
  open.held.answer = parts_.tokenizer.decode(answer.tokens, true);
}

EndOfTurns Conversations::end_of(const Open& open, int64_t turn) const {
  const Rollout& rollout = open.held.rollout;
  if (rollout.is_truncated) return EndOfTurns::kTruncated;
  if (turn + 1 >= parts_.policy.max_turns) return EndOfTurns::kTurns;
  const int64_t length = std::ssize(rollout.token_ids) + parts_.policy.max_completion_length;
  return length >= parts_.cutoff_len ? EndOfTurns::kLength : EndOfTurns::kNone;
}

std::optional<std::vector<size_t>> Conversations::react(std::vector<Open>& all, int64_t turn,
                                                        const Waiting& waiting) {
  std::vector<size_t> asked, going_on;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].is_over) asked.push_back(i);
  }
  // An observation without room for a further answer is left out, and the environment is asked
  // again for the reward.
  for (bool is_last = false; !asked.empty(); is_last = true) {
    std::vector<EnvironmentAnswer> answers;
    for (const size_t i : asked) {
      const Open& open = all[i];
      answers.push_back({.id = open.name,
                         .prompt = parts_.tokenizer.decode(open.question->prompt, true),
                         .solution = open.question->solution,
                         .turn = turn,
                         .answer = open.held.answer,
                         .end = is_last ? EndOfTurns::kLength : end_of(open, turn)});
    }
    const auto replies = environment_->replies(answers, waiting.stops);
    if (!replies) return std::nullopt;
    std::vector<size_t> without_room;
    for (size_t k = 0; k < asked.size(); ++k) {
      const EnvironmentReply& reply = (*replies)[k];
      Open& open = all[asked[k]];
      open.is_over = reply.reward.has_value();
      open.held.reward = reply.reward;
      if (open.is_over) continue;
      const std::vector<int32_t> seen = observation_tokens(
          parts_.encoder, reply.role == "tool" ? Role::kObservation : Role::kUser,
          reply.observation, open.held.rollout.token_ids.back(),
          "environment_command, conversation " + open.name);
      Rollout& rollout = open.held.rollout;
      if (std::ssize(rollout.token_ids) + std::ssize(seen) + parts_.policy.max_completion_length >
          parts_.cutoff_len) {
        without_room.push_back(asked[k]);
        continue;
      }
      rollout.token_ids.insert(rollout.token_ids.end(), seen.begin(), seen.end());
      rollout.mask.resize(rollout.token_ids.size(), false);
      rollout.logprobs.resize(rollout.token_ids.size(), 0.0);
      going_on.push_back(asked[k]);
    }
    asked = std::move(without_room);
  }
  return going_on;
}

std::optional<std::vector<std::vector<int32_t>>> Conversations::next_prompts(
    std::vector<Open>& all, int64_t turn, const Waiting& waiting, std::vector<size_t>& going_on) {
  std::optional<std::vector<std::vector<int32_t>>> prompts;
  const auto on_rank_0 = [&] {
    std::optional<std::vector<size_t>> found = react(all, turn, waiting);
    if (!found) return;
    prompts.emplace();
    going_on = *std::move(found);
    for (const size_t i : going_on) prompts->push_back(all[i].held.rollout.token_ids);
  };
  if (parts_.source.is_of_rank_0()) {
    on_rank_0();
    return prompts;
  }
  std::string text;
  all_or_none_patiently(parts_.world, parts_.notices, [&] {
    if (parts_.world.rank() != 0) return;
    on_rank_0();
    if (prompts) text = nlohmann::json(*prompts).dump();
  });
  text = parts_.world.gather_text(text)[0];
  if (text.empty()) return std::nullopt;
  return parse_json(text, "the prompts of rank 0").get<std::vector<std::vector<int32_t>>>();
}

std::optional<std::vector<HeldConversation>> Conversations::hold(
    const std::vector<AskedQuestion>& questions, int64_t policy_version, uint64_t seed,
    const Waiting& waiting) {
  const int64_t N = parts_.policy.num_generations;
  std::vector<std::vector<int32_t>> prompts;
  for (const AskedQuestion& question : questions) prompts.push_back(question.prompt);
  auto answers = parts_.source.answers({prompts, N, policy_version, seed}, waiting);
  if (!answers) return std::nullopt;
  std::vector<Open> all;
  for (size_t i = 0; i < answers->size(); ++i) {
    const AskedQuestion& question = questions[i / N];
    Open& open = all.emplace_back();
    open.question = &question;
    open.name = fmt::format("{}.{}", question.name, i % N);
    open.held.rollout.token_ids = question.prompt;
    open.held.rollout.mask.assign(question.prompt.size(), false);
    open.held.rollout.logprobs.assign(question.prompt.size(), 0.0);
    add_answer(open, (*answers)[i]);
  }
  const bool has_environment = !parts_.policy.environment_command.empty();
  for (int64_t turn = 0; has_environment; ++turn) {
    std::vector<size_t> going_on;
    const auto next = next_prompts(all, turn, waiting, going_on);
    if (!next) return std::nullopt;
    if (next->empty()) break;
    answers = parts_.source.answers(
        {*next, 1, policy_version, mix_seed(seed, static_cast<uint64_t>(turn + 1))}, waiting);
    if (!answers) return std::nullopt;
    for (size_t k = 0; k < going_on.size(); ++k) add_answer(all[going_on[k]], (*answers)[k]);
  }
  std::vector<HeldConversation> held;
  for (Open& open : all) {
    if (!parts_.source.has_logprobs()) open.held.rollout.logprobs.clear();
    held.push_back(std::move(open.held));
  }
  return held;
}

}  // namespace longspan
