// sft: turns -> one sample; cutting to cutoff_len, labels.
#include <algorithm>

#include "longspan/data/parallel_rows.h"
#include "longspan/data/stage_encoders.h"

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

namespace {

/// Conversation -> sample: cut turn by turn, the first ones (mask_history: the last) before others.
Sample encode_turns(std::vector<Turn> parts, const Config& config) {
  // The last turn is the one that is trained: it gets its tokens first.
  if (config.mask_history) std::ranges::reverse(parts);
  int64_t length = 0;
  size_t num_kept = 0;
  for (Turn& turn : parts) {
    if (length >= config.cutoff_len) break;
    const TurnLengths kept =
        fit_turn(std::ssize(turn.source), std::ssize(turn.target), config.cutoff_len - length);
    turn.source.resize(kept.source);
    turn.target.resize(kept.target);
    turn.target_labels.resize(kept.target);
    if (config.mask_history && num_kept > 0) {
      std::ranges::fill(turn.target_labels, static_cast<int32_t>(kIgnoreLabel));
    }
    length += kept.source + kept.target;
    ++num_kept;
  }
  parts.resize(num_kept);
  if (config.mask_history) std::ranges::reverse(parts);

  Sample sample;
  sample.input_ids.reserve(length);
  sample.labels.reserve(length);
  for (const Turn& turn : parts) {
    const auto append = [](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(sample.input_ids, turn.source);
    append(sample.input_ids, turn.target);
    if (config.train_on_prompt) {
      append(sample.labels, turn.source);
    } else {
      sample.labels.resize(sample.labels.size() + turn.source.size(), kIgnoreLabel);
    }
    append(sample.labels, turn.target_labels);
  }
  return sample;
}

std::vector<Sample> encode_samples(const Encoding& encoding, const TurnEncoder& turns,
                                   const std::vector<Conversation>& rows) {
  std::vector<Sample> samples(rows.size());
  for_each_row_in_parallel(encoding.config, std::ssize(rows), [&](int64_t i) {
    samples[i] = encode_turns(turns.turns(rows[i]), encoding.config);
    encoding.require_trained(samples[i], rows[i].source, "the row");
  });
  return samples;
}

}  // namespace

EncodedExamples encode_answers(const Encoding& encoding, const std::vector<Conversation>& rows) {
  const Config& config = encoding.config;
  const auto turns = make_turn_encoder(config, encoding.tokenizer);
  std::vector<Sample> samples = encode_samples(encoding, *turns, rows);
  if (config.neat_packing || config.packing.value_or(false)) {
    return pack_samples(std::move(samples), config.cutoff_len, config.neat_packing);
  }
  EncodedExamples encoded;
  for (Sample& sample : samples) encoded.examples.push_back(single(std::move(sample)));
  return encoded;
}

struct SftEncoder::Impl {
  Config config;
  Tokenizer tokenizer;
  std::unique_ptr<TurnEncoder> turns;
};

SftEncoder::SftEncoder(const Config& config, const Tokenizer& tokenizer)
    : impl_(std::make_unique<Impl>(config, tokenizer, make_turn_encoder(config, tokenizer))) {}

SftEncoder::~SftEncoder() = default;

std::vector<Sample> SftEncoder::encode_all(const std::vector<Conversation>& conversations) const {
  return encode_samples({impl_->config, impl_->tokenizer, INT64_MAX}, *impl_->turns, conversations);
}

}  // namespace longspan
