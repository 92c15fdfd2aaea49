// Examples of data sets, chosen and encoded again for people to look at.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/data/dataset.h"
#include "longspan/data/example_encoder.h"
#include "longspan/report/token_pieces.h"

namespace longspan {

struct DataSettings;
struct Stage;

struct ShownDocument {
  std::string name;  // "chosen"; empty: the example has one document
  int64_t num_tokens = 0, num_trained = 0;
  std::vector<TokenPiece> pieces;
};
struct ShownExample {
  std::string title;     // "Example 1 of 400"
  std::string why;       // "the longest of chats"; empty: one of the first
  std::string dataset;   // name
  std::string source;    // "data/chats.json, row 1"
  int64_t num_lost = 0;  // tokens cut off
  std::vector<ShownDocument> documents;
  std::string solution;  // of a question
};

/// An example to show, by its index in EncodedExamples::rows of training.
struct Choice {
  int64_t index;
  std::string why = {};
};
/// Returns the first `num_first` examples of each data set. `outliers`: also the longest example
/// and the one with the smallest share of trained tokens.
std::vector<Choice> choose_examples(const EncodedExamples& train, const RunRows& rows,
                                    int64_t num_first, bool outliers);

/// Encodes rows under other data settings than those of the run.
using EncodeRows =
    std::function<EncodedExamples(const DataSettings&, const std::vector<Conversation>&)>;
/// The sources of examples: settings, rows and tokenizer.
struct ExampleRows {
  const DataSettings& config;
  const Stage& stage;
  const Tokenizer& tokenizer;
  const RunRows& rows;
  const EncodedExamples& train;
  EncodeRows encode;
};
/// Returns the example before packing. Throws UserError.
ShownExample shown_example(const ExampleRows& from, const Choice& choice, const PieceLimits& most);

}  // namespace longspan
