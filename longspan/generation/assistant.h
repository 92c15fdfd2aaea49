// A model that is ready to answer, with its template and its settings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/dataset.h"
#include "longspan/data/picture_rows.h"
#include "longspan/data/turns.h"
#include "longspan/generation/generate.h"
#include "longspan/models/decoder.h"
#include "longspan/models/model_config.h"
#include "longspan/settings/data_settings.h"
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
  /// Prompts may have pictures: loads the vision tower of a model that has one.
  bool takes_pictures = false;
  DataSettings pictures;  // limits of pictures and videos, and fps
};

/// The encoding of pictures in a model's prompts.
struct PromptEncoding {
  PictureEncoding encoding;
  PictureRows rows;  // by `encoding`

  PromptEncoding(PictureEncoding of_model, VideoForm videos, bool writes_tags)
      : encoding(std::move(of_model)), rows(encoding, videos, writes_tags, /*plain_tags=*/true) {}
};

struct Assistant {
  std::string model_folder;  // of the base model
  ModelConfig config;
  std::vector<NamedTensor> parameters;  // in the dtype of computation
  Tokenizer tokenizer;
  /// Null where neither the model nor the user has a template. Without a template the model
  /// continues texts.
  std::unique_ptr<TurnEncoder> chat;
  GenerationOptions options;
  bool skip_special_tokens = true;
  std::string description;  // a line or two: model, dtype, template, settings
  std::string warning;      // ignored parts of the folder's files, one per line

  /// How pictures become tokens; null: the assistant takes none, for the reason in `no_pictures`.
  std::unique_ptr<PromptEncoding> pictures;
  std::string no_pictures;

  /// Returns a conversation that ends with a question, or a text to continue, as tokens with its
  /// pictures. Throws UserError: the template refuses the conversation; without a template, the
  /// conversation is more than one text; there are no tokens; the context has no space for an
  /// answer; or there are pictures that the model does not take or that cannot be read.
  Sample prompt(const Conversation& conversation) const;
};

/// Returns a warning on the keys of a folder's generation_config.json that change answers in
/// transformers and not here; empty: there are none. Throws UserError for a broken file.
std::string warning_of_generation_config(const std::string& folder);

/// Throws UserError: no model in the folder, a missing base model, settings that contradict each
/// other.
Assistant load_assistant(const AssistantRequest& request);

}  // namespace longspan
