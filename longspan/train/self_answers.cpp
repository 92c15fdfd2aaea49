#include "longspan/train/self_answers.h"

#include <algorithm>
#include <utility>

#include "longspan/settings/policy_settings.h"

namespace longspan {
namespace {

constexpr int64_t kAnswersAtOnce = 16;

}  // namespace

SelfAnswers::SelfAnswers(const PolicySettings& policy, Session& session,
                         std::set<int32_t> end_tokens)
    : policy_(policy), session_(session), end_tokens_(std::move(end_tokens)) {}

std::optional<std::vector<Answer>> SelfAnswers::answers(const AskedPrompts& asked,
                                                        const Waiting& waiting) {
  std::vector<std::vector<int32_t>> repeated;
  for (const std::vector<int32_t>& prompt : asked.prompts) {
    repeated.insert(repeated.end(), asked.count, prompt);
  }
  const GenerationOptions options{.sampling = {.do_sample = true,
                                               .temperature = policy_.rollout_temperature,
                                               .top_k = 0,
                                               .top_p = 1.0},
                                  .max_new_tokens = policy_.max_completion_length,
                                  .end_tokens = end_tokens_,
                                  .seed = asked.seed,
                                  .logprobs = true};
  std::vector<Answer> answers =
      session_.generate(repeated, options, kAnswersAtOnce, [&] { return !waiting.stops(); });
  // Answers are equal on all ranks.
  const auto is_interrupted = [](const Answer& answer) {
    return answer.reason == FinishReason::kInterrupted;
  };
  if (std::ranges::any_of(answers, is_interrupted)) return std::nullopt;
  return answers;
}

}  // namespace longspan
