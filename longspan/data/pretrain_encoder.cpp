// pt: plain text, with pictures where its tags stand.
#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/data/parallel_rows.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

namespace {

Example text_example(std::vector<int32_t> ids) {
  Sample sample{.input_ids = ids, .labels = std::move(ids)};
  return single(std::move(sample));
}

/// Concatenates all texts and cuts them into blocks of equal length. Drops an incomplete last block
/// unless it is the only one, or keeps it in `rest` for the next part of the texts. LLaMA-Factory
/// drops one after every 1000 rows. `keeps_short_block`: drops none.
EncodedExamples cut_into_blocks(const std::vector<std::vector<int32_t>>& texts,
                                std::optional<int32_t> bos, int64_t row_length, BlockRest* rest,
                                bool keeps_short_block) {
  EncodedExamples encoded;
  PackingReport& report = encoded.packing.emplace();
  report.row_length = row_length;
  report.rows_before = std::ssize(texts);
  std::vector<int32_t> all;
  if (rest != nullptr) std::swap(all, rest->tokens);
  for (int64_t i = 0; i < std::ssize(texts); ++i) {
    const std::vector<int32_t>& ids = texts[i];
    const int64_t length = std::ssize(ids);
    all.insert(all.end(), ids.begin(), ids.end());
    report.tokens_before += std::min(length, row_length);
    encoded.rows.push_back({i, {length}, length, length});
  }
  const int64_t size = std::ssize(all);
  const bool may_be_only = rest == nullptr || (rest->is_last && rest->num_blocks == 0);
  const int64_t length = may_be_only ? std::min(row_length, size) : row_length;
  for (int64_t begin = 0, end = 0; begin < size; begin = end) {
    end = std::min(begin + length, size);
    if (end - begin < length && (!keeps_short_block || end - begin < 2)) break;
    std::vector<int32_t> block(all.begin() + begin, all.begin() + end);
    report.tokens_after = end;
    if (bos) block[0] = *bos;  // replaces a token of text, as in LLaMA-Factory
    encoded.examples.push_back(text_example(std::move(block)));
  }
  report.rows_after = std::ssize(encoded.examples);
  if (rest != nullptr) rest->num_blocks += report.rows_after;
  if (rest != nullptr && !rest->is_last) {
    rest->tokens.assign(all.begin() + report.tokens_after, all.end());
  } else {
    report.num_dropped = size - report.tokens_after;
  }
  return encoded;
}

/// One document for each text: blocks would cut pictures.
EncodedExamples encode_texts_with_pictures(const Encoding& encoding,
                                           const std::vector<Conversation>& rows,
                                           const std::string& bos, const std::string& end) {
  const DataSettings& config = encoding.config;
  if (packs(config, encoding.stage)) {
    throw UserError(
        fmt::format("{}: packing cuts the texts of stage {} into blocks, which would cut pictures. "
                    "Set packing: false.",
                    rows.front().source, encoding.stage.name));
  }
  std::vector<Sample> samples(rows.size());
  std::vector<int64_t> lengths(rows.size());
  const auto encode = [&](int64_t i) {
    PlacedPictures row;
    const Conversation text = encoding.pictures->prepared(rows[i], row);
    std::vector<Turn> turns(1);
    Turn& turn = turns.front();
    turn.source = encoding.tokenizer.encode(bos + text.messages.front().content + end);
    encoding.require_known(turn.source, rows[i].source);
    encoding.pictures->expand(turns, row, rows[i].source);
    lengths[i] = std::ssize(turn.source);
    cut_source(turn, std::min(lengths[i], config.cutoff_len));
    samples[i] = {.input_ids = turn.source, .labels = turn.source};
    set_features(samples[i], turns);
    encoding.attach_pictures(samples[i], row, rows[i].source);
  };
  EncodedExamples encoded;
  for (const int64_t i : encoding.good_rows(std::ssize(rows), encode)) {
    const int64_t kept = std::ssize(samples[i].input_ids);
    encoded.cut.add_row(lengths[i], kept, lengths[i]);
    if (kept <= 1) continue;
    encoded.rows.push_back({i, {lengths[i]}, kept, num_trained(samples[i])});
    encoded.examples.push_back(single(std::move(samples[i])));
  }
  return encoded;
}

}  // namespace

EncodedExamples encode_texts(const Encoding& encoding, const std::vector<Conversation>& rows) {
  const DataSettings& config = encoding.config;
  const bool packs = longspan::packs(config, encoding.stage);
  const std::string end = end_of_text(config.chat_template, encoding.tokenizer);
  // Follows tokenizer_config.json. transformers 5 ignores add_bos_token where there is a
  // tokenizer.json; LLaMA-Factory with transformers 4 does not.
  std::string bos;
  if (encoding.tokenizer.adds_bos_token()) bos = encoding.tokenizer.bos_token().value_or("");
  if (encoding.has_pictures) return encode_texts_with_pictures(encoding, rows, bos, end);
  std::vector<std::vector<int32_t>> texts(rows.size());
  for_each_row_in_parallel(config, std::ssize(rows), [&](int64_t i) {
    const std::string text = rows[i].messages.front().content + end;
    texts[i] = encoding.tokenizer.encode(packs ? text : bos + text);
    encoding.require_known(texts[i], rows[i].source);
  });
  if (packs) {
    const auto bos_id = bos.empty() ? std::nullopt : encoding.tokenizer.id_of(bos);
    return cut_into_blocks(texts, bos_id, config.cutoff_len, encoding.rest,
                           encoding.keeps_short_block);
  }
  EncodedExamples encoded;
  for (int64_t i = 0; i < std::ssize(texts); ++i) {
    std::vector<int32_t>& ids = texts[i];
    const int64_t length = std::ssize(ids), kept = std::min(length, config.cutoff_len);
    ids.resize(kept);
    encoded.cut.add_row(length, kept, length);
    // An empty text (a blank line of a text file) is only its end token, which no token predicts.
    if (kept <= 1) continue;
    encoded.rows.push_back({i, {length}, kept, kept - 1});
    encoded.examples.push_back(text_example(std::move(ids)));
  }
  return encoded;
}

}  // namespace longspan
