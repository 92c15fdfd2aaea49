// dpo, rm: two answers to the same question.
#include <algorithm>

#include "longspan/data/parallel_rows.h"
#include "longspan/data/stage_encoders.h"

namespace longspan {

EncodedExamples encode_pairs(const Encoding& encoding, const std::vector<Conversation>& rows) {
  const auto turns = make_turn_encoder(encoding.config, encoding.tokenizer);
  EncodedExamples encoded;
  encoded.examples.resize(rows.size());
  for_each_row_in_parallel(encoding.config, std::ssize(rows), [&](int64_t i) {
    Conversation other = rows[i];
    other.messages.back() = *rows[i].rejected;
    Turn chosen = question_and_answer(*turns, rows[i]);
    Turn rejected = question_and_answer(*turns, other);
    // Whether a question ends with empty thoughts may hang on the answer; the chosen one's counts.
    if (!encoding.config.chat_template.empty()) rejected.source = chosen.source;
    // The longer answer says how much of the question stays, so that both keep the same question.
    // (With a model's own template the last token of the question may differ between the two: it
    // can hold the answer's first letters.)
    const TurnLengths most =
        fit_turn(std::max(std::ssize(chosen.source), std::ssize(rejected.source)),
                 std::max(std::ssize(chosen.target), std::ssize(rejected.target)),
                 encoding.config.cutoff_len);
    std::vector<Sample>& documents = encoded.examples[i].documents;
    documents = {answered(std::move(chosen), most), answered(std::move(rejected), most)};
    encoding.require_trained(documents[0], rows[i].source, "the chosen answer");
    encoding.require_trained(documents[1], rows[i].source, "the rejected answer");
  });
  return encoded;
}

}  // namespace longspan
