// A model that is ready to answer: loaded, with its template and its settings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/dataset.h"
#include "longspan/data/turns.h"
#include "longspan/generation/generate.h"
#include "longspan/models/decoder.h"
#include "longspan/models/model_config.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// What the user asked for. Whatever is absent comes from generation_config.json, else it is
/// transformers' default.
struct AssistantRequest {
  std::string model_name_or_path;             // a model's folder, or a LoRA adapter's
  std::string adapter_name_or_path;           // comma list, merged in this order
  std::string template_name;                  // empty: the model's own chat_template
  std::optional<at::ScalarType> infer_dtype;  // absent: bf16 where config.json says so, else fp32
  std::optional<std::string> default_system;
  bool enable_thinking = true;
  bool skip_special_tokens = true;
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<int64_t> top_k, max_new_tokens;
  uint64_t seed = 42;
};

struct Assistant {
  ModelConfig config;
  std::vector<NamedTensor> parameters;  // in the dtype of computation
  Tokenizer tokenizer;
  /// Null where neither the model nor the user has a template: then texts are continued.
  std::unique_ptr<TurnEncoder> chat;
  GenerationOptions options;
  bool skip_special_tokens = true;
  std::string description;  // a line or two for people: model, dtype, template, settings
  std::string warning;      // what of the folder's files has no effect, by lines; mostly empty

  /// The tokens of a conversation that ends with a question, or of a text to continue. Throws
  /// UserError: the template refuses it, no tokens, no room for an answer in the model's context.
  std::vector<int32_t> prompt(const Conversation& conversation) const;
};

/// Throws UserError: no model there, a base model that is gone, settings that contradict each
/// other.
Assistant load_assistant(const AssistantRequest& request);

}  // namespace longspan
