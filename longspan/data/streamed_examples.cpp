#include "longspan/data/streamed_examples.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

/// Rows of a window, as in LLaMA-Factory, and their bytes: fewer where no row is packed, so that
/// the first step begins soon.
constexpr size_t kWindowRows = 1000;
/// Rows of a window whose rows may have pictures: a picture of few bytes of text has a thousand
/// tokens, and its file is read.
constexpr size_t kPicturedWindowRows = 100;
constexpr int64_t kWindowBytes = int64_t{1} << 20, kPackedWindowBytes = int64_t{4} << 20;
constexpr int64_t kBytesPerTokenOfWindow = 64;  // about 16 packed rows of cutoff_len tokens

int64_t most_bytes_of_window(const DataSettings& config, const Stage& stage) {
  if (!config.neat_packing && !packs(config, stage)) return kWindowBytes;
  return std::max(kPackedWindowBytes,
                  kBytesPerTokenOfWindow * std::min(config.cutoff_len, INT64_MAX >> 8));
}

}  // namespace

std::string StreamPlace::text() const { return fmt::format("{} {} {}", epoch, row, example); }

StreamPlace StreamPlace::from(const std::string& text) {
  StreamPlace place;
  std::istringstream words(text);
  words >> place.epoch >> place.row >> place.example;
  if (!words || !words.eof() || std::min({place.epoch, place.row, place.example}) < 0) {
    throw UserError(
        "The checkpoint has no place in a stream of rows. Name another checkpoint in "
        "resume_from_checkpoint, or begin anew in another output_dir.");
  }
  return place;
}

/// Reads and encodes in the thread.
class StreamedExamples::Encoder {
 public:
  Encoder(const StreamJob& job, HandedOver<Window>& windows)
      : job_(job),
        windows_(windows),
        entries_(streamed_datasets(job.config, job.stage)),
        reader_(entries_),
        held_out_(held_out_rows(job.config, entries_, job.seed, job.shuffles,
                                [this] { windows_.require_wanted(); })
                      .names),
        most_rows_(job.pictures != nullptr ? kPicturedWindowRows : kWindowRows),
        most_bytes_(most_bytes_of_window(job.config, job.stage)),
        swaps_answers_(job.stage.rows == RowKind::kUnpairedPreference),
        pictures_(picture_rows_of(job.config, job.stage, job.pictures)),
        encoding_{job_.config,     job_.stage, job_.tokenizer, job_.template_time,
                  job_.vocab_size, bad_,       chats_} {
    encoding_.keeps_short_block = true;
    encoding_.pictures = pictures_.get();
    encoding_.has_pictures = pictures_ != nullptr;
  }

  void run(const StreamPlace& from) {
    for (int64_t epoch = from.epoch;; ++epoch) {
      StreamedRows rows(job_.config, entries_, job_.seed, job_.shuffles, epoch,
                        [this] { windows_.require_wanted(); });
      const int64_t begin = epoch == from.epoch ? from.row : 0;
      for (int64_t row = 0; row < begin; ++row) {
        if (rows.next()) continue;
        throw UserError(fmt::format(
            "The data sets have {} now, and had more when the checkpoint was saved. Give the files "
            "as they were.",
            counted(row, "row")));
      }
      num_examples_ = 0;
      answer_before_.reset();
      is_resumed_ = begin > 0;
      for (int64_t row = begin; std::optional<int64_t> next = encode_window(rows, epoch, row);) {
        row = *next;
      }
      if (!first_report_) first_report_ = report(rows);
      const BadRows bad = std::exchange(bad_, {});
      const int64_t num_rows = std::exchange(num_rows_, 0);
      if (begin > 0) continue;
      if (num_examples_ == 0) {
        bad.settle(OnBadRow::kStop, "the data", num_rows);
        throw UserError(fmt::format("dataset {}: no row has text", job_.config.dataset));
      }
      if (mix_strategy_of(job_.config) != MixStrategy::kInterleaveUnder) reader_.finish();
    }
  }

 private:
  /// Hands a window over. Returns the number of the row after it; nullopt: there was no row.
  std::optional<int64_t> encode_window(StreamedRows& rows, int64_t epoch, const int64_t begin) {
    std::vector<Conversation> window;
    int64_t row = begin, num_bytes = 0;
    const size_t fewest = swaps_answers_ ? 2 : 1;
    while (window.size() < most_rows_ && (num_bytes < most_bytes_ || window.size() < fewest)) {
      windows_.require_wanted();
      const std::optional<FileRow> next = rows.next();
      if (!next) break;
      ++row;
      if (held_out_.contains({next->dataset, next->number})) continue;
      ++num_rows_;
      num_bytes += std::ssize(next->text);
      if (auto conversation = reader_.read(*next, bad_)) window.push_back(*std::move(conversation));
    }
    if (row == begin) return std::nullopt;
    if (have_pictures(window)) require_pictures_taken(job_.config, job_.pictures, window);
    EncodedExamples encoded = encoded_from(window);
    if (on_bad_row_of(job_.config) == OnBadRow::kStop) {
      bad_.settle(OnBadRow::kStop, "the rows so far", num_rows_);
    }
    add(encoded.cut);
    num_examples_ += std::ssize(encoded.examples);
    if (!encoded.examples.empty()) {
      windows_.put({.begin = {.epoch = epoch, .row = begin},
                    .examples = std::move(encoded.examples),
                    .report = report(rows)});
    }
    return row;
  }

  EncodedExamples encoded_from(const std::vector<Conversation>& window) {
    if (window.empty()) return {};
    if (!swaps_answers_) return job_.stage.encode(encoding_, window);
    // A row that is alone in its window gets the answer of the last example before the window. If
    // such a row begins a resumed run, its example was used before, so any answer serves.
    encoding_.other_answer = answer_before_ ? &*answer_before_ : nullptr;
    encoding_.own_answer_serves = std::exchange(is_resumed_, false);
    EncodedExamples encoded = job_.stage.encode(encoding_, window);
    // A row that was left out may have an answer that no example can have.
    if (!encoded.rows.empty()) answer_before_ = window[encoded.rows.back().row].messages.back();
    return encoded;
  }

  void add(const CutReport& part) {
    cut_.num_rows += part.num_rows;
    cut_.num_cut += part.num_cut;
    cut_.num_tokens += part.num_tokens;
    cut_.num_lost += part.num_lost;
    cut_.longest = std::max(cut_.longest, part.longest);
  }

  /// Returns the lines on the first epoch that this process reads: later epochs have the same rows.
  std::vector<std::string> report(const StreamedRows& rows) const {
    if (first_report_) return *first_report_;
    std::vector<std::string> lines(rows.notes().begin(), rows.notes().end());
    std::ranges::move(reader_.notes(), std::back_inserter(lines));
    const bool has_good = bad_.count() < num_rows_;
    for (const std::string& line :
         {cut_.text(job_.config.cutoff_len),
          has_good ? bad_.settle(OnBadRow::kSkip, "the rows so far", num_rows_) : ""}) {
      if (!line.empty()) lines.push_back(line);
    }
    std::ranges::move(chats_.notes(), std::back_inserter(lines));
    return lines;
  }

  const StreamJob& job_;
  HandedOver<Window>& windows_;
  std::vector<DatasetEntry> entries_;
  FileRowReader reader_;
  std::set<RowName> held_out_;
  size_t most_rows_;
  int64_t most_bytes_;
  bool swaps_answers_;  // an example has the answer of another row
  std::optional<Message> answer_before_;
  bool is_resumed_ = false;  // the next window is the first one after a resume
  std::unique_ptr<PictureRows> pictures_;
  BadRows bad_;
  ChatReport chats_;
  Encoding encoding_;
  CutReport cut_;
  int64_t num_rows_ = 0, num_examples_ = 0;  // of the epoch so far
  std::optional<std::vector<std::string>> first_report_;
};

StreamedExamples::StreamedExamples(const StreamJob& job, const StreamPlace& from)
    : skipped_(from.example) {
  windows_.start([this, &job, from] { Encoder(job, windows_).run(from); });
}

StreamedExamples::Drawn StreamedExamples::next() {
  if (at_ == std::ssize(window_.examples)) {
    window_ = *windows_.next();  // the thread ends by an exception alone
    at_ = std::exchange(skipped_, 0);
    if (at_ > std::ssize(window_.examples)) {
      throw UserError(
          "The data sets give other examples than when the checkpoint was saved. Give the files as "
          "they were.");
    }
    if (at_ == std::ssize(window_.examples)) return next();
  }
  Drawn drawn{.example = std::move(window_.examples[at_]), .after = window_.begin};
  drawn.after.example = ++at_;
  return drawn;
}

}  // namespace longspan
