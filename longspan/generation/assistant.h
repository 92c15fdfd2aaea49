// A model that is ready to answer, with its template and its settings.
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

/// The user's settings. Missing settings come from generation_config.json, or are transformers'
/// defaults.
struct AssistantRequest {
  std::string model_name_or_path;             // folder of a model or of a LoRA adapter
  std::string adapter_name_or_path;           // comma list of adapters, merged in this order
  std::string template_name;                  // empty: the model's own chat_template
  std::optional<at::ScalarType> infer_dtype;  // not set: bf16 where config.json says so, else fp32
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
  /// Null where neither the model nor the user has a template. Without a template the model
  /// continues texts.
  std::unique_ptr<TurnEncoder> chat;
  GenerationOptions options;
  bool skip_special_tokens = true;
  std::string description;  // a line or two: model, dtype, template, settings
  std::string warning;      // parts of the folder's files without effect, one a line

  /// Returns the tokens of a conversation that ends with a question, or of a text to continue.
  /// Throws UserError: the template refuses the conversation; without a template, the conversation
  /// is more than one text; there are no tokens; or the context has no space for an answer.
  std::vector<int32_t> prompt(const Conversation& conversation) const;
};

/// Throws UserError: no model in the folder, a missing base model, settings that contradict each
/// other.
Assistant load_assistant(const AssistantRequest& request);

}  // namespace longspan
