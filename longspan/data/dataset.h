// dataset_info.json and its files -> conversations. Knows nothing of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// Reads the named datasets (comma list) by way of dataset_dir/dataset_info.json, as the
/// stage wants them. `seed`: of the rows that num_samples of an entry draws. Throws UserError:
/// missing file, broken JSON (file and line), a dataset for another stage (ranking, kto_tag), wrong
/// columns (what is there, what is wanted), and, unless on_bad_row is skip, rows that cannot be
/// used: how many, and the first five (roles out of order, no answer,
/// ...). Under skip those are left out, and `notes` gains a sentence for each data set that had
/// some.
std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names,
                                             std::vector<std::string>& notes);
std::vector<Conversation> read_conversations(const DataSettings& config, const Stage& stage,
                                             int64_t seed, const std::string& dataset_names);

/// The rows of a run: `dataset`, and for evaluation either `eval_dataset` or the validation split
/// of val_size (a seeded choice; both parts stay in the order of the files).
struct RunRows {
  std::vector<Conversation> train, eval;
  std::vector<std::string> notes;  // what was left out, in sentences
};
RunRows read_run_rows(const DataSettings& config, const Stage& stage, int64_t seed);

/// Checks ahead of read_run_rows what costs little: dataset_info.json, its entries, whether their
/// files are there. Reads no rows. Throws UserError.
void check_dataset_files(const DataSettings& config, const Stage& stage);

}  // namespace longspan
