// kto: an answer that is desirable or not, and the same question with an answer to another one.
#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

EncodedExamples encode_unpaired(const Encoding& encoding, const std::vector<Conversation>& rows) {
  const auto turns = make_turn_encoder(encoding.config, encoding.stage, encoding.tokenizer,
                                       encoding.template_time);
  std::vector<int64_t> lengths(rows.size());
  const auto encode = [&](const Conversation& row, std::string_view what, int64_t* length) {
    PlacedPictures pictures;
    Turn turn = encoding.question_and_answer(*turns, row, pictures, /*counts=*/length != nullptr);
    const int64_t source = std::ssize(turn.source), target = std::ssize(turn.target);
    if (length != nullptr) *length = source + target;
    Sample sample = answered(std::move(turn), fit_turn(source, target, encoding.config.cutoff_len));
    encoding.attach_pictures(sample, pictures, row.source);
    encoding.require_trained(sample, row.source, what);
    return sample;
  };
  std::vector<Example> examples(rows.size());
  const std::vector<int64_t> good = encoding.good_rows(std::ssize(rows), [&](int64_t i) {
    examples[i].documents = {encode(rows[i], "the answer", &lengths[i])};
    examples[i].desirable = rows[i].desirable;
  });
  const bool skips = on_bad_row_of(encoding.config) == OnBadRow::kSkip;
  const std::vector<Message>* const before = encoding.answers_before;
  const Message* const other = good.size() == 1 ? encoding.other_answer : nullptr;
  if (before == nullptr && other == nullptr && good.size() == 1 && (rows.size() == 1 || skips) &&
      !encoding.own_answer_serves) {
    throw UserError(fmt::format(
        "{}: stage kto needs at least two rows: it estimates KL by giving each question the answer "
        "of another row",
        rows[good[0]].source));
  }
  // A mismatched answer is the answer of the row before; the first row gets the last row's. TRL and
  // LLaMA-Factory do this within batches of rows. Here all rows are one batch, and those of a
  // window of a stream.
  const std::vector<int64_t> whole = encoding.good_rows(
      std::ssize(good),
      [&](int64_t i) {
        Conversation mismatched = rows[good[i]];
        mismatched.messages.back() =
            before != nullptr  ? (*before)[good[i]]
            : other != nullptr ? *other
                               : rows[good[i == 0 ? good.size() - 1 : i - 1]].messages.back();
        examples[good[i]].documents.push_back(
            encode(mismatched, "the answer of the row before, which KL sets to this question,",
                   /*length=*/nullptr));
      },
      &good);
  EncodedExamples encoded;
  for (const int64_t k : whole) {
    const int64_t i = good[k];
    const Sample& answer = examples[i].documents[0];
    const int64_t kept = std::ssize(answer.input_ids);
    encoded.cut.add_row(lengths[i], kept, lengths[i]);
    encoded.rows.push_back({i, {lengths[i]}, kept, num_trained(answer)});
    encoded.examples.push_back(std::move(examples[i]));
  }
  return encoded;
}

}  // namespace longspan
