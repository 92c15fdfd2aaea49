// Reads datasets of dataset_info.json as conversations. The code does not depend on ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// Reads the named datasets (comma list) of dataset_dir/dataset_info.json for the stage. `seed`:
/// for the random choice of an entry's num_samples rows. Adds sentences on each dataset to `notes`.
/// Throws UserError: missing file, broken JSON (with file and line), a dataset for another stage
/// (ranking, kto_tag), wrong columns (found and wanted). Unusable rows (roles out of order, no
/// answer, ...) are an error with the count and the first five rows, or are skipped with
/// on_bad_row: skip.
std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names,
                                             std::vector<std::string>& notes);
std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names);

/// The rows of a run. train: the rows of `dataset`, which may be empty. eval: the rows of
/// `eval_dataset`, or a seeded random choice of val_size rows. Both keep the order of the files.
struct RunRows {
  std::vector<Conversation> train, eval;
  std::vector<std::string> notes;  // sentences on skipped rows
};
RunRows read_run_rows(const DataSettings& config, const Stage& stage, int64_t seed);

/// Checks cheap conditions before read_run_rows(): dataset_info.json, its entries, and the
/// existence of the entries' files. Reads no rows. Throws UserError.
void check_dataset_files(const DataSettings& config, const Stage& stage);

}  // namespace longspan
