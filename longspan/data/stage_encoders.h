// Encoders of rows into examples, one for each kind of rows. Each stage names an encoder (see
// encode_examples).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/data/bad_rows.h"
#include "longspan/data/chat_report.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/picture_rows.h"
#include "longspan/data/turns.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// The tokens of earlier parts of a data set that fill no block.
struct BlockRest {
  std::vector<int32_t> tokens;
  int64_t num_blocks = 0;  // of earlier parts
  bool is_last = false;    // no part follows
};

/// Inputs of an encoder, besides the rows.
struct Encoding {
  const DataSettings& config;
  const Stage& stage;
  const Tokenizer& tokenizer;
  const LocalTime& template_time;  // time of the run
  int64_t vocab_size;
  BadRows& bad;
  ChatReport& chats;
  /// Null: the model or the template takes no pictures.
  const PictureRows* pictures = nullptr;
  bool has_pictures = false;  // every sample has kFeatureColumn, because some row has pictures
  std::vector<UnusableRow>* unusable = nullptr;  // gets the rows that are added to `bad`
  BlockRest* rest = nullptr;  // pt with packing, of rows in parts; null: the rows are all rows
  int64_t max_positions = INT64_MAX;  // of a question and its answer in generation
  /// kto, of rows that are not all rows: the answer of the row before each; null: of all rows.
  const std::vector<Message>* answers_before = nullptr;
  /// kto, of rows that are not all rows: the answer for a row that has no other row beside it;
  /// null: the row is an error.
  const Message* other_answer = nullptr;
  /// kto: a row that has no other row beside it gets its own answer. For rows whose examples are
  /// not used.
  bool own_answer_serves = false;
  bool keeps_short_block = false;  // pt with packing: the last block is kept, though it is short

  /// Calls work(0), ..., work(num_rows - 1) in parallel. Adds rows whose work throws a RowError to
  /// `bad`. Returns the other rows, in order. `places`: the index of each row among all rows; null:
  /// the rows are all rows.
  std::vector<int64_t> good_rows(int64_t num_rows, const std::function<void(int64_t)>& work,
                                 const std::vector<int64_t>* places = nullptr) const;
  /// Returns the conversation's turns, with the pictures. `counts`: adds the turns to the report;
  /// must be false if the row has been counted before.
  std::vector<Turn> turns_of(const TurnEncoder& turns, const Conversation& conversation,
                             PlacedPictures& row, bool counts = true) const;
  /// Returns the conversation as one turn: the last answer with its end token, and the earlier text
  /// as the question.
  Turn question_and_answer(const TurnEncoder& turns, const Conversation& conversation,
                           PlacedPictures& row, bool counts = true) const;
  /// Completes a sample with the pictures of `row` (PictureRows::attach).
  void attach_pictures(Sample& sample, const PlacedPictures& row, const std::string& source) const;
  void report(const TurnEncoder& turns, const std::vector<Turn>& parts) const;
  /// Throws UserError with the row's name if the model has no embedding for a token.
  void require_known(const std::vector<int32_t>& ids, const std::string& source) const;
  /// Checks the tokens of a sample in the same way. Also throws NothingTrained, with the row's name
  /// and `what` ("the row", "the chosen answer"), if no token is trained. The first token's label
  /// does not count, because no token predicts the first token.
  void require_trained(const Sample& sample, const std::string& source,
                       std::string_view what) const;
};

/// Throws UserError unless the model (`pictures`; null: it takes none) and the template take the
/// rows' pictures.
void require_pictures_taken(const DataSettings& config, const PictureEncoding* pictures,
                            const std::vector<Conversation>& rows);
/// Returns the encoder of pictures, for Encoding::pictures. Null: the model or the template takes
/// none.
std::unique_ptr<PictureRows> picture_rows_of(const DataSettings& config, const Stage& stage,
                                             const PictureEncoding* pictures);

EncodedExamples encode_texts(const Encoding& encoding, const std::vector<Conversation>& rows);
EncodedExamples encode_answers(const Encoding& encoding, const std::vector<Conversation>& rows);
/// Each example has one document: a question, and as its labels the answer to compare with.
EncodedExamples encode_asked_rows(const Encoding& encoding, const std::vector<Conversation>& rows);
EncodedExamples encode_pairs(const Encoding& encoding, const std::vector<Conversation>& rows);
EncodedExamples encode_unpaired(const Encoding& encoding, const std::vector<Conversation>& rows);
/// Each example has one document, a question, and its solution.
EncodedExamples encode_prompts(const Encoding& encoding, const std::vector<Conversation>& rows);

/// Packs samples of 1 to `row_length` tokens into rows: each row takes the longest sample that
/// still fits, until no sample fits. Returns the samples' indices by row. Rows and their order are
/// the same as in LLaMA-Factory.
std::vector<std::vector<int64_t>> best_fit(const std::vector<int64_t>& lengths, int64_t row_length);

/// Returns the samples `row` as one example. `sample` returns a sample, once.
Example packed_example(const std::vector<int64_t>& row,
                       const std::function<Sample(int64_t)>& sample, bool neat);
/// Returns the report on these rows of all samples.
PackingReport report_of_packing(const std::vector<int64_t>& lengths, int64_t row_length,
                                int64_t num_rows);

/// Packs samples into rows of at most `row_length` tokens. `neat`: a row has several documents,
/// which do not see each other; otherwise a row has one document with position_restarts.
EncodedExamples pack_samples(std::vector<Sample> samples, int64_t row_length, bool neat);

/// Joins turns into one turn: all text before the last answer is the question.
Turn question_and_answer(std::vector<Turn> turns);

/// Returns the numbers of labels that a token predicts: those of all tokens but the first.
int64_t num_trained(const Sample& sample);

/// Returns an example with one document.
Example single(Sample sample);

/// Cut the source, or the target, of a turn to its first `length` tokens.
void cut_source(Turn& turn, int64_t length);
void cut_target(Turn& turn, int64_t length);

/// Sets the features of a sample from the features of the sample's turns, in order. No-op if no
/// turn has features.
void set_features(Sample& sample, std::span<const Turn> turns);

/// Returns question and answer as a document. The question is cut to most.source tokens, the answer
/// to most.target tokens. Trains the answer.
Sample answered(Turn turn, const TurnLengths& most);

}  // namespace longspan
