// Rows of a dataset -> what a stage trains on. Knows nothing of ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/dataset.h"
#include "longspan/data/example.h"
#include "longspan/text/moment.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// What packing did: pt's blocks, or sft's rows of at most cutoff_len tokens.
struct PackingReport {
  int64_t rows_before = 0, rows_after = 0;
  int64_t row_length = 0;     // cutoff_len
  int64_t tokens_before = 0;  // of the rows one by one, each cut to cutoff_len
  int64_t tokens_after = 0;
  int64_t num_dropped = 0;  // pt: tokens that did not fill a last block and are left out

  /// The share of rows of cutoff_len tokens each that would be padding, before and after packing: a
  /// program that pads rows computes it in vain (this one pads none). In [0, 1).
  double empty_before() const;
  double empty_after() const;
  /// One line for people: rows and both shares.
  std::string text() const;
};

/// What rows lost when they were cut to cutoff_len; a row's documents count together.
struct CutReport {
  int64_t num_rows = 0, num_cut = 0;
  int64_t num_tokens = 0, num_lost = 0;
  int64_t longest = 0;  // tokens of the longest document before it was cut

  void add_row(int64_t num_tokens, int64_t num_kept, int64_t longest_document);
  /// At least nine rows of ten lost tokens.
  bool is_nearly_all() const { return num_cut > 0 && 10 * num_cut >= 9 * num_rows; }
  /// One line for people; "" when no row was cut.
  std::string text(int64_t cutoff_len) const;
};

struct EncodedExamples {
  std::vector<Example> examples;
  std::optional<PackingReport> packing;  // absent: nothing was packed
  CutReport cut;
  std::vector<std::string> chats;  // what templates left out, and answers without an end
  std::string left_out;  // the rows that on_bad_row: skip left out, in a sentence; mostly empty
};

/// Encodes the rows of a stage, in parallel over preprocessing_num_workers threads
/// (parallel_rows.h). Training and evaluation rows alike: LLaMA-Factory packs both.
///   pt       text and end-of-text token; packed: all texts one after the other, cut into blocks of
///            cutoff_len tokens, else each cut to cutoff_len. Every token but the first is trained.
///   sft      answers are trained (train_on_prompt, mask_history); packed best-fit by length.
///   dpo, rm  documents {chosen, rejected}; answers are trained.
///   kto      documents {answer, answer of the row before}; answers are trained.
/// `moment`: of the run, which the model's own chat template may write into rows. Example i is row
/// i unless rows were packed, left out by on_bad_row: skip, or (pt) empty. Throws UserError: a
/// token id of at least `vocab_size` (the model's), kto with one row, and unless on_bad_row is skip
/// rows of which nothing is trained, or which the template refuses.
EncodedExamples encode_examples(const DataSettings& config, const Stage& stage,
                                const Tokenizer& tokenizer, const std::vector<Conversation>& rows,
                                const Moment& moment, int64_t vocab_size = INT64_MAX);

}  // namespace longspan
