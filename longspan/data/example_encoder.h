// Encodes rows of a dataset as examples of a stage. The code does not depend on ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/dataset.h"
#include "longspan/rows/example.h"
#include "longspan/text/local_time.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;
struct PictureEncoding;
struct Stage;

/// The result of packing: pt's blocks, or sft's rows of at most cutoff_len tokens.
struct PackingReport {
  int64_t rows_before = 0, rows_after = 0;
  int64_t row_length = 0;     // cutoff_len
  int64_t tokens_before = 0;  // tokens of the unpacked rows, each cut to cutoff_len
  int64_t tokens_after = 0;
  int64_t num_dropped = 0;  // pt: dropped tokens of an incomplete last block

  /// Return the fraction of padding, in [0, 1), before and after packing, in a program that pads
  /// all rows to cutoff_len. (Longspan does not pad.)
  double empty_before() const;
  double empty_after() const;
  /// Returns one line for the user, with the numbers of rows and both fractions.
  std::string text() const;
};

/// Tokens that rows lost by the cut to cutoff_len. All documents of a row count together.
struct CutReport {
  int64_t num_rows = 0, num_cut = 0;
  int64_t num_tokens = 0, num_lost = 0;
  int64_t longest = 0;  // tokens of the longest document before the cut

  void add_row(int64_t num_tokens, int64_t num_kept, int64_t longest_document);
  /// True if at least nine of ten rows lost tokens.
  bool is_nearly_all() const { return num_cut > 0 && 10 * num_cut >= 9 * num_rows; }
  /// Returns one line for the user; "" if no row was cut.
  std::string text(int64_t cutoff_len) const;
};

struct EncodedExamples {
  std::vector<Example> examples;
  std::optional<PackingReport> packing;  // not set: nothing was packed
  CutReport cut;
  std::vector<std::string> chats;  // notes on dropped thoughts, and on answers without an end token
  std::string left_out;            // a sentence on rows skipped by on_bad_row: skip; may be empty
};

/// Encodes the rows of a stage in preprocessing_num_workers threads (parallel_rows.h). Packing
/// applies to training rows and to evaluation rows, as in LLaMA-Factory.
///   pt       text and end-of-text token. Packed: all texts concatenated and cut into blocks of
///            cutoff_len tokens. Not packed: each text is cut to cutoff_len. Trains every token but
///            the first.
///   sft      trains answers (train_on_prompt, mask_history); packs best-fit by length.
///   dpo, rm  documents {chosen, rejected}; trains answers.
///   kto      documents {answer, answer of the row before}; trains answers.
/// `template_time`: the run's time, which the model's chat template may print into rows.
/// `vocab_size`: number of embeddings of the model. `pictures`: null if the model takes no
/// pictures. Example i is row i unless rows were packed, skipped by on_bad_row: skip, or empty
/// (pt).
///
/// Throws UserError in these cases:
/// - A token id is `vocab_size` or larger.
/// - Stage kto has only one row.
/// - A row has no trained token, or the template refuses a row, unless on_bad_row is skip.
/// - A row has pictures, and the model or the template takes no pictures.
EncodedExamples encode_examples(const DataSettings& config, const Stage& stage,
                                const Tokenizer& tokenizer, const std::vector<Conversation>& rows,
                                const LocalTime& template_time, int64_t vocab_size = INT64_MAX,
                                const PictureEncoding* pictures = nullptr);

}  // namespace longspan
