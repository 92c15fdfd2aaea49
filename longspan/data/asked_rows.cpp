// sft, evaluations that generate (predict_with_generate): a question, and the answer to compare
// with.
#include <fmt/format.h>

#include <algorithm>

#include "longspan/data/stage_encoders.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

EncodedExamples encode_asked_rows(const Encoding& encoding, const std::vector<Conversation>& rows) {
  const DataSettings& config = encoding.config;
  const auto turns =
      make_turn_encoder(config, encoding.stage, encoding.tokenizer, encoding.template_time);
  std::vector<Example> examples(rows.size());
  std::vector<int64_t> lengths(rows.size());
  const std::vector<int64_t> good = encoding.good_rows(std::ssize(rows), [&](int64_t i) {
    if (has_pictures(rows[i])) {
      throw RowError(
          fmt::format("{}: the row has pictures, and predict_with_generate answers texts alone; "
                      "remove the row",
                      rows[i].source));
    }
    PlacedPictures none;
    Turn turn = encoding.question_and_answer(*turns, rows[i], none);
    turn.target_labels = turn.target;
    const int64_t source = std::ssize(turn.source), target = std::ssize(turn.target);
    lengths[i] = source + target;
    const TurnLengths most = fit_turn(source, target, config.cutoff_len);
    const int64_t asked = std::min(source, most.source);
    if (asked == 0) {
      throw RowError(fmt::format("{}: there is nothing to answer; remove the row", rows[i].source));
    }
    if (asked >= encoding.max_positions) {
      throw RowError(fmt::format(
          "{}: the question has {} tokens, and the model takes {} together with the answer "
          "(max_position_embeddings of config.json); lower cutoff_len, or remove the row",
          rows[i].source, asked, encoding.max_positions));
    }
    Sample sample = answered(std::move(turn), most);
    encoding.require_known(sample.input_ids, rows[i].source);
    examples[i].documents.push_back(std::move(sample));
  });
  EncodedExamples encoded;
  for (const int64_t i : good) {
    const int64_t kept = std::ssize(examples[i].documents[0].input_ids);
    encoded.cut.add_row(lengths[i], kept, lengths[i]);
    encoded.rows.push_back({i, {lengths[i]}, kept, num_trained(examples[i].documents[0])});
    encoded.examples.push_back(std::move(examples[i]));
  }
  return encoded;
}

}  // namespace longspan
