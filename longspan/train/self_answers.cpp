#include "longspan/train/self_answers.h"

#include <utility>

#include "longspan/settings/policy_settings.h"

namespace longspan {
namespace {

constexpr int64_t kAnswersAtOnce = 16;

}  // namespace

SelfAnswers::SelfAnswers(const PolicySettings& policy, Session& session,
                         std::set<int32_t> end_tokens)
    : policy_(policy), session_(session), end_tokens_(std::move(end_tokens)) {}

std::optional<std::vector<Answer>> SelfAnswers::answers(const AskedPrompts& asked, const Waiting&) {
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
  return session_.generate(repeated, options, kAnswersAtOnce);
}

}  // namespace longspan
