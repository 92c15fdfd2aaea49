#include "longspan/session/answers.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/generation/cached_decoder.h"
#include "longspan/liveness/agreement.h"
#include "longspan/models/lora.h"
#include "longspan/optim/packed_parameters.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/parameters/parameter_source.h"

namespace longspan {
namespace {

/// Where ranks divide the prompts, they ask each other after this number of batches whether one of
/// them is told to stop. More make a stop later; fewer make the ranks wait for each other more
/// often.
constexpr int64_t kBatchesOfRound = 4;

/// Returns copies of all parameters on the CPU, in the dtype of computation; empty on ranks that do
/// not keep them. Collective.
std::vector<NamedTensor> gathered(const AnsweringModel& model, bool keeps) {
  const c10::NoGradGuard no_grad;
  const TrainedModel& trained = model.trained;
  std::vector<NamedTensor> parameters;
  std::set<std::string> packed;
  if (trained.packed) {
    for (const NamedTensor& parameter : trained.packed->parameters()) packed.insert(parameter.name);
  }
  const auto stored_of = [&](const std::string& name) {
    return stored_dtype(trained.specs.of(name), trained.options.compute_dtype);
  };
  const auto copy = [&](const NamedTensor& parameter) {
    if (!keeps) return;
    const at::ScalarType stored = stored_of(parameter.name);
    // merge_lora() computes in fp32. Until then no number is rounded.
    const at::ScalarType dtype =
        trained.lora ? c10::promoteTypes(parameter.tensor.scalar_type(), stored) : stored;
    parameters.push_back({parameter.name, parameter.tensor.detach().to(at::kCPU, dtype,
                                                                       /*non_blocking=*/false,
                                                                       /*copy=*/true)});
  };
  if (trained.sharded) {
    trained.sharded->for_each_whole(copy);
  } else {
    for (const NamedTensor& parameter : trained.parameters) {
      if (!packed.contains(parameter.name)) copy(parameter);
    }
  }
  if (trained.packed) trained.packed->for_each_whole(copy);
  if (!keeps) return {};
  if (trained.lora) merge_lora(model.model.spec, parameters, trained.lora->scale());
  std::erase_if(parameters, [&](const NamedTensor& parameter) {
    const ParameterRole role = trained.specs.of(parameter.name).role;
    return role == ParameterRole::kValueHead || role == ParameterRole::kValueHeadBias;
  });
  for (NamedTensor& parameter : parameters) {
    parameter.tensor = parameter.tensor.to(stored_of(parameter.name));
  }
  return parameters;
}

}  // namespace

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

namespace {

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
                               const std::function<bool()>& go_on, bool on_all_ranks) {
  all_or_none(model.world, [&] { check_prompts(model.model, prompts); });
  if (prompts.empty()) return {};
  // Answerer a of n has the prompts a, a + n, a + 2n, ...
  const int64_t num_answerers = on_all_ranks ? model.world.size() : 1;
  const int64_t num_own = (std::ssize(prompts) + num_answerers - 1) / num_answerers;  // at most
  const int64_t a_round = num_answerers > 1 ? num_at_a_time * kBatchesOfRound : num_own;
  std::vector<std::vector<int32_t>> own;
  for (int64_t i = model.world.rank();
       i < std::ssize(prompts) && model.world.rank() < num_answerers; i += num_answerers) {
    own.push_back(prompts[i]);
  }
  std::vector<NamedTensor> parameters = gathered(model, /*keeps=*/!own.empty());
  std::vector<Answer> answers(own.size(),
                              Answer{.tokens = {}, .reason = FinishReason::kInterrupted});
  std::optional<CachedDecoder> decoder;
  for (int64_t first = 0; first < num_own; first += a_round) {
    all_or_none_patiently(model.world, model.notices, [&] {
      const int64_t end = std::min<int64_t>(first + a_round, std::ssize(own));
      if (first >= end) return;
      if (!decoder) {
        decoder.emplace(model.model.spec, std::move(parameters),
                        std::min<int64_t>(num_at_a_time, std::ssize(own)),
                        model.model.max_position_embeddings);
      }
      GenerationOptions own_options = options;
      own_options.first_number = model.world.rank() + first * num_answerers;
      own_options.number_step = num_answerers;
      longspan::generate(
          *decoder, std::vector<std::vector<int32_t>>(own.begin() + first, own.begin() + end),
          own_options,
          {.token = {},
           .answer = [&](int64_t prompt,
                         Answer answer) { answers[first + prompt] = std::move(answer); },
           .go_on = go_on});
    });
    if (first + a_round >= num_own) break;
    const std::vector<bool> stops = gather_answers(model.world, go_on && !go_on());
    if (std::ranges::find(stops, true) != stops.end()) break;
  }
  if (model.world.size() == 1) return answers;
  const std::vector<std::string> texts = model.world.gather_text(text_of(answers));
  std::vector<Answer> all(prompts.size());
  for (int64_t answerer = 0; answerer < num_answerers; ++answerer) {
    std::vector<Answer> some = answers_from(texts[answerer]);
    for (size_t i = 0; i < some.size(); ++i) {
      all[answerer + i * num_answerers] = std::move(some[i]);
    }
  }
  return all;
}

}  // namespace longspan
