// dpo, rm: two answers to the same question.
#include <algorithm>
#include <array>

#include "longspan/data/stage_encoders.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

EncodedExamples encode_pairs(const Encoding& encoding, const std::vector<Conversation>& rows) {
  const auto turns = make_turn_encoder(encoding.config, encoding.stage, encoding.tokenizer,
                                       encoding.template_time);
  std::vector<Example> examples(rows.size());
  std::vector<std::array<int64_t, 2>> lengths(rows.size());
  const auto encode = [&](int64_t i) {
    Conversation other = rows[i];
    other.messages.back() = *rows[i].rejected;
    PlacedPictures of_chosen, of_rejected;
    Turn chosen = encoding.question_and_answer(*turns, rows[i], of_chosen);
    Turn rejected = encoding.question_and_answer(*turns, other, of_rejected, /*counts=*/false);
    // Empty thoughts at the end of a question may depend on the answer; the chosen one's are taken.
    if (!encoding.config.chat_template.empty()) {
      rejected.source = chosen.source;
      rejected.source_features = chosen.source_features;
    }
    // The longer answer decides how much of the question stays, so that both keep the same
    // question. With a model's own template the question's last token may differ between the two,
    // since it can hold the answer's first characters.
    const TurnLengths most =
        fit_turn(std::max(std::ssize(chosen.source), std::ssize(rejected.source)),
                 std::max(std::ssize(chosen.target), std::ssize(rejected.target)),
                 encoding.config.cutoff_len);
    const int64_t first = std::ssize(chosen.source) + std::ssize(chosen.target),
                  second = std::ssize(rejected.source) + std::ssize(rejected.target);
    lengths[i] = {first, second};
    std::vector<Sample>& documents = examples[i].documents;
    documents = {answered(std::move(chosen), most), answered(std::move(rejected), most)};
    encoding.attach_pictures(documents[0], of_chosen, rows[i].source);
    encoding.attach_pictures(documents[1], of_rejected, rows[i].source);
    encoding.require_trained(documents[0], rows[i].source, "the chosen answer");
    encoding.require_trained(documents[1], rows[i].source, "the rejected answer");
  };
  EncodedExamples encoded;
  for (const int64_t i : encoding.good_rows(std::ssize(rows), encode)) {
    const std::vector<Sample>& documents = examples[i].documents;
    const auto [first, second] = lengths[i];
    const int64_t kept = std::ssize(documents[0].input_ids) + std::ssize(documents[1].input_ids);
    encoded.cut.add_row(first + second, kept, std::max(first, second));
    encoded.rows.push_back(
        {i, lengths[i], kept, num_trained(documents[0]) + num_trained(documents[1])});
    encoded.examples.push_back(std::move(examples[i]));
  }
  return encoded;
}

}  // namespace longspan
