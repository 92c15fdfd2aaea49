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

std::string hint_at_positions(const EncodedExamples& encoded, const ModelConfig& model) {
  int64_t num_beyond = 0, longest = 0;
  for (const Example& example : encoded.examples) {
    const int64_t positions = num_positions(example);
    num_beyond += positions > model.max_position_embeddings;
    longest = std::max(longest, positions);
  }
  if (num_beyond == 0) return "";
  return fmt::format(
      "{} of {} {} longer than the model's positions: the longest has {} tokens, "
      "max_position_embeddings in config.json is {}. What the model was not made for it learns "
      "slowly or not at all: stretch its positions with rope_scaling: yarn, or set cutoff_len: {}.",
      num_beyond, counted(std::ssize(encoded.examples), "row"), num_beyond == 1 ? "is" : "are",
      longest, model.max_position_embeddings, model.max_position_embeddings);
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
