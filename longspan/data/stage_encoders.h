// How rows of each kind become examples; a stage names the one that it wants (see
// encode_examples).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/data/bad_rows.h"
#include "longspan/data/chat_report.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/turns.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// What an encoder needs beside the rows.
struct Encoding {
  const DataSettings& config;
  const Stage& stage;
  const Tokenizer& tokenizer;
  const Moment& moment;  // of the run
  int64_t vocab_size;
  BadRows& bad;
  ChatReport& chats;

  /// Calls work(0), ..., work(num_rows - 1) in parallel. Rows that throw a RowError are added to
  /// `bad`; the others are returned, in order.
  std::vector<int64_t> good_rows(int64_t num_rows, const std::function<void(int64_t)>& work) const;
  /// The conversation's turns, which the report counts.
  std::vector<Turn> turns_of(const TurnEncoder& turns, const Conversation& conversation) const;
  /// The conversation as one question and its last answer, with its end. The report counts it
  /// unless the row is counted already.
  Turn question_and_answer(const TurnEncoder& turns, const Conversation& conversation,
                           bool counts = true) const;
  /// Throws UserError naming the row when the model has no embedding for a token.
  void require_known(const std::vector<int32_t>& ids, const std::string& source) const;
  /// The same, and throws RowError naming the row and `what` of it ("the row", "the chosen
  /// answer") unless some token is trained. The label of the first token is not predicted by
  /// anything.
  void require_trained(const Sample& sample, const std::string& source,
                       std::string_view what) const;
};

EncodedExamples encode_texts(const Encoding& encoding, const std::vector<Conversation>& rows);
EncodedExamples encode_answers(const Encoding& encoding, const std::vector<Conversation>& rows);
EncodedExamples encode_pairs(const Encoding& encoding, const std::vector<Conversation>& rows);
EncodedExamples encode_verdicts(const Encoding& encoding, const std::vector<Conversation>& rows);

/// Lays samples of 1 to `row_length` tokens into rows: each row takes the longest sample that still
/// fits, until none does. Returns the samples' indices by row. (LLaMA-Factory's search: the same
/// rows in the same order.)
std::vector<std::vector<int64_t>> best_fit(const std::vector<int64_t>& lengths, int64_t row_length);

/// Samples -> packed rows of at most `row_length` tokens. neat: several documents to a row, which
/// do not see each other; else one document, with position_restarts.
EncodedExamples pack_samples(std::vector<Sample> samples, int64_t row_length, bool neat);

/// Turns as one question and its last answer.
Turn question_and_answer(std::vector<Turn> turns);

/// An example of one document.
Example single(Sample sample);

/// Question and answer, each cut to at most so many tokens, as a document in which the answer is
/// trained.
Sample answered(Turn turn, const TurnLengths& most);

}  // namespace longspan
