// Encodes rows of a dataset as examples of a stage. The code does not depend on ranks.
#pragma once

#include <array>
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
  void add(const CutReport& part);
  /// True if at least nine of ten rows lost tokens.
  bool is_nearly_all() const { return num_cut > 0 && 10 * num_cut >= 9 * num_rows; }
  /// Returns one line for the user; "" if no row was cut.
  std::string text(int64_t cutoff_len) const;
};

/// Numbers of tokens of a row that became an example or a part of one.
struct EncodedRow {
  int64_t row = 0;  // index among the rows that were given
  /// Tokens of each document before the cut; 0: there is no second document. Without the document
  /// that serves to estimate KL.
  std::array<int64_t, 2> lengths{};
  int64_t kept = 0;     // tokens of all these documents after the cut
  int64_t trained = 0;  // labels of all these documents, without those of first tokens
};
struct UnusableRow {
  int64_t row = 0;
  bool nothing_trained = false;
};

struct EncodedExamples {
  std::vector<Example> examples;
  std::optional<PackingReport> packing;  // not set: nothing was packed
  CutReport cut;
  std::vector<EncodedRow> rows;       // in the order of the examples before packing
  std::vector<UnusableRow> unusable;  // rows skipped by on_bad_row: skip
  std::vector<std::string> chats;  // notes on dropped thoughts, and on answers without an end token
  std::string left_out;            // a sentence on rows skipped by on_bad_row: skip; may be empty
};

/// Inputs of encode_examples() beside the rows. All references must outlive the call.
struct RowEncoding {
  const DataSettings& config;
  const Stage& stage;
  const Tokenizer& tokenizer;
  const LocalTime& template_time;  // the run's time, which a chat template may print into rows
  int64_t vocab_size = INT64_MAX;  // number of embeddings of the model
  const PictureEncoding* pictures = nullptr;  // null: the model takes no pictures
  int64_t max_positions = INT64_MAX;          // tokens of a question and its answer in generation
  bool may_be_empty = false;                  // that no row is usable or has text is no error
};

/// Encodes the rows of a stage in preprocessing_num_workers threads (parallel_rows.h). Packing
/// applies to training rows and to evaluation rows, as in LLaMA-Factory.
///   pt       text and end-of-text token. Packed: all texts concatenated and cut into blocks of
///            cutoff_len tokens. Not packed: each text is cut to cutoff_len. Trains every token but
///            the first.
///   sft      trains answers (train_on_prompt, mask_history); packs best-fit by length.
///   dpo, rm  documents {chosen, rejected}; trains answers.
///   kto      documents {answer, answer of the row before}; trains answers.
/// Example i is row i unless rows were packed, skipped by on_bad_row: skip, or empty (pt).
///
/// Throws UserError in these cases:
/// - A token id is vocab_size or larger.
/// - Stage kto has only one row.
/// - A row has no trained token, or the template refuses a row, unless on_bad_row is skip.
/// - A question to answer is empty or leaves no room for an answer, unless on_bad_row is skip.
/// - A row has pictures, and the model or the template takes no pictures.
EncodedExamples encode_examples(const RowEncoding& encoding, const std::vector<Conversation>& rows);

}  // namespace longspan
