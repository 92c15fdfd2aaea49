#include "longspan/data/streamed_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/data/known_columns.h"
#include "longspan/data/mixed_order.h"
#include "longspan/data/permutation.h"
#include "longspan/data/row_file.h"
#include "longspan/input/json_text.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

/// Rows and bytes that a thread hands over together.
constexpr size_t kPartRows = 1024, kPartBytes = size_t{1} << 20;
constexpr int64_t kMostWholeBytes = int64_t{64} << 20;
int64_t bytes_of(const FileRow& row) {
  return static_cast<int64_t>(sizeof(FileRow) + row.text.capacity() + row.place.capacity() +
                              row.problem.capacity() + row.note.capacity());
}

/// Permutations of an epoch, one for each refill of the buffer.
constexpr int64_t kMostRefills = int64_t{1} << 40;

}  // namespace

std::vector<DatasetEntry> streamed_datasets(const DataSettings& config, const Stage& stage) {
  std::vector<DatasetEntry> entries =
      read_dataset_info(config.dataset_dir, config.dataset, std::string(stage.name));
  for (const DatasetEntry& entry : entries) {
    if (!entry.num_samples) continue;
    throw UserError(fmt::format(
        "dataset {}: {} gives num_samples, and streaming: true takes none; remove one of them",
        entry.name, entry.info_file));
  }
  return entries;
}

ReadAheadRows::ReadAheadRows(const DatasetEntry& entry, int32_t dataset)
    : entry_(entry), dataset_(dataset) {
  parts_.start([this] { read(); });
}

void ReadAheadRows::read() {
  std::vector<FileRow> part;
  size_t num_bytes = 0;
  FileRow next{.dataset = dataset_};
  const RowReader columns(entry_);
  const auto add = [&](FileRow row) {
    num_bytes += row.text.size();
    part.push_back(std::move(row));
    if (num_bytes < kPartBytes && part.size() < kPartRows) return;
    num_bytes = 0;
    parts_.put(std::exchange(part, {}));
  };
  const auto add_row = [&](FileRow row) {
    add(std::move(row));
    ++next.number;
    return true;
  };
  const RowTaker taker{
      .take =
          [&](const nlohmann::ordered_json& json, const std::string& place) {
            FileRow row = next;
            row.text = json.dump();
            row.place = place;
            return add_row(std::move(row));
          },
      .refuse =
          [&](const std::string& reason) {
            FileRow row = next;
            row.problem = reason;
            return add_row(std::move(row));
          },
      .note =
          [&](const std::string& sentence) {
            add({.note = fmt::format("dataset {}: {}", entry_.name, sentence)});
          },
      .leave_out = [&](const LeftOutColumn& column,
                       const std::string& path) { columns.require_read(column, path); },
      .take_whole_line =
          [&](std::string& line, int64_t number) {
            FileRow row = next;
            row.text = std::exchange(line, {});
            row.line = number;
            return add_row(std::move(row));
          },
      .most_whole_bytes = kMostWholeBytes};
  for (size_t i = 0; i < entry_.files.size(); ++i) {
    next.file = static_cast<int32_t>(i);
    for_each_row(entry_.files[i], unwraps_data(entry_), taker);
  }
  if (next.number == 0) {
    throw UserError(
        fmt::format("dataset {}: there are no rows in {}", entry_.name, entry_.files.front()));
  }
  if (!part.empty()) parts_.put(std::move(part));
}

std::optional<FileRow> ReadAheadRows::next() {
  if (at_ == part_.size()) {
    std::optional<std::vector<FileRow>> part = parts_.next();
    if (!part) return std::nullopt;
    part_ = *std::move(part);
    at_ = 0;
  }
  return std::move(part_[at_++]);
}

StreamedRows::StreamedRows(const DataSettings& config, const std::vector<DatasetEntry>& entries,
                           int64_t seed, bool shuffles, int64_t epoch,
                           std::function<void()> require_wanted)
    : entries_(entries),
      seed_(seed),
      buffer_size_(shuffles ? config.buffer_size : 1),
      epoch_(epoch),
      most_bytes_(machine_memory().bytes / 2),
      require_wanted_(std::move(require_wanted)),
      readers_(entries.size()),
      ahead_(entries.size()),
      is_exhausted_(entries.size()) {
  const MixStrategy strategy = mix_strategy_of(config);
  if (strategy == MixStrategy::kConcat || entries.size() < 2) return;
  is_one_by_one_ = false;
  ends_with_first_ = strategy == MixStrategy::kInterleaveUnder;
  takes_once_ = strategy == MixStrategy::kInterleaveOnce;
  order_ =
      order_of_sets(entries.size(), interleave_probs_of(config, std::ssize(entries)), seed + epoch);
}

std::optional<FileRow> StreamedRows::next_of(size_t dataset) {
  std::unique_ptr<ReadAheadRows>& reader = readers_[dataset];
  if (!reader) {
    reader = std::make_unique<ReadAheadRows>(entries_[dataset], static_cast<int32_t>(dataset));
  }
  while (std::optional<FileRow> row = reader->next()) {
    if (row->note.empty()) return row;
    notes_.insert(row->note);
  }
  reader.reset();
  return std::nullopt;
}

std::optional<FileRow> StreamedRows::next_mixed() {
  if (is_one_by_one_) {
    for (; current_ < entries_.size(); ++current_) {
      if (std::optional<FileRow> row = next_of(current_)) return row;
    }
    return std::nullopt;
  }
  for (int64_t draws = 0;; ++draws) {
    require_wanted_();
    require_few_draws(draws);
    const auto count = std::ranges::count(is_exhausted_, true);
    if (ends_with_first_ ? count > 0 : count == std::ssize(is_exhausted_)) return std::nullopt;
    const size_t from = order_();
    if (takes_once_ && is_exhausted_[from]) continue;
    std::optional<FileRow>& ahead = ahead_[from];
    if (!ahead) ahead = next_of(from);
    std::optional<FileRow> row = std::exchange(ahead, next_of(from));
    if (!ahead) is_exhausted_[from] = true;  // next_of() begins again
    return row;
  }
}

void StreamedRows::refill() {
  drawn_.clear();
  num_taken_ = 0;
  int64_t num_bytes = 0;
  for (const FileRow& row : buffer_) num_bytes += bytes_of(row);
  while (std::ssize(buffer_) < buffer_size_) {
    require_wanted_();
    std::optional<FileRow> row = next_mixed();
    if (!row) break;
    num_bytes += bytes_of(*row);
    buffer_.push_back(*std::move(row));
    if (num_bytes < most_bytes_) continue;
    throw UserError(fmt::format(
        "buffer_size: {} rows have {}, and a buffer of {} would take more than half of the memory; "
        "lower buffer_size",
        counted(std::ssize(buffer_), "row"), name_bytes(num_bytes), counted(buffer_size_, "row")));
  }
  const int64_t size = std::ssize(buffer_);
  const int64_t num_kept = size == buffer_size_ ? size / 2 : 0;
  const std::vector<int64_t> order =
      seeded_permutation(size, seed_, epoch_ * kMostRefills + num_refills_++);
  std::vector<FileRow> kept;
  for (int64_t i = 0; i < size; ++i) {
    (i < size - num_kept ? drawn_ : kept).push_back(std::move(buffer_[order[i]]));
  }
  buffer_ = std::move(kept);
}

std::optional<FileRow> StreamedRows::next() {
  if (num_taken_ == drawn_.size()) refill();
  if (drawn_.empty()) return std::nullopt;
  return std::move(drawn_[num_taken_++]);
}

FileRowReader::FileRowReader(const std::vector<DatasetEntry>& entries) : entries_(entries) {
  for (const DatasetEntry& entry : entries) readers_.emplace_back(entry);
}

std::optional<Conversation> FileRowReader::read(const FileRow& row, BadRows& bad) {
  const DatasetEntry& entry = entries_[row.dataset];
  std::optional<Conversation> conversation;
  const auto refuse = [&](const std::string& reason) {
    bad.add(fmt::format("dataset {}: {}", entry.name, reason));
    return true;
  };
  const auto take = [&](const nlohmann::ordered_json& json, const std::string& place) {
    try {
      RowReader& reader = readers_[row.dataset];
      conversation = entry.joined == Joined::kNothing
                         ? reader.read(json, place)
                         : reader.read(joined_row(json, entry.joined, place), place);
      conversation->dataset = row.dataset;
    } catch (const RowError& error) {
      refuse(error.what());
    }
    return true;
  };
  if (!row.problem.empty()) {
    refuse(row.problem);
  } else if (row.line > 0) {
    take_line(row.text, entry.files[row.file], row.line,
              {.take = take, .refuse = refuse, .note = {}});
  } else {
    take(parse_ordered_json(row.text, row.place), row.place);
  }
  return conversation;
}

void FileRowReader::finish() const {
  for (const RowReader& reader : readers_) reader.finish();
}

std::vector<std::string> FileRowReader::notes() const {
  std::vector<std::string> notes;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const std::string keys = readers_[i].unread().text();
    if (!keys.empty()) notes.push_back(fmt::format("dataset {}: {}", entries_[i].name, keys));
  }
  return notes;
}

HeldOutRows held_out_rows(const DataSettings& config, const std::vector<DatasetEntry>& entries,
                          int64_t seed, bool shuffles,
                          const std::function<void()>& require_wanted) {
  HeldOutRows held_out;
  const auto count = static_cast<int64_t>(config.val_size);
  if (count == 0) return held_out;
  StreamedRows rows(config, entries, seed, shuffles, /*epoch=*/0, require_wanted);
  FileRowReader reader(entries);
  BadRows bad;
  for (int64_t i = 0; i < count; ++i) {
    const std::optional<FileRow> row = rows.next();
    if (!row) break;
    held_out.names.emplace(row->dataset, row->number);
    if (auto conversation = reader.read(*row, bad)) {
      held_out.rows.push_back(*std::move(conversation));
    }
  }
  if (!rows.next()) {
    throw UserError(
        fmt::format("val_size: {} would leave no row of dataset {} to train on; lower val_size",
                    count, config.dataset));
  }
  held_out.note = bad.settle(on_bad_row_of(config), "the rows of val_size", count);
  return held_out;
}

std::vector<Conversation> first_rows(const DataSettings& config,
                                     const std::vector<DatasetEntry>& entries, int64_t most,
                                     std::vector<std::string>& notes) {
  std::vector<Conversation> rows;
  FileRowReader reader(entries);
  BadRows bad;
  int64_t num_rows = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const std::string& note : entries[i].notes) {
      notes.push_back(fmt::format("dataset {}: {}", entries[i].name, note));
    }
    ReadAheadRows file_rows(entries[i], static_cast<int32_t>(i));
    for (int64_t count = 0; count < most; ++count) {
      const std::optional<FileRow> row = file_rows.next();
      if (!row || !row->note.empty()) break;  // a note follows the rows of a file
      ++num_rows;
      if (auto conversation = reader.read(*row, bad)) rows.push_back(*std::move(conversation));
    }
  }
  if (on_bad_row_of(config) == OnBadRow::kStop) {
    bad.settle(OnBadRow::kStop, "the first rows", num_rows);
  }
  std::ranges::move(reader.notes(), std::back_inserter(notes));
  return rows;
}

}  // namespace longspan
