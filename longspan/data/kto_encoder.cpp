// kto: one answer and a verdict; beside it the same question with an answer to another one.
#include <fmt/format.h>

#include "longspan/config/user_error.h"
#include "longspan/data/parallel_rows.h"
#include "longspan/data/stage_encoders.h"

namespace longspan {

EncodedExamples encode_verdicts(const Encoding& encoding, const std::vector<Conversation>& rows) {
  if (rows.size() == 1) {
    throw UserError(fmt::format(
        "{}: stage kto needs at least two rows: it estimates KL by giving each question the answer "
        "of another row",
        rows[0].source));
  }
  const auto turns = make_turn_encoder(encoding.config, encoding.tokenizer);
  const auto encode = [&](const Conversation& row, std::string_view what) {
    Turn turn = question_and_answer(*turns, row);
    const TurnLengths most =
        fit_turn(std::ssize(turn.source), std::ssize(turn.target), encoding.config.cutoff_len);
    Sample sample = answered(std::move(turn), most);
    encoding.require_trained(sample, row.source, what);
    return sample;
  };
  EncodedExamples encoded;
  encoded.examples.resize(rows.size());
  // Mismatched answers are those of the row before; the first row takes the last one's. TRL and
  // LLaMA-Factory do this within batches of rows, here it is one batch of all rows.
  for_each_row_in_parallel(encoding.config, std::ssize(rows), [&](int64_t i) {
    Conversation mismatched = rows[i];
    mismatched.messages.back() = rows[i == 0 ? rows.size() - 1 : i - 1].messages.back();
    encoded.examples[i].documents = {
        encode(rows[i], "the answer"),
        encode(mismatched, "the answer of the row before, which KL sets to this question,")};
    encoded.examples[i].desirable = rows[i].desirable;
  });
  return encoded;
}

}  // namespace longspan
