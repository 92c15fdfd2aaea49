#include "longspan/report/data_hints.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/data/template_format.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// Returns the largest number of tokens with consecutive positions in a row of this example.
int64_t num_positions(const Example& example) {
  int64_t most = 0;
  for (const Sample& document : example.documents) {
    int64_t begin = 0;
    for (const int64_t restart : example.position_restarts) {
      most = std::max(most, restart - begin);
      begin = restart;
    }
    most = std::max(most, std::ssize(document.input_ids) - begin);
  }
  return most;
}

}  // namespace

void RowsBeyondPositions::add(const Example& example) {
  const int64_t positions = num_positions(example);
  ++num_rows_;
  num_beyond_ += positions > model_.max_position_embeddings;
  longest_ = std::max(longest_, positions);
}

std::string RowsBeyondPositions::hint() const {
  if (num_beyond_ == 0) return "";
  return fmt::format(
      "{} of {} {} longer than the model's positions: the longest has {} tokens, "
      "max_position_embeddings in config.json is {}. What the model was not made for it learns "
      "slowly or not at all: stretch its positions with rope_scaling: yarn, or set cutoff_len: {}.",
      num_beyond_, counted(num_rows_, "row"), num_beyond_ == 1 ? "is" : "are", longest_,
      model_.max_position_embeddings, model_.max_position_embeddings);
}

std::string hint_at_template(const DataSettings& config, const ModelConfig& model,
                             const Tokenizer& tokenizer) {
  const std::vector<Format>& formats = template_formats();
  const auto format = std::ranges::find(formats, config.chat_template, &Format::name);
  if (format == formats.end()) return "";
  if (!tokenizer.id_of(kThoughts)) return std::string(format->without_thoughts);
  return std::string(format->mistaken_for == model.model_type ? format->mistake : "");
}

}  // namespace longspan
