#include "longspan/models/own_head.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/input/json_text.h"
#include "longspan/models/composite.h"
#include "longspan/models/parse_model_config.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {

ModelConfig with_own_head(const ModelConfig& tied) {
  nlohmann::ordered_json whole = parse_ordered_json(tied.json, "config.json");
  // For composite models transformers reads one or the other.
  whole["tie_word_embeddings"] = false;
  language_keys(whole)["tie_word_embeddings"] = false;
  return parse_model_config(whole.dump(2) + "\n", "config.json");
}

std::string describe_own_head(const std::string& folder, const ModelConfig& model) {
  if (model.spec.tied_head || !load_model_config(folder).spec.tied_head) return "";
  return fmt::format(
      "{}: config.json says tie_word_embeddings: true, and {} has other numbers than {}: the model "
      "has a head of its own, as transformers 5 loads it, and is saved with tie_word_embeddings: "
      "false.",
      folder, kHeadName, kEmbeddingName);
}

}  // namespace longspan
