#include "longspan/data/example_encoder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "longspan/base/user_error.h"
#include "longspan/data/picture_rows.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/data/template_format.h"
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

std::string_view described(VideoForm form) {
  switch (form) {
    case VideoForm::kNone:
    case VideoForm::kNever:
      return "not at all";
    case VideoForm::kWhole:
      return "in one piece";
    case VideoForm::kFrames:
      return "frame by frame";
  }
  throw std::logic_error("no such form of videos");
}

std::string templates_with_pictures() {
  std::vector<std::string_view> names;
  for (const Format& format : template_formats()) {
    if (format.videos != VideoForm::kNone) names.push_back(format.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

void require_pictures_taken(const DataSettings& config, const PictureEncoding* pictures,
                            const std::vector<Conversation>& rows) {
  const auto fail = [&](const std::string& problem) {
    const auto row =
        std::ranges::find_if(rows, [](const Conversation& one) { return has_pictures(one); });
    throw UserError(fmt::format("{}: the row has pictures, and {}", row->source, problem));
  };
  if (pictures == nullptr) {
    fail(
        "the model takes none. Train a model with a vision tower, or take images and videos out "
        "of dataset_info.json and their tags out of the texts.");
  }
  const VideoForm form = video_form(config.chat_template, *pictures);
  if (form == VideoForm::kNone) {
    fail(
        fmt::format("template: {} takes none. Name one that does ({}), or leave template out to "
                    "use the model's own chat_template.",
                    config.chat_template, templates_with_pictures()));
  }
  const VideoForm wanted = pictures->videos();
  if (form == wanted) return;
  const bool has_videos = std::ranges::any_of(rows, [](const Conversation& row) {
    return std::ranges::any_of(row.messages, [](const Message& message) {
      return std::ranges::any_of(message.pictures, &MessagePicture::is_video);
    });
  });
  if (!has_videos) return;
  throw UserError(fmt::format(
      "template: {} writes a video {}, and the model takes it {}. Name a template of the model's "
      "family, or leave template out to use the model's own chat_template.",
      config.chat_template, described(form), described(wanted)));
}

std::unique_ptr<PictureRows> picture_rows_of(const DataSettings& config, const Stage& stage,
                                             const PictureEncoding* pictures) {
  if (pictures == nullptr) return nullptr;
  const VideoForm videos = video_form(config.chat_template, *pictures);
  if (videos == VideoForm::kNone) return nullptr;
  return std::make_unique<PictureRows>(
      *pictures, videos,
      /*writes_tags=*/!config.chat_template.empty() || parts_of(stage.rows).text);
}

double PackingReport::empty_before() const {
  return empty_share(tokens_before, rows_before, row_length);
}

double PackingReport::empty_after() const {
  return empty_share(tokens_after, rows_after, row_length);
}

std::string PackingReport::text() const {
  return fmt::format(
      "Packing: {} of up to {} out of {}; {:.1f} % empty, without packing {:.1f} %{}",
      counted(rows_after, "row"), counted(row_length, "token"), rows_before, 100 * empty_after(),
      100 * empty_before(),
      num_dropped > 0 ? fmt::format("; the last {} of the text are left out, too few for a row",
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

void CutReport::add(const CutReport& part) {
  num_rows += part.num_rows;
  num_cut += part.num_cut;
  num_tokens += part.num_tokens;
  num_lost += part.num_lost;
  longest = std::max(longest, part.longest);
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

EncodedExamples encode_examples(const RowEncoding& of, const std::vector<Conversation>& rows) {
  if (rows.empty()) return {};
  const DataSettings& config = of.config;
  const PictureEncoding* pictures = of.pictures;
  BadRows bad;
  ChatReport chats;
  Encoding encoding{config, of.stage, of.tokenizer, of.template_time, of.vocab_size, bad, chats};
  encoding.max_positions = of.max_positions;
  encoding.has_pictures = have_pictures(rows);
  if (encoding.has_pictures) require_pictures_taken(config, pictures, rows);
  if (pictures != nullptr && pictures->in_every_sample) encoding.has_pictures = true;
  const std::unique_ptr<PictureRows> picture_rows = picture_rows_of(config, of.stage, pictures);
  encoding.pictures = picture_rows.get();
  std::vector<UnusableRow> unusable;
  encoding.unusable = &unusable;
  EncodedExamples encoded = of.stage.encode(encoding, rows);
  encoded.unusable = std::move(unusable);
  encoded.chats = chats.notes();
  const OnBadRow on_bad_row = on_bad_row_of(config);
  const bool is_none = encoded.examples.empty() && of.may_be_empty;
  if (!is_none || on_bad_row == OnBadRow::kStop) {
    encoded.left_out = bad.settle(on_bad_row, "the data", std::ssize(rows));
  }
  if (encoded.examples.empty() && !of.may_be_empty) {
    throw UserError(fmt::format("{}: there is no text in this row and the {} after it",
                                rows.front().source, rows.size() - 1));
  }
  return encoded;
}

}  // namespace longspan
