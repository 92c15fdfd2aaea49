// Turns -> one sample: cutting to cutoff_len, labels.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "longspan/config/user_error.h"
#include "longspan/data/dataset.h"
#include "longspan/data/turns.h"

namespace longspan {

TurnLengths fit_turn(int64_t source, int64_t target, int64_t budget) {
  int64_t most_target;
  if (target * 2 < budget) {
    most_target = budget;  // the answer is short: only the question is cut
  } else if (source * 2 < budget) {
    most_target = budget - source;
  } else {
    // In this order of floating-point operations, so that the rounding is LLaMA-Factory's.
    most_target =
        static_cast<int64_t>(static_cast<double>(budget) *
                             (static_cast<double>(target) / static_cast<double>(source + target)));
  }
  const int64_t kept_target = std::min(most_target, target);
  return {std::min(std::max<int64_t>(budget - kept_target, 0), source), kept_target};
}

struct SftEncoder::Impl {
  std::unique_ptr<TurnEncoder> turns;
  int64_t cutoff_len;
  bool mask_history, train_on_prompt;
  int64_t num_threads;

  Sample encode(const Conversation& conversation) const {
    std::vector<Turn> parts = turns->turns(conversation);
    // The last turn is the one that is trained: it gets its tokens first.
    if (mask_history) std::ranges::reverse(parts);
    int64_t length = 0;
    size_t num_kept = 0;
    for (Turn& turn : parts) {
      if (length >= cutoff_len) break;
      const TurnLengths kept =
          fit_turn(std::ssize(turn.source), std::ssize(turn.target), cutoff_len - length);
      turn.source.resize(kept.source);
      turn.target.resize(kept.target);
      turn.target_labels.resize(kept.target);
      if (mask_history && num_kept > 0) {
        std::ranges::fill(turn.target_labels, static_cast<int32_t>(kIgnoreLabel));
      }
      length += kept.source + kept.target;
      ++num_kept;
    }
    parts.resize(num_kept);
    if (mask_history) std::ranges::reverse(parts);

    Sample sample;
    sample.input_ids.reserve(length);
    sample.labels.reserve(length);
    for (const Turn& turn : parts) {
      const auto append = [](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(sample.input_ids, turn.source);
      append(sample.input_ids, turn.target);
      if (train_on_prompt) {
        append(sample.labels, turn.source);
      } else {
        sample.labels.resize(sample.labels.size() + turn.source.size(), kIgnoreLabel);
      }
      append(sample.labels, turn.target_labels);
    }
    return sample;
  }

  Sample encode_trainable(const Conversation& conversation) const {
    Sample sample = encode(conversation);
    // The label of the first token is not predicted by anything.
    const bool trainable =
        std::any_of(sample.labels.begin() + std::min<size_t>(1, sample.labels.size()),
                    sample.labels.end(), [](int32_t label) { return label != kIgnoreLabel; });
    if (!trainable) {
      throw UserError(fmt::format(
          "{}: no token of the row is trained{}", conversation.source,
          std::ssize(sample.input_ids) >= cutoff_len
              ? fmt::format(": cutoff_len {} leaves nothing of its answers; raise it", cutoff_len)
              : ": its answers are empty"));
    }
    return sample;
  }
};

SftEncoder::SftEncoder(const Config& config, const Tokenizer& tokenizer)
    : impl_(std::make_unique<Impl>()) {
  impl_->turns = config.chat_template.empty()
                     ? make_model_template(tokenizer, config.default_system, config.enable_thinking)
                     : make_named_template(config.chat_template, tokenizer, config.default_system);
  impl_->cutoff_len = config.cutoff_len;
  impl_->mask_history = config.mask_history;
  impl_->train_on_prompt = config.train_on_prompt;
  impl_->num_threads =
      config.preprocessing_num_workers.value_or(std::thread::hardware_concurrency());
}

SftEncoder::~SftEncoder() = default;

Sample SftEncoder::encode(const Conversation& conversation) const {
  return impl_->encode(conversation);
}

std::vector<Sample> SftEncoder::encode_all(const std::vector<Conversation>& conversations) const {
  const int64_t size = std::ssize(conversations);
  std::vector<Sample> samples(size);
  // The first row's error is the one that is told, whatever thread meets which row first.
  std::mutex mutex;
  std::exception_ptr error;
  int64_t error_row = size;
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < size; i = next++) {
      try {
        samples[i] = impl_->encode_trainable(conversations[i]);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (i < error_row) {
          error_row = i;
          error = std::current_exception();
        }
        next = size;  // rows are taken in order: all before this one are done or being done
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int64_t i = 1; i < std::min(impl_->num_threads, size); ++i) threads.emplace_back(work);
  work();
  threads.clear();
  if (error) std::rethrow_exception(error);
  return samples;
}

}  // namespace longspan
