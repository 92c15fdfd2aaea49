#include "longspan/session/answers.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/generation/cached_decoder.h"
#include "longspan/liveness/agreement.h"
#include "longspan/models/lora.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/parameters/parameter_source.h"

namespace longspan {
namespace {

/// Returns copies of all parameters on rank 0's CPU, in the dtype of computation; empty on other
/// ranks. Collective.
std::vector<NamedTensor> gathered(const AnsweringModel& model) {
  const c10::NoGradGuard no_grad;
  const TrainedModel& trained = model.trained;
  const bool keeps = model.world.rank() == 0;
  std::vector<NamedTensor> parameters;
  const auto copy = [&](const NamedTensor& parameter) {
    // Adapters are merged in fp32, so that each weight is rounded once.
    const at::ScalarType dtype = trained.lora ? at::kFloat : parameter.tensor.scalar_type();
    if (keeps) {
      parameters.push_back({parameter.name, parameter.tensor.detach().to(at::kCPU, dtype,
                                                                         /*non_blocking=*/false,
                                                                         /*copy=*/true)});
    }
  };
  if (trained.sharded) {
    trained.sharded->for_each_whole(copy);
  } else {
    for (const NamedTensor& parameter : trained.parameters) copy(parameter);
  }
  if (!keeps) return {};
  if (trained.lora) merge_lora(model.model.spec, parameters, trained.lora->scale());
  std::erase_if(parameters, [&](const NamedTensor& parameter) {
    const ParameterRole role = trained.specs.of(parameter.name).role;
    return role == ParameterRole::kValueHead || role == ParameterRole::kValueHeadBias;
  });
  for (NamedTensor& parameter : parameters) {
    parameter.tensor = parameter.tensor.to(
        stored_dtype(trained.specs.of(parameter.name), trained.options.compute_dtype));
  }
  return parameters;
}

void check_prompts(const ModelConfig& model, const std::vector<std::vector<int32_t>>& prompts) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t length = std::ssize(prompts[i]);
    if (length == 0 || length >= model.max_position_embeddings) {
      throw UserError(fmt::format(
          "prompt {} has {} tokens; wanted are 1 to {}, so that the answer has room below "
          "max_position_embeddings",
          i, length, model.max_position_embeddings - 1));
    }
    for (const int32_t id : prompts[i]) {
      if (id >= 0 && id < model.spec.vocab_size) continue;
      throw UserError(fmt::format("prompt {} has token {}; the vocabulary has {}", i, id,
                                  model.spec.vocab_size));
    }
  }
}

/// One answer a line: reason, end token or -1, number of tokens, tokens, log-probabilities.
std::string text_of(const std::vector<Answer>& answers) {
  std::string text;
  for (const Answer& answer : answers) {
    text += fmt::format("{} {} {} {} {}\n", static_cast<int>(answer.reason),
                        answer.end_token.value_or(-1), answer.tokens.size(),
                        fmt::join(answer.tokens, " "), fmt::join(answer.logprobs, " "));
  }
  return text;
}

std::vector<Answer> answers_from(const std::string& text) {
  std::vector<Answer> answers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int reason = 0;
    int32_t end_token = -1;
    size_t num_tokens = 0;
    words >> reason >> end_token >> num_tokens;
    Answer& answer = answers.emplace_back();
    answer.reason = static_cast<FinishReason>(reason);
    if (end_token >= 0) answer.end_token = end_token;
    answer.tokens.resize(num_tokens);
    for (int32_t& token : answer.tokens) words >> token;
    for (double logprob = 0; words >> logprob;) answer.logprobs.push_back(logprob);
  }
  return answers;
}

}  // namespace

std::vector<Answer> answers_of(const AnsweringModel& model,
                               const std::vector<std::vector<int32_t>>& prompts,
                               const GenerationOptions& options, int64_t num_at_a_time,
                               const std::function<bool()>& go_on) {
  all_or_none(model.world, [&] { check_prompts(model.model, prompts); });
  if (prompts.empty()) return {};
  std::vector<NamedTensor> parameters = gathered(model);
  std::vector<Answer> answers(prompts.size(),
                              Answer{.tokens = {}, .reason = FinishReason::kInterrupted});
  all_or_none_patiently(model.world, model.notices, [&] {
    if (model.world.rank() != 0) return;
    CachedDecoder decoder(model.model.spec, std::move(parameters),
                          std::min<int64_t>(num_at_a_time, std::ssize(prompts)),
                          model.model.max_position_embeddings);
    longspan::generate(
        decoder, prompts, options,
        {.token = {},
         .answer = [&](int64_t prompt, Answer answer) { answers[prompt] = std::move(answer); },
         .go_on = go_on});
  });
  if (model.world.size() == 1) return answers;
  return answers_from(model.world.gather_text(text_of(answers))[0]);
}

}  // namespace longspan
