// sft: turns become one sample, cut to cutoff_len, with labels.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "longspan/base/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/parallel_rows.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/data/template_format.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

TurnLengths fit_turn(int64_t source, int64_t target, int64_t budget) {
  int64_t most_target;
  if (target * 2 < budget) {
    most_target = budget;  // the answer is short: only the question is cut
  } else if (source * 2 < budget) {
    most_target = budget - source;
  } else {
    // This order of floating-point operations gives LLaMA-Factory's rounding.
    most_target =
        static_cast<int64_t>(static_cast<double>(budget) *
                             (static_cast<double>(target) / static_cast<double>(source + target)));
  }
  const int64_t kept_target = std::min(most_target, target);
  return {std::min(std::max<int64_t>(budget - kept_target, 0), source), kept_target};
}

namespace {

/// Turns a conversation into a sample, cut turn by turn. The first turns (mask_history: the last)
/// get their tokens first.
Sample encode_turns(std::vector<Turn> parts, const DataSettings& config,
                    const std::optional<int32_t>& last_end) {
  // Only the last turn is trained, so it gets its tokens first.
  if (config.mask_history) std::ranges::reverse(parts);
  int64_t length = last_end ? 1 : 0;
  size_t num_kept = 0;
  for (Turn& turn : parts) {
    if (length >= config.cutoff_len) break;
    const TurnLengths kept =
        fit_turn(std::ssize(turn.source), std::ssize(turn.target), config.cutoff_len - length);
    cut_source(turn, kept.source);
    cut_target(turn, kept.target);
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
    // The turn that was encoded first, which need not be the conversation's first.
    const bool is_first = &turn == (config.mask_history ? &parts.back() : &parts.front());
    const auto append = [](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(sample.input_ids, turn.source);
    append(sample.input_ids, turn.target);
    if (config.train_on_prompt) {
      append(sample.labels, turn.source);
    } else {
      const size_t begin = sample.labels.size();
      sample.labels.resize(begin + turn.source.size(), kIgnoreLabel);
      // The token ends the answer before.
      const bool ends_answer = &turn == &parts.front() || (&turn - 1)->is_trained;
      if (last_end && !is_first && ends_answer && !turn.source.empty()) {
        sample.labels[begin] = *last_end;
      }
    }
    append(sample.labels, turn.target_labels);
  }
  if (last_end) {
    sample.input_ids.push_back(*last_end);
    sample.labels.push_back(parts.empty() || parts.back().is_trained ? *last_end : kIgnoreLabel);
  }
  set_features(sample, parts);
  return sample;
}

/// As LLaMA-Factory's v1: the marker before an answer is trained with the answer.
void train_markers(std::vector<Turn>& parts, const std::vector<int32_t>& marker) {
  for (Turn& turn : parts) {
    std::vector<int32_t>& source = turn.source;
    if (!std::ranges::equal(marker, std::span(source).last(std::min(marker.size(), source.size()))))
      continue;
    source.resize(source.size() - marker.size());
    turn.target.insert(turn.target.begin(), marker.begin(), marker.end());
    std::vector<int32_t>& labels = turn.target_labels;
    labels.insert(labels.begin(), marker.begin(), marker.end());
    if (!turn.is_trained) std::ranges::fill(labels, static_cast<int32_t>(kIgnoreLabel));
  }
}

/// As LLaMA-Factory's v1: a long row is cut at its end, not turn by turn.
Sample encode_v1(std::vector<Turn> parts, const DataSettings& config,
                 const std::vector<int32_t>& marker) {
  train_markers(parts, marker);
  DataSettings uncut = config;
  uncut.cutoff_len = INT64_MAX;
  Sample sample = encode_turns(std::move(parts), uncut, std::nullopt);
  const size_t length = std::min<size_t>(sample.input_ids.size(), config.cutoff_len);
  sample.input_ids.resize(length);
  sample.labels.resize(length);
  return sample;
}

/// Throws where a row has a part that LLaMA-Factory's v1 prints in another way than its template.
void require_same_in_v1(const Conversation& row) {
  if (row.tools.empty() && !has_pictures(row)) return;
  throw RowError(fmt::format(
      "{}: the row has {}, which LLaMA-Factory's v1 prints in its own way. Write the configuration "
      "with the keys of the main trainer, or remove them.",
      row.source, row.tools.empty() ? "pictures" : "tools"));
}

/// Throws where a row asks to leave out text that train_on_prompt trains.
void require_no_contradiction(const DataSettings& config, const Conversation& row) {
  if (!config.train_on_prompt) return;
  const auto untrained = std::ranges::find_if(row.messages, [](const Message& message) {
    return !is_answer(message.role) && !message.is_trained;
  });
  if (untrained == row.messages.end()) return;
  throw RowError(fmt::format(
      "{}: message {}, the {}'s, says weight: 0 or train: false, and train_on_prompt trains the "
      "messages between answers. Remove one of the two.",
      row.source, untrained - row.messages.begin() + 1, name_of(untrained->role)));
}

int64_t num_tokens(const std::vector<Turn>& turns) {
  int64_t tokens = 0;
  for (const Turn& turn : turns) tokens += std::ssize(turn.source) + std::ssize(turn.target);
  return tokens;
}

/// Returns samples of the good rows, in order, and adds their numbers to `encoded`.
std::vector<Sample> encode_samples(const Encoding& encoding, const TurnEncoder& turns,
                                   const std::vector<Conversation>& rows,
                                   EncodedExamples& encoded) {
  std::vector<Sample> samples(rows.size());
  std::vector<int64_t> lengths(rows.size());
  const std::optional<int32_t> last_end = turns.last_end();
  if (last_end && encoding.config.train_on_prompt) {
    throw UserError(fmt::format(
        "template: {} ends answers with the next prompt's first token, which train_on_prompt: true "
        "would train twice. Remove one of the two.",
        encoding.config.chat_template));
  }
  const bool is_v1 = encoding.config.v1_rows && !encoding.config.chat_template.empty();
  std::vector<int32_t> marker;
  if (is_v1) {
    const Format& format = template_format(encoding.config.chat_template);
    marker = encoding.tokenizer.encode(std::string(format.generation));
  }
  const auto encode = [&](int64_t i) {
    require_no_contradiction(encoding.config, rows[i]);
    if (is_v1) require_same_in_v1(rows[i]);
    PlacedPictures row;
    std::vector<Turn> parts = encoding.turns_of(turns, rows[i], row);
    lengths[i] = num_tokens(parts) + (last_end ? 1 : 0);
    samples[i] = is_v1 ? encode_v1(std::move(parts), encoding.config, marker)
                       : encode_turns(std::move(parts), encoding.config, last_end);
    encoding.attach_pictures(samples[i], row, rows[i].source);
    encoding.require_trained(samples[i], rows[i].source, "the row");
  };
  std::vector<Sample> good;
  for (const int64_t i : encoding.good_rows(std::ssize(rows), encode)) {
    const int64_t kept = std::ssize(samples[i].input_ids);
    encoded.cut.add_row(lengths[i], kept, lengths[i]);
    encoded.rows.push_back({i, {lengths[i]}, kept, num_trained(samples[i])});
    good.push_back(std::move(samples[i]));
  }
  return good;
}

}  // namespace

EncodedExamples encode_answers(const Encoding& encoding, const std::vector<Conversation>& rows) {
  const DataSettings& config = encoding.config;
  if (config.asks_rows) return encode_asked_rows(encoding, rows);
  const auto turns =
      make_turn_encoder(config, encoding.stage, encoding.tokenizer, encoding.template_time);
  EncodedExamples encoded;
  std::vector<Sample> samples = encode_samples(encoding, *turns, rows, encoded);
  if (config.neat_packing || packs(config, encoding.stage)) {
    EncodedExamples packed =
        pack_samples(std::move(samples), config.cutoff_len, config.neat_packing);
    encoded.examples = std::move(packed.examples);
    encoded.packing = packed.packing;
  } else {
    for (Sample& sample : samples) encoded.examples.push_back(single(std::move(sample)));
  }
  return encoded;
}

}  // namespace longspan
