#include "longspan/data/stage_encoders.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/data/parallel_rows.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/counted.h"

namespace longspan {

std::vector<int64_t> Encoding::good_rows(int64_t num_rows,
                                         const std::function<void(int64_t)>& work) const {
  const std::vector<std::string> problems = problems_of_rows(config, num_rows, work);
  std::vector<int64_t> good;
  for (int64_t i = 0; i < num_rows; ++i) {
    if (problems[i].empty()) {
      good.push_back(i);
    } else {
      bad.add(problems[i]);
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
  const bool trained =
      std::any_of(sample.labels.begin() + std::min<size_t>(1, sample.labels.size()),
                  sample.labels.end(), [](int32_t label) { return label != kIgnoreLabel; });
  if (trained) return;
  throw RowError(
      fmt::format("{}: no token of {} is trained{}", source, what,
                  std::ssize(sample.input_ids) >= config.cutoff_len
                      ? fmt::format(": cutoff_len {} leaves nothing of its answers; raise it",
                                    config.cutoff_len)
                      : ": its answers are empty, or weight: 0 or train: false takes them out"));
}

std::vector<Turn> Encoding::turns_of(const TurnEncoder& turns,
                                     const Conversation& conversation) const {
  std::vector<Turn> parts = turns.turns(conversation);
  const bool trains_all = stage.trains_all_answers && !config.mask_history;
  // These templates add the end later.
  const bool ends_later = turns.last_end().has_value();
  chats.add(parts, trains_all, ends_later ? std::set<int32_t>() : ends_of(tokenizer, turns),
            tokenizer);
  return parts;
}

Turn question_and_answer(std::vector<Turn> parts) {
  Turn whole;
  const auto ask = [&whole](const std::vector<int32_t>& ids) {
    whole.source.insert(whole.source.end(), ids.begin(), ids.end());
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    ask(parts[i].source);
    if (i + 1 < parts.size()) ask(parts[i].target);
  }
  whole.target = std::move(parts.back().target);
  whole.target_labels = std::move(parts.back().target_labels);
  return whole;
}

Turn Encoding::question_and_answer(const TurnEncoder& turns, const Conversation& conversation,
                                   bool counts) const {
  Turn whole = longspan::question_and_answer(counts ? turns_of(turns, conversation)
                                                    : turns.turns(conversation));
  if (const std::optional<int32_t> end = turns.last_end()) {
    whole.target.push_back(*end);
    whole.target_labels.push_back(*end);
  }
  return whole;
}

Example single(Sample sample) {
  Example example;
  example.documents.push_back(std::move(sample));
  return example;
}

Sample answered(Turn turn, const TurnLengths& most) {
  turn.source.resize(std::min(std::ssize(turn.source), most.source));
  turn.target.resize(std::min(std::ssize(turn.target), most.target));
  turn.target_labels.resize(turn.target.size());
  Sample sample;
  sample.labels.assign(turn.source.size(), kIgnoreLabel);
  sample.labels.insert(sample.labels.end(), turn.target_labels.begin(), turn.target_labels.end());
  sample.input_ids = std::move(turn.source);
  sample.input_ids.insert(sample.input_ids.end(), turn.target.begin(), turn.target.end());
  return sample;
}

}  // namespace longspan
