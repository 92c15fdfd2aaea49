// Encodes the rows of a run in a thread, while the run trains on those that are encoded.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "longspan/data/early_file.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/example_file.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/files/checksum.h"

namespace longspan {

/// Returns why the number of training rows is not known before all rows are encoded, or why a row
/// cannot be encoded by itself, as a clause; "": neither.
std::string why_rows_wait(const DataSettings& config, const Stage& stage);

struct EarlyJob {
  const DataSettings& config;
  const Stage& stage;
  const Tokenizer& tokenizer;
  const LocalTime& template_time;
  int64_t vocab_size;
  int64_t seed;
  bool shuffles;
  int64_t num_trained = 0;  // rows of training before the first step of this process
};

/// Reads all rows, which gives their number, and then encodes them. The examples are those of
/// encode_examples(), training before evaluation: a row that would be left out ends the run, unless
/// the reading already finds it (pt: short texts, and texts without a visible character). The
/// thread encodes in the order of the epoch, from the first row that is not trained yet; rows that
/// a caller waits for come first.
class EarlyEncoder {
 public:
  /// Bytes of a text that may be a single token, with any characters or as a single word.
  static constexpr size_t kShortText = 32, kShortWord = 256;

  /// Reads the rows into a temporary file. why_rows_wait() must be empty. `seen` gets the rows of
  /// `dataset` in parts, then those of `eval_dataset`. All references of the job must outlive this
  /// object. Throws UserError.
  EarlyEncoder(const EarlyJob& job, std::vector<std::string>& notes,
               const std::function<void(const std::vector<Conversation>&)>& seen);
  /// Ends the thread.
  ~EarlyEncoder();
  EarlyEncoder(const EarlyEncoder&) = delete;
  EarlyEncoder& operator=(const EarlyEncoder&) = delete;

  int64_t num_train() const { return num_train_; }
  int64_t num_rows() const { return std::ssize(texts_of_rows_); }
  /// Returns row `row` before its encoding. Rows of training are before those of evaluation.
  Conversation text(int64_t row) const;
  /// Whether another encoder could give these rows: none is left, or stage kto has one.
  bool has_too_few() const;
  /// Hashes of the texts without their places: of `dataset` with the number of training rows, and
  /// of all texts.
  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& eval_fingerprint() const { return eval_fingerprint_; }

  /// Starts the thread, which calls `finish` after the last row, and destroys it before
  /// has_ended(), also after an error. `note`: record num_rows() of the file.
  void start(std::string_view note, std::function<void()> finish);
  /// The file of the examples and the note. Exists after start().
  const EarlyFileWriter& file() const { return *file_; }
  /// Waits until the rows are encoded. Returns false if `stops` asked to stop. Rethrows the
  /// exception of the thread.
  bool wait_for(const std::vector<int64_t>& rows, const std::function<bool()>& stops = {});
  /// The same for all rows and `finish`.
  bool wait_for_end(const std::function<bool()>& stops = {});
  bool has_ended() const;

  /// For `finish`: an encoded row, and the reports without examples. Ends `finish` if this object
  /// is being destroyed.
  Example example(int64_t row) const;
  EncodedExamples train_report() const { return report_of(train_); }
  EncodedExamples eval_report() const { return report_of(eval_); }

 private:
  struct Unwanted {};
  /// The reports of a set.
  struct Part {
    int64_t num_encoded = 0;
    CutReport cut;
    BadRows bad;
    ChatReport chats;
  };
  static EncodedExamples report_of(const Part& part);

  Encoding encoding_of(Part& part) const;
  void read(const std::vector<Conversation>& rows);
  /// Returns whether each row becomes an example.
  std::vector<bool> kept_rows(const std::vector<Conversation>& rows);
  void number_rows(int64_t num_read_train);
  void work();
  /// Returns the next rows of one set; empty: none is left.
  std::vector<int64_t> next_rows();
  void encode(const std::vector<int64_t>& rows);
  bool wait(const std::function<bool()>& is_there, const std::function<bool()>& stops);
  void require_wanted() const;

  EarlyJob job_;
  std::unique_ptr<ExampleFileWriter> read_texts_;
  std::unique_ptr<ExampleFile> texts_;
  std::vector<int64_t> read_of_texts_;                   // of each text: its number among all read
  std::vector<std::pair<int64_t, CutReport>> left_out_;  // number among all read rows
  int64_t num_read_ = 0, num_train_ = 0;
  Xxh64 hash_;
  std::string fingerprint_, eval_fingerprint_;
  std::vector<int64_t> texts_of_rows_;  // of each row: its text
  std::vector<int64_t> order_;          // of rows
  size_t next_in_order_ = 0;
  Part train_, eval_;
  std::unique_ptr<EarlyFileWriter> file_;
  std::unique_ptr<EarlyFile> encoded_;
  std::vector<bool> is_taken_;  // for encoding
  std::function<void()> finish_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> is_there_;
  std::deque<int64_t> wanted_;
  bool has_ended_ = false, is_unwanted_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace longspan
