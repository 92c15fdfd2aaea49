// The rows of a run's data sets as a stream: mixed, and shuffled within a buffer. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/bad_rows.h"
#include "longspan/data/conversation.h"
#include "longspan/data/conversation_format.h"
#include "longspan/data/dataset_info.h"
#include "longspan/data/handed_over.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// A row as its file has it.
struct FileRow {
  int32_t dataset = 0;    // index among the data sets
  int32_t file = 0;       // of the data set
  int64_t number = 0;     // in the data set
  std::string text = {};  // JSON
  int64_t line = 0;       // of the file; 0: the row is no line, and `place` names it
  std::string place = {};
  std::string problem = {};  // the reason why the row cannot be used; else empty
  std::string note = {};     // not a row, but a sentence on the data set
};

/// Returns the data sets of `dataset`. Throws UserError, also for an entry that a stream cannot
/// have.
std::vector<DatasetEntry> streamed_datasets(const DataSettings& config, const Stage& stage);

/// The rows of one data set, in the order of its files. A thread reads ahead.
class ReadAheadRows {
 public:
  /// `entry` must outlive this object.
  ReadAheadRows(const DatasetEntry& entry, int32_t dataset);

  /// Returns the next row or note; nullopt after the last row. Throws UserError.
  std::optional<FileRow> next();

 private:
  void read();

  const DatasetEntry& entry_;
  int32_t dataset_;
  std::vector<FileRow> part_;
  size_t at_ = 0;
  HandedOver<std::vector<FileRow>> parts_;
};

/// The rows of an epoch. The order depends on nothing but the files, the keys, the seed and the
/// epoch. mix_strategy mixes the data sets as for an IterableDataset of Hugging Face. Then the rows
/// fill a buffer of buffer_size rows. Whenever the buffer is full, half of its rows are taken, in
/// random order; at the end, all of them are.
class StreamedRows {
 public:
  /// `shuffles`: otherwise the rows keep their order. `entries` must outlive this object.
  /// `require_wanted` is called at each row that is read, and may throw.
  StreamedRows(
      const DataSettings& config, const std::vector<DatasetEntry>& entries, int64_t seed,
      bool shuffles, int64_t epoch, std::function<void()> require_wanted = [] {});

  /// Returns the next row, without its note; nullopt at the end. Throws UserError: a file that
  /// cannot be read, a data set without rows, a buffer that does not fit into memory, a data set
  /// that is nearly never drawn.
  std::optional<FileRow> next();
  /// Returns notes on the data sets so far.
  const std::set<std::string>& notes() const { return notes_; }

 private:
  std::optional<FileRow> next_of(size_t dataset);
  std::optional<FileRow> next_mixed();
  void refill();

  const std::vector<DatasetEntry>& entries_;
  int64_t seed_, buffer_size_, epoch_, most_bytes_;  // most_bytes_: of the buffer
  std::function<void()> require_wanted_;
  bool is_one_by_one_ = true, ends_with_first_ = false, takes_once_ = false;
  std::function<size_t()> order_;
  size_t current_ = 0;                                   // one by one: the data set
  std::vector<std::unique_ptr<ReadAheadRows>> readers_;  // null: not begun
  std::vector<std::optional<FileRow>> ahead_;            // the next row of each, to know the last
  std::vector<bool> is_exhausted_;
  std::vector<FileRow> buffer_, drawn_;
  size_t num_taken_ = 0;  // of `drawn_`
  int64_t num_refills_ = 0;
  std::set<std::string> notes_;
};

/// Turns rows of files into conversations.
class FileRowReader {
 public:
  /// `entries` must outlive this object.
  explicit FileRowReader(const std::vector<DatasetEntry>& entries);

  /// Returns the conversation; nullopt: the row was added to `bad`. Throws UserError.
  std::optional<Conversation> read(const FileRow& row, BadRows& bad);
  /// Must be called after an epoch that was read from its first row. Throws UserError if no row had
  /// a column that dataset_info.json names.
  void finish() const;
  /// Returns sentences on keys of the rows so far that no code reads.
  std::vector<std::string> notes() const;

 private:
  const std::vector<DatasetEntry>& entries_;
  std::vector<RowReader> readers_;
};

/// The rows that evaluate: the first `val_size` ones of the first epoch.
using RowName = std::pair<int32_t, int64_t>;  // data set, number in the data set
struct HeldOutRows {
  std::set<RowName> names;
  std::vector<Conversation> rows;
  std::string note = {};  // on the bad ones, which on_bad_row: skip leaves out
};
/// Throws UserError: there are no rows left to train on; bad rows.
HeldOutRows held_out_rows(
    const DataSettings& config, const std::vector<DatasetEntry>& entries, int64_t seed,
    bool shuffles, const std::function<void()>& require_wanted = [] {});

/// Returns the first `most` rows of each data set, without the bad ones, and adds notes on them.
/// Throws UserError: bad rows, unless on_bad_row skips them; a data set without rows.
std::vector<Conversation> first_rows(const DataSettings& config,
                                     const std::vector<DatasetEntry>& entries, int64_t most,
                                     std::vector<std::string>& notes);

}  // namespace longspan
