// grpo: a question to answer; the row's answer is the solution that reward functions compare with.
#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

EncodedExamples encode_prompts(const Encoding& encoding, const std::vector<Conversation>& rows) {
  const auto turns = make_turn_encoder(encoding.config, encoding.stage, encoding.tokenizer,
                                       encoding.template_time);
  std::vector<Example> examples(rows.size());
  const std::vector<int64_t> good = encoding.good_rows(std::ssize(rows), [&](int64_t i) {
    Conversation question = rows[i];
    examples[i].solution = question.messages.back().content;
    question.messages.pop_back();
    if (has_pictures(question)) {
      throw RowError(
          fmt::format("{}: the question has pictures, and rollouts of pictures are not supported; "
                      "remove the row",
                      rows[i].source));
    }
    Sample prompt{.input_ids = turns->question(question)};
    encoding.require_known(prompt.input_ids, rows[i].source);
    if (std::ssize(prompt.input_ids) >= encoding.config.cutoff_len) {
      throw RowError(fmt::format(
          "{}: the question has {} tokens, and cutoff_len {} leaves no token for an answer; raise "
          "cutoff_len",
          rows[i].source, prompt.input_ids.size(), encoding.config.cutoff_len));
    }
    prompt.labels.assign(prompt.input_ids.size(), static_cast<int32_t>(kIgnoreLabel));
    examples[i].documents.push_back(std::move(prompt));
  });
  EncodedExamples encoded;
  for (const int64_t i : good) {
    const int64_t length = std::ssize(examples[i].documents[0].input_ids);
    encoded.cut.add_row(length, length, length);
    encoded.rows.push_back({i, {length}, length, 0});
    encoded.examples.push_back(std::move(examples[i]));
  }
  return encoded;
}

}  // namespace longspan
