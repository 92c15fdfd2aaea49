#include "longspan/models/vocabulary.h"

#include <nlohmann/json.hpp>

#include "longspan/input/json_text.h"
#include "longspan/models/composite.h"
#include "longspan/models/parse_model_config.h"

namespace longspan {

ModelConfig with_vocabulary(const ModelConfig& model, int64_t vocab_size) {
  if (vocab_size == model.spec.vocab_size) return model;
  nlohmann::ordered_json whole = parse_ordered_json(model.json, "config.json");
  language_keys(whole)["vocab_size"] = vocab_size;
  if (whole.contains("vocab_size")) whole["vocab_size"] = vocab_size;
  return parse_model_config(whole.dump(2) + "\n", "config.json");
}

int64_t padded_vocabulary(int64_t num_tokens) {
  constexpr int64_t kMultiple = 64;
  return (num_tokens + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace longspan
