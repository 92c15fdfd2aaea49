// dataset_info.json and its files -> tokenized samples. Knows nothing of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/batch.h"
#include "longspan/data/conversation.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct Config;

/// Reads the named datasets (comma list) by way of dataset_dir/dataset_info.json, as config.stage
/// wants them. Throws UserError: missing file, broken JSON (file and line), a dataset for another
/// stage (ranking, kto_tag), wrong columns (what is there, what is wanted), and, unless on_bad_row
/// is skip, rows that cannot be used: how many, and the first five (roles out of order, no answer,
/// ...). Under skip those are left out, and `notes` gains a sentence for each data set that had
/// some.
std::vector<Conversation> read_conversations(const Config& config, const std::string& dataset_names,
                                             std::vector<std::string>& notes);
std::vector<Conversation> read_conversations(const Config& config,
                                             const std::string& dataset_names);

/// The rows of a run: `dataset`, and for evaluation either `eval_dataset` or the validation split
/// of val_size (a seeded choice; both parts stay in the order of the files).
struct RunRows {
  std::vector<Conversation> train, eval;
  std::vector<std::string> notes;  // what was left out, in sentences
};
RunRows read_run_rows(const Config& config);

/// Checks ahead of read_run_rows what costs little: dataset_info.json, its entries, whether their
/// files are there. Reads no rows. Throws UserError.
void check_dataset_files(const Config& config);

/// Stage sft (see encode_examples for all stages). Turns conversations into ids and labels:
/// template (named, or the model's own chat_template), loss on answers only, train_on_prompt,
/// mask_history, per-turn truncation to cutoff_len.
class SftEncoder {
 public:
  SftEncoder(const Config& config, const Tokenizer& tokenizer);
  ~SftEncoder();
  /// In parallel over preprocessing_num_workers threads (parallel_rows.h); throws UserError when
  /// every label of a row is masked.
  std::vector<Sample> encode_all(const std::vector<Conversation>& conversations) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
