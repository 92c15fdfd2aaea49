// Reads datasets of dataset_info.json as conversations. Knows nothing of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// Reads the named datasets (comma list) of dataset_dir/dataset_info.json for the stage. `seed`:
/// for rows that an entry's num_samples draws. `notes` gets sentences on each dataset. Throws
/// UserError: missing file, broken JSON (with file and line), a dataset for another stage (ranking,
/// kto_tag), wrong columns (found and wanted). Unusable rows (roles out of order, no answer, ...)
/// are an error with their count and the first five, or are left out with on_bad_row: skip.
std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names,
                                             std::vector<std::string>& notes);
std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names);

/// The rows of a run: `dataset` (may be empty), and for evaluation either `eval_dataset` or a split
/// of val_size (a seeded choice). Both parts keep the order of the files.
struct RunRows {
  std::vector<Conversation> train, eval;
  std::vector<std::string> notes;  // sentences on rows that were left out
};
RunRows read_run_rows(const DataSettings& config, const Stage& stage, int64_t seed);

/// Checks cheap conditions before read_run_rows(): dataset_info.json, its entries, existence of
/// their files. Reads no rows. Throws UserError.
void check_dataset_files(const DataSettings& config, const Stage& stage);

}  // namespace longspan
