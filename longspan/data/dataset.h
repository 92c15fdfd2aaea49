// Reads datasets of dataset_info.json as conversations. The code does not depend on ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// A data set that was read.
struct ReadDataset {
  std::string name;
  int64_t num_rows = 0, num_bad = 0;  // num_rows: with the bad ones, before max_samples
};

/// Reads the named datasets (comma list) of dataset_dir/dataset_info.json for the stage. `seed`:
/// for the random choice of an entry's num_samples rows. Adds sentences on each dataset to `notes`,
/// and each dataset to `datasets`, if given.
/// Throws UserError: missing file, broken JSON (with file and line), a dataset for another stage
/// (ranking, kto_tag), wrong columns (found and wanted). Unusable rows (roles out of order, no
/// answer, ...) are an error with the count and the first five rows, or are skipped with
/// on_bad_row: skip.
std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names,
                                             std::vector<std::string>& notes,
                                             std::vector<ReadDataset>* datasets = nullptr);
std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names);

/// Gets rows in the order of the files, some thousand at a time.
using ConversationTaker = std::function<void(std::vector<Conversation>)>;

/// Whether the rows keep the order of the files: they are neither drawn nor mixed. read_in_parts()
/// can read such data sets.
bool keep_file_order(const DataSettings& config, const Stage& stage,
                     const std::string& dataset_names);
/// Whether all these rows are trained, too: val_size takes none.
bool reads_in_parts(const DataSettings& config, const Stage& stage,
                    const std::string& dataset_names);
/// Passes on the rows of read_conversations() in parts, so that memory holds a few parts. A thread
/// reads while `take` runs. Throws as read_conversations(); bad rows of a data set after its last
/// good row was taken.
void read_in_parts(const DataSettings& config, const Stage& stage, const std::string& dataset_names,
                   std::vector<std::string>& notes, const ConversationTaker& take);

/// The rows of a run. train: the rows of `dataset`, which may be empty. eval: the rows of
/// `eval_dataset`, or a seeded random choice of val_size rows. Both keep the order of the files.
struct RunRows {
  std::vector<Conversation> train, eval;
  std::vector<std::string> notes;  // sentences on skipped rows
  /// Conversation::dataset is an index in `datasets` for the rows of `dataset` (also those of
  /// val_size), and in `eval_datasets` for the rows of `eval_dataset`.
  std::vector<ReadDataset> datasets, eval_datasets;
};
RunRows read_run_rows(const DataSettings& config, const Stage& stage, int64_t seed);
/// Returns which of the `size` rows of `dataset` val_size takes for evaluation. Throws UserError if
/// none would be left.
std::vector<bool> validation_rows(const DataSettings& config, int64_t size, int64_t seed);

/// Checks cheap conditions before read_run_rows(): dataset_info.json, its entries, and the
/// existence of the entries' files. Reads no rows. Throws UserError.
void check_dataset_files(const DataSettings& config, const Stage& stage);

}  // namespace longspan
