// Warnings of likely mistakes in data and templates, which do not stop a run.
#pragma once

#include <string>

#include "longspan/data/example_encoder.h"
#include "longspan/models/model_config.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Counts the rows that have more positions than the model.
class RowsBeyondPositions {
 public:
  explicit RowsBeyondPositions(const ModelConfig& model) : model_(model) {}
  void add(const Example& example);
  /// Returns a warning if there are such rows: how many, how long, and the remedy. Otherwise empty.
  std::string hint() const;

 private:
  const ModelConfig& model_;
  int64_t num_rows_ = 0, num_beyond_ = 0, longest_ = 0;
};

/// Returns a warning if the template is made for another model; otherwise empty.
std::string hint_at_template(const DataSettings& config, const ModelConfig& model,
                             const Tokenizer& tokenizer);

}  // namespace longspan
