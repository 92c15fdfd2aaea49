#include "longspan/data/stage_encoders.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/data/parallel_rows.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/counted.h"

namespace longspan {

std::vector<int64_t> Encoding::good_rows(int64_t num_rows, const std::function<void(int64_t)>& work,
                                         const std::vector<int64_t>* places) const {
  const std::vector<RowProblem> problems = problems_of_rows(config, num_rows, work);
  std::vector<int64_t> good;
  for (int64_t i = 0; i < num_rows; ++i) {
    const auto& [text, nothing_trained] = problems[i];
    if (text.empty()) {
      good.push_back(i);
      continue;
    }
    bad.add(text);
    if (unusable != nullptr) {
      unusable->push_back({places == nullptr ? i : (*places)[i], nothing_trained});
    }
  }
  return good;
}

void Encoding::require_known(const std::vector<int32_t>& ids, const std::string& source) const {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    throw UserError(fmt::format(
        "{}: token {} ({}) is outside of the model's vocabulary: vocab_size in config.json is {}, "
        "the tokenizer has {}. Put the model's own tokenizer into its folder.",
        source, id, tokenizer.decode({id}), vocab_size, counted(tokenizer.vocab_size(), "token")));
  }
}

void Encoding::require_trained(const Sample& sample, const std::string& source,
                               std::string_view what) const {
  require_known(sample.input_ids, source);
  if (num_trained(sample) > 0) return;
  throw NothingTrained(
      fmt::format("{}: no token of {} is trained{}", source, what,
                  std::ssize(sample.input_ids) >= config.cutoff_len
                      ? fmt::format(": cutoff_len {} leaves nothing of its answers; raise it",
                                    config.cutoff_len)
                      : ": its answers are empty, or weight: 0 or train: false takes them out"));
}

int64_t num_trained(const Sample& sample) {
  if (sample.labels.empty()) return 0;
  return std::count_if(sample.labels.begin() + 1, sample.labels.end(),
                       [](int32_t label) { return label != kIgnoreLabel; });
}

std::vector<Turn> Encoding::turns_of(const TurnEncoder& turns, const Conversation& conversation,
                                     PlacedPictures& row, bool counts) const {
  std::vector<Turn> parts = pictures == nullptr
                                ? turns.turns(conversation)
                                : turns.turns(pictures->prepared(conversation, row));
  if (counts) report(turns, parts);
  if (!row.pictures.empty()) pictures->expand(parts, row, conversation.source);
  return parts;
}

void Encoding::attach_pictures(Sample& sample, const PlacedPictures& row,
                               const std::string& source) const {
  if (has_pictures) pictures->attach(sample, row, config.cutoff_len, source);
}

void Encoding::report(const TurnEncoder& turns, const std::vector<Turn>& parts) const {
  const bool trains_all = stage.trains_all_answers && !config.mask_history;
  // These templates add the end later.
  const bool ends_later = turns.last_end().has_value();
  chats.add(parts, trains_all, ends_later ? std::set<int32_t>() : ends_of(tokenizer, turns),
            tokenizer);
}

namespace {

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

Turn question_and_answer(std::vector<Turn> parts) {
  Turn whole;
  for (size_t i = 0; i < parts.size(); ++i) {
    append(whole.source, parts[i].source);
    append(whole.source_features, parts[i].source_features);
    if (i + 1 == parts.size()) break;
    append(whole.source, parts[i].target);
    append(whole.source_features, parts[i].target_features);
  }
  whole.target = std::move(parts.back().target);
  whole.target_features = std::move(parts.back().target_features);
  whole.target_labels = std::move(parts.back().target_labels);
  return whole;
}

Turn Encoding::question_and_answer(const TurnEncoder& turns, const Conversation& conversation,
                                   PlacedPictures& row, bool counts) const {
  Turn whole = longspan::question_and_answer(turns_of(turns, conversation, row, counts));
  if (const std::optional<int32_t> end = turns.last_end()) {
    whole.target.push_back(*end);
    whole.target_labels.push_back(*end);
    if (!whole.target_features.empty()) whole.target_features.push_back(-1);
  }
  return whole;
}

Example single(Sample sample) {
  Example example;
  example.documents.push_back(std::move(sample));
  return example;
}

void cut_source(Turn& turn, int64_t length) {
  turn.source.resize(length);
  if (!turn.source_features.empty()) turn.source_features.resize(length);
}

void cut_target(Turn& turn, int64_t length) {
  turn.target.resize(length);
  turn.target_labels.resize(length);
  if (!turn.target_features.empty()) turn.target_features.resize(length);
}

void set_features(Sample& sample, std::span<const Turn> turns) {
  std::vector<int64_t> features;
  bool has_any = false;
  for (const Turn& turn : turns) {
    append(features, turn.source_features);
    append(features, turn.target_features);
    has_any = has_any || !turn.source_features.empty() || !turn.target_features.empty();
  }
  if (!has_any) return;
  // A token that ends the row follows the turns.
  features.resize(sample.input_ids.size(), -1);
  sample.columns[kFeatureColumn] = {at::tensor(features, at::kLong), -1};
}

Sample answered(Turn turn, const TurnLengths& most) {
  cut_source(turn, std::min(std::ssize(turn.source), most.source));
  cut_target(turn, std::min(std::ssize(turn.target), most.target));
  Sample sample;
  sample.labels.assign(turn.source.size(), kIgnoreLabel);
  sample.labels.insert(sample.labels.end(), turn.target_labels.begin(), turn.target_labels.end());
  sample.input_ids = std::move(turn.source);
  append(sample.input_ids, turn.target);
  set_features(sample, {&turn, 1});
  return sample;
}

}  // namespace longspan
