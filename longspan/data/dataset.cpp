#include "longspan/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/conversation_format.h"
#include "longspan/data/dataset_info.h"
#include "longspan/data/handed_over.h"
#include "longspan/data/known_columns.h"
#include "longspan/data/mixed_order.h"
#include "longspan/data/permutation.h"
#include "longspan/data/row_file.h"
#include "longspan/input/numbers.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

// Streams of the seed, distinct from those of the epochs (0, 1, ...).
constexpr int64_t kSplitStream = -1, kSampleStream = -2;

/// Memory of the rows that are read and encoded together. Enough to make starting threads cheap.
constexpr double kPartBytes = 4 << 20;

double bytes_of(const Message& message) {
  size_t bytes = sizeof(Message) + message.content.size() + message.thoughts.size() +
                 message.name.size() + message.call_id.size();
  for (const MessagePicture& picture : message.pictures) {
    bytes += sizeof(MessagePicture);
    for (const std::string& file : picture.files) bytes += sizeof(file) + file.size();
  }
  for (const FunctionCall& call : message.calls) {
    bytes += sizeof(FunctionCall) + call.name.size() + call.arguments.size() + call.id.size();
  }
  return static_cast<double>(bytes);
}

double bytes_of(const Conversation& row) {
  double bytes = static_cast<double>(sizeof(Conversation) + row.source.size() + row.tools.size() +
                                     row.documents.size());
  for (const Message& message : row.messages) bytes += bytes_of(message);
  return row.rejected ? bytes + bytes_of(*row.rejected) : bytes;
}

/// Throws the sentence of `refusal`, which gets the needed memory, where `size` rows do not fit
/// into memory.
void require_room(const std::vector<Conversation>& rows, int64_t size,
                  const std::function<std::string(const std::string&)>& refusal) {
  const int64_t num_rows = std::ssize(rows);
  if (size <= num_rows) return;
  double num_bytes = 0;
  for (const Conversation& row : rows) num_bytes += bytes_of(row);
  num_bytes *= static_cast<double>(size) / static_cast<double>(num_rows);
  const MachineMemory machine = machine_memory();
  if (num_bytes <= static_cast<double>(machine.bytes)) return;
  throw UserError(refusal(fmt::format("more memory than there is, {}", machine.text())));
}

/// Reads the rows of a data set in the order of its files. Calls `take` for each row.
ReadDataset read_rows(const DatasetEntry& entry, const DataSettings& config, int64_t most,
                      std::vector<std::string>& notes,
                      const std::function<void(Conversation)>& take_row) {
  RowReader reader(entry);
  BadRows bad;
  int64_t num_good = 0;
  const OnBadRow on_bad_row = on_bad_row_of(config);
  const bool skips = on_bad_row == OnBadRow::kSkip;
  const auto wants_more = [&] { return num_good + (skips ? 0 : bad.count()) < most; };
  const auto refuse = [&](const std::string& reason) {
    bad.add(reason);
    return wants_more();
  };
  const auto take = [&](const nlohmann::ordered_json& row, const std::string& place) {
    try {
      take_row(entry.joined == Joined::kNothing
                   ? reader.read(row, place)
                   : reader.read(joined_row(row, entry.joined, place), place));
      ++num_good;
    } catch (const RowError& error) {
      return refuse(error.what());
    }
    return wants_more();
  };
  const auto note = [&](const std::string& sentence) {
    notes.push_back(fmt::format("dataset {}: {}", entry.name, sentence));
  };
  for (const std::string& sentence : entry.notes) note(sentence);
  const auto leave_out = [&](const LeftOutColumn& column, const std::string& path) {
    reader.require_read(column, path);
  };
  for (const std::string& file : entry.files) {
    if (!wants_more()) break;
    for_each_row(file, unwraps_data(entry), {take, refuse, note, leave_out});
  }
  const int64_t num_rows = num_good + bad.count();
  if (num_rows == 0) {
    throw UserError(
        fmt::format("dataset {}: there are no rows in {}", entry.name, entry.files.front()));
  }
  const std::string left_out =
      bad.settle(on_bad_row, fmt::format("dataset {}", entry.name), num_rows);
  if (!left_out.empty()) notes.push_back(left_out);
  if (const std::string keys = reader.unread().text(); !keys.empty()) {
    notes.push_back(fmt::format("dataset {}: {}", entry.name, keys));
  }
  reader.finish();
  return {.name = entry.name, .num_rows = num_rows, .num_bad = bad.count()};
}

std::vector<Conversation> read_dataset(const DatasetEntry& entry, const DataSettings& config,
                                       int64_t seed, std::vector<std::string>& notes,
                                       ReadDataset& read) {
  std::vector<Conversation> rows;
  // A sample is drawn from all rows. Without one, reading stops at the last wanted row.
  const int64_t most = entry.num_samples ? INT64_MAX : config.max_samples.value_or(INT64_MAX);
  read = read_rows(entry, config, most, notes,
                   [&](Conversation row) { rows.push_back(std::move(row)); });
  if (entry.num_samples && !rows.empty()) {
    // Takes all rows in random order, repeatedly if needed. max_samples takes the first of them.
    const int64_t size = std::min(*entry.num_samples, config.max_samples.value_or(INT64_MAX));
    require_room(rows, size, [&](const std::string& needed) {
      return fmt::format(
          "dataset {}: num_samples {} of its {} would take {}; lower num_samples in {}, or set "
          "max_samples",
          entry.name, *entry.num_samples, counted(std::ssize(rows), "row"), needed,
          entry.info_file);
    });
    std::vector<Conversation> sample;
    for (int64_t round = 0; std::ssize(sample) < size; ++round) {
      for (int64_t i : seeded_permutation(std::ssize(rows), seed, kSampleStream - round)) {
        if (std::ssize(sample) < size) sample.push_back(rows[i]);
      }
    }
    rows = std::move(sample);
  }
  if (config.max_samples && std::ssize(rows) > *config.max_samples) {
    rows.resize(*config.max_samples);
  }
  return rows;
}

/// Moves the rows of val_size from train to eval.
void split_off_validation(const DataSettings& config, int64_t seed, RunRows& rows) {
  const int64_t size = std::ssize(rows.train);
  const std::vector<bool> is_eval = validation_rows(config, size, seed);
  RunRows parts;
  parts.notes = std::move(rows.notes);
  parts.datasets = std::move(rows.datasets);
  for (int64_t i = 0; i < size; ++i) {
    (is_eval[i] ? parts.eval : parts.train).push_back(std::move(rows.train[i]));
  }
  rows = std::move(parts);
}

}  // namespace

std::vector<bool> validation_rows(const DataSettings& config, int64_t size, int64_t seed) {
  const int64_t eval_size =
      whole_number(config.val_size < 1 ? std::ceil(config.val_size * static_cast<double>(size))
                                       : config.val_size,
                   "val_size", 0);
  if (eval_size >= size) {
    throw UserError(fmt::format("val_size: {} of {} in dataset {} would leave none to train on",
                                eval_size, counted(size, "row"), config.dataset));
  }
  const auto order = seeded_permutation(size, seed, kSplitStream);
  std::vector<bool> is_eval(size, false);
  for (int64_t i = 0; i < eval_size; ++i) is_eval[order[i]] = true;
  return is_eval;
}

bool keep_file_order(const DataSettings& config, const Stage& stage,
                     const std::string& dataset_names) {
  const std::vector<DatasetEntry> entries =
      read_dataset_info(config.dataset_dir, dataset_names, std::string(stage.name));
  return (entries.size() < 2 || mix_strategy_of(config) == MixStrategy::kConcat) &&
         std::ranges::none_of(
             entries, [](const DatasetEntry& entry) { return entry.num_samples.has_value(); });
}

bool reads_in_parts(const DataSettings& config, const Stage& stage,
                    const std::string& dataset_names) {
  return config.val_size == 0 && keep_file_order(config, stage, dataset_names);
}

void read_in_parts(const DataSettings& config, const Stage& stage, const std::string& dataset_names,
                   std::vector<std::string>& notes, const ConversationTaker& take) {
  HandedOver<std::vector<Conversation>> parts;
  const auto read = [&] {
    std::vector<Conversation> part;
    double num_bytes = 0;
    const auto hand_over = [&] {
      num_bytes = 0;
      parts.put(std::exchange(part, {}));
    };
    for (DatasetEntry& entry :
         read_dataset_info(config.dataset_dir, dataset_names, std::string(stage.name))) {
      entry.media_dir = config.media_dir.empty() ? config.dataset_dir : config.media_dir;
      read_rows(entry, config, config.max_samples.value_or(INT64_MAX), notes,
                [&](Conversation row) {
                  num_bytes += bytes_of(row);
                  part.push_back(std::move(row));
                  if (num_bytes >= kPartBytes) hand_over();
                });
    }
    if (!part.empty()) hand_over();
  };
  parts.pass(read, take);
}

std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names,
                                             std::vector<std::string>& notes,
                                             std::vector<ReadDataset>* datasets) {
  std::vector<Conversation> all;
  std::vector<int64_t> sizes;
  const MixStrategy strategy = mix_strategy_of(config);
  for (DatasetEntry& entry :
       read_dataset_info(config.dataset_dir, dataset_names, std::string(stage.name))) {
    entry.media_dir = config.media_dir.empty() ? config.dataset_dir : config.media_dir;
    ReadDataset read;
    std::vector<Conversation> rows = read_dataset(entry, config, seed, notes, read);
    for (Conversation& row : rows) row.dataset = static_cast<int32_t>(sizes.size());
    if (datasets != nullptr) datasets->push_back(std::move(read));
    if (rows.empty() && strategy != MixStrategy::kConcat) {
      throw UserError(fmt::format(
          "dataset {}: on_bad_row: skip leaves no row of it, and mix_strategy: {} wants one; "
          "remove the data set",
          entry.name, config.mix_strategy));
    }
    sizes.push_back(std::ssize(rows));
    std::ranges::move(rows, std::back_inserter(all));
  }
  if (strategy == MixStrategy::kConcat || sizes.size() < 2) return all;
  const std::vector<double> probabilities = interleave_probs_of(config, std::ssize(sizes));
  const std::vector<int64_t> order = mixed_order(strategy, sizes, probabilities, seed);
  require_room(all, std::ssize(order), [&](const std::string& needed) {
    return fmt::format(
        "mix_strategy: {} takes {} of {}, which would take {}; set mix_strategy: interleave_once",
        config.mix_strategy, counted(std::ssize(order), "row"), all.size(), needed);
  });
  std::vector<Conversation> mixed;
  mixed.reserve(order.size());
  for (const int64_t place : order) mixed.push_back(all[static_cast<size_t>(place)]);
  return mixed;
}

std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names) {
  std::vector<std::string> notes;
  return read_conversations(config, stage, seed, dataset_names, notes);
}

RunRows read_run_rows(const DataSettings& config, const Stage& stage, int64_t seed) {
  RunRows rows;
  if (!config.dataset.empty()) {
    rows.train =
        read_conversations(config, stage, seed, config.dataset, rows.notes, &rows.datasets);
  }
  if (!config.eval_dataset.empty()) {
    rows.eval = read_conversations(config, stage, seed, config.eval_dataset, rows.notes,
                                   &rows.eval_datasets);
  }
  if (config.val_size > 0) split_off_validation(config, seed, rows);
  return rows;
}

void check_dataset_files(const DataSettings& config, const Stage& stage) {
  for (const std::string& names : {config.dataset, config.eval_dataset}) {
    if (names.empty()) continue;
    const auto entries = read_dataset_info(config.dataset_dir, names, std::string(stage.name));
    interleave_probs_of(config, std::ssize(entries));
  }
}

}  // namespace longspan
