#include "longspan/data/example_encoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

double empty_share(int64_t tokens, int64_t rows, int64_t row_length) {
  if (rows == 0) return 0;
  return 1 - static_cast<double>(tokens) / (static_cast<double>(rows) * row_length);
}

}  // namespace

double PackingReport::empty_before() const {
  return empty_share(tokens_before, rows_before, row_length);
}

double PackingReport::empty_after() const {
  return empty_share(tokens_after, rows_after, row_length);
}

std::string PackingReport::text() const {
  return fmt::format(
      "Packing: {} of up to {} out of {}; {:.1f} % of them empty, one by one it would "
      "be {:.1f} %{}",
      counted(rows_after, "row"), counted(row_length, "token"), rows_before, 100 * empty_after(),
      100 * empty_before(),
      num_dropped > 0 ? fmt::format("; the last {} of the text, too few for a row, left out",
                                    counted(num_dropped, "token"))
                      : "");
}

void CutReport::add_row(int64_t tokens, int64_t kept, int64_t longest_document) {
  ++num_rows;
  num_tokens += tokens;
  num_lost += tokens - kept;
  num_cut += kept < tokens;
  longest = std::max(longest, longest_document);
}

std::string CutReport::text(int64_t cutoff_len) const {
  if (num_cut == 0) return "";
  const std::string counted = fmt::format(
      "{} of {} row{} {} cut, {} of {} tokens lost (cutoff_len is {}, the longest has {})", num_cut,
      num_rows, num_rows == 1 ? "" : "s", num_cut == 1 ? "was" : "were", num_lost, num_tokens,
      cutoff_len, longest);
  if (!is_nearly_all()) return counted;
  return fmt::format("warning: cutoff_len cuts nearly every row: {}. Raise cutoff_len.", counted);
}

EncodedExamples encode_examples(const DataSettings& config, const Stage& stage,
                                const Tokenizer& tokenizer, const std::vector<Conversation>& rows,
                                const LocalTime& template_time, int64_t vocab_size) {
  if (rows.empty()) return {};
  BadRows bad;
  ChatReport chats;
  const Encoding encoding{config, stage, tokenizer, template_time, vocab_size, bad, chats};
  EncodedExamples encoded = stage.encode(encoding, rows);
  encoded.chats = chats.notes();
  encoded.left_out = bad.settle(on_bad_row_of(config), "the data", std::ssize(rows));
  if (encoded.examples.empty()) {
    throw UserError(fmt::format("{}: there is no text in this row and the {} after it",
                                rows.front().source, rows.size() - 1));
  }
  return encoded;
}

}  // namespace longspan
