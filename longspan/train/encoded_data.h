// The data sets of a run: rows, and the examples that training makes of these rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/dataset.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/picture_encoding.h"
#include "longspan/models/model_config.h"
#include "longspan/report/data_hints.h"
#include "longspan/report/events.h"
#include "longspan/text/local_time.h"
#include "longspan/text/saved_chat.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;
struct MethodSettings;
struct ModelSettings;

/// The sections of the configuration that describe the data sets and how they become rows.
struct RowSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const DataSettings& data;
  int64_t seed;
};

/// Returns how the rows of evaluation become examples: with predict_with_generate, as questions
/// with their answers.
DataSettings eval_rows_of(const RowSettings& config);

struct EncodedData {
  Tokenizer tokenizer;
  std::optional<PictureEncoding> pictures;  // nullopt: the model takes no pictures
  RunRows rows;
  EncodedExamples train, eval;
};
/// Reads and encodes the data sets. Loads no weights. `template_time`: the run's time. Throws
/// UserError.
EncodedData encode_data(const RowSettings& config, const ModelConfig& model,
                        const LocalTime& template_time);
/// Says how the trained model differs from its folder.
void say_model(const RowSettings& config, const ModelConfig& model, Events& events);

/// Facts on the rows of a run, for reports.
struct DataFacts {
  const Tokenizer& tokenizer;
  const std::vector<std::string>& notes;  // on the data sets
  bool have_tools;                        // some row has tools
  const std::vector<Conversation>& rows;  // training rows, or the first of them
  const EncodedExamples &train, &eval;
  const RowsBeyondPositions &long_train, &long_eval;
};
/// Reports cut and left-out rows, and likely mistakes. Returns the chat settings of the saved
/// model.
std::optional<SavedChat> say_data(const RowSettings& config, const ModelConfig& model,
                                  const LocalTime& template_time, const DataFacts& data,
                                  Events& events);
std::optional<SavedChat> say_data(const RowSettings& config, const ModelConfig& model,
                                  const LocalTime& template_time, const EncodedData& data,
                                  Events& events);
bool have_tools(const std::vector<Conversation>& rows);
/// Returns the form in which the model of a run takes pictures; nullopt: the model takes none.
/// Throws UserError if the model's processor does not fit its vision tower.
std::optional<PictureEncoding> picture_encoding(const RowSettings& config, const ModelConfig& model,
                                                const Tokenizer& tokenizer);

}  // namespace longspan
