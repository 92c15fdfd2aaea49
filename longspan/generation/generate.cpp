#include "longspan/generation/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "longspan/kernels/dropout.h"

namespace longspan {
namespace {

/// An unfinished answer in a sequence of the decoder.
struct Place {
  int64_t prompt;
  Sampler sampler;
  Answer answer = {};
};

/// Returns log softmax(logits / temperature)[token].
double logprob_of(std::span<const float> logits, int32_t token, double temperature) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp((logit - most) / temperature);
  return (logits[token] - most) / temperature - std::log(sum);
}

class Generation {
 public:
  Generation(CachedDecoder& decoder, const std::vector<Sample>& prompts,
             const GenerationOptions& options, const GenerationListener& listener)
      : decoder_(decoder),
        prompts_(prompts),
        options_(options),
        listener_(listener),
        places_(decoder.num_sequences()) {}

  void run() {
    const auto go_on = [&] { return !listener_.go_on || listener_.go_on(); };
    for (;;) {
      const std::vector<CachedDecoder::Extension> extensions = next_extensions();
      if (extensions.empty()) return;
      const at::Tensor logits_EV = decoder_.extend(extensions, go_on);
      if (!logits_EV.defined()) {
        for (std::optional<Place>& place : places_) {
          if (place) finish(place, FinishReason::kInterrupted);
        }
        return;
      }
      const at::Tensor logits = logits_EV.to(at::kFloat).contiguous();
      const int64_t V = logits.size(1);
      float* row = logits.mutable_data_ptr<float>();
      for (const auto& extension : extensions) {
        take_next(extension.sequence, {row, static_cast<size_t>(V)});
        row += V;
      }
    }
  }

 private:
  /// Returns the rest of the prompt for a new place, and the last token for the others.
  std::vector<CachedDecoder::Extension> next_extensions() {
    std::vector<CachedDecoder::Extension> extensions;
    for (size_t i = 0; i < places_.size(); ++i) {
      const int64_t sequence = static_cast<int64_t>(i);
      if (places_[i]) {
        extensions.push_back({sequence, {places_[i]->answer.tokens.back()}});
      } else if (next_prompt_ < std::ssize(prompts_)) {
        const int64_t number = next_prompt_++;
        const int64_t among_all = options_.first_number + number * options_.number_step;
        places_[i].emplace(number, Sampler(options_.sampling, mix_seed(options_.seed, among_all)));
        extensions.push_back({sequence, decoder_.begin(sequence, prompts_[number])});
      }
    }
    return extensions;
  }

  void take_next(int64_t sequence, std::span<float> logits) {
    std::optional<Place>& place = places_[sequence];
    // pick() changes the logits.
    std::vector<float> as_computed;
    if (options_.logprobs) as_computed.assign(logits.begin(), logits.end());
    const int32_t token = place->sampler.pick(logits, decoder_.tokens(sequence));
    if (options_.logprobs) {
      place->answer.logprobs.push_back(
          logprob_of(as_computed, token, options_.sampling.temperature));
    }
    if (options_.end_tokens.contains(token)) {
      place->answer.end_token = token;
      return finish(place, FinishReason::kStop);
    }
    place->answer.tokens.push_back(token);
    if (listener_.token) listener_.token(place->prompt, token);
    if (std::ssize(place->answer.tokens) >= options_.max_new_tokens) {
      finish(place, FinishReason::kLength);
    } else if (std::ssize(decoder_.tokens(sequence)) + 1 > decoder_.max_length()) {
      finish(place, FinishReason::kContext);
    }
  }

  void finish(std::optional<Place>& place, FinishReason reason) {
    place->answer.reason = reason;
    if (listener_.answer) listener_.answer(place->prompt, std::move(place->answer));
    place.reset();
  }

  CachedDecoder& decoder_;
  const std::vector<Sample>& prompts_;
  const GenerationOptions& options_;
  const GenerationListener& listener_;
  std::vector<std::optional<Place>> places_;
  int64_t next_prompt_ = 0;
};

}  // namespace

void generate(CachedDecoder& decoder, const std::vector<Sample>& prompts,
              const GenerationOptions& options, const GenerationListener& listener) {
  Generation(decoder, prompts, options, listener).run();
}

void generate(CachedDecoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
              const GenerationOptions& options, const GenerationListener& listener) {
  std::vector<Sample> samples;
  for (const std::vector<int32_t>& prompt : prompts) samples.push_back({.input_ids = prompt});
  generate(decoder, samples, options, listener);
}

}  // namespace longspan
