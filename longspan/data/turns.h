// Conversations as pairs of question and answer, in token ids. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/rows/ignore_label.h"
#include "longspan/text/local_time.h"
#include "longspan/text/saved_chat.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// One question with its answer. `target_labels` is `target`; kIgnoreLabel where the answer is not
/// trained (an unanswered tail of the conversation).
struct Turn {
  std::vector<int32_t> source, target, target_labels;
  /// For each token of source and target, its feature among those of the row's pictures; -1: none.
  /// Empty: the row has no pictures.
  std::vector<int64_t> source_features = {}, target_features = {};
  bool is_trained = true;      // false: the row asks for no labels
  bool lost_thoughts = false;  // the template drops the answer's thoughts
  bool added_end = false;      // the last token was added, and is not in the template
};
/// Whether the last label, except white space, is one of these tokens. True without labels.
bool has_end(const Turn& turn, const std::set<int32_t>& ends, const Tokenizer& tokenizer);

/// Turns conversations into tokens.
class TurnEncoder {
 public:
  virtual ~TurnEncoder() = default;
  /// Returns the turns, whose concatenation is the whole conversation. Throws UserError with the
  /// conversation's source.
  virtual std::vector<Turn> turns(const Conversation& conversation) const = 0;
  /// Returns the tokens of a conversation that ends with a question, and of the text that opens its
  /// answer. Throws UserError as above.
  virtual std::vector<int32_t> question(const Conversation& conversation) const = 0;
  /// The tokens that end an answer: the token that the template prints after it, or the markers of
  /// the next message where it prints none. Empty where these are no special tokens.
  virtual std::vector<int32_t> turn_ends() const = 0;
  /// The token added to the last answer of a template that prints none there.
  virtual std::optional<int32_t> added_end() const { return std::nullopt; }
  /// The token to add after the last turn. It is also the label of the first token of each later
  /// turn. nullopt: none.
  virtual std::optional<int32_t> last_end() const { return std::nullopt; }
};

/// The tokens that stop generation: those of the model's folder and those of the template.
std::set<int32_t> ends_of(const Tokenizer& tokenizer, const TurnEncoder& encoder);

/// Returns the first of these tokens where it is a special one.
std::optional<int32_t> leading_special(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

/// How templates of thinking models (qwen3) treat thoughts. A trained answer without thoughts gets
/// empty ones.
struct Thinking {
  bool enabled = true;            // false: removes thoughts; empty ones belong to the question
  bool last_answer_only = false;  // earlier answers lose their thoughts
};

/// A template of LLaMA-Factory by name (see named_templates). Tokenizes each message separately, as
/// LLaMA-Factory does. Throws UserError where the tokenizer lacks one of the template's tokens.
std::unique_ptr<TurnEncoder> make_named_template(const std::string& name,
                                                 const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 const Thinking& thinking);

std::vector<std::string> named_templates();

/// The model's own chat_template. A conversation's tokens are those of transformers'
/// apply_chat_template, plus an end token where the template prints none after the last answer. An
/// answer is what {% generation %} marks; else the text between the generation prompt and the token
/// that stops generation. `template_time`: for strftime_now. Throws UserError where the tokenizer
/// has no chat_template.
std::unique_ptr<TurnEncoder> make_model_template(const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 bool enable_thinking,
                                                 const LocalTime& template_time);

/// Returns the configuration's encoder: its named template, else the model's own.
std::unique_ptr<TurnEncoder> make_turn_encoder(const DataSettings& config, const Stage& stage,
                                               const Tokenizer& tokenizer,
                                               const LocalTime& template_time);

/// Returns how the stage trains thoughts.
Thinking thinking_of(const DataSettings& config, const Stage& stage);

/// Returns the chat settings that a model trained by the configured template needs beside its
/// weights, as LLaMA-Factory saves them: a chat_template that renders the prompts of training
/// (token for token, except where a token would join two messages), the end token and a pad token.
/// Keeps the model's own template where it renders the same prompts. Without a named template: the
/// tokens that end an answer and that the model's files lack; nullopt where there are none.
std::optional<SavedChat> saved_chat(const DataSettings& config, const Stage& stage,
                                    const Tokenizer& tokenizer, const LocalTime& template_time);

/// Returns the chat settings of `to` that differ from those of `from`, with token ids of `from`.
/// Leaves out tokens that `from` lacks.
SavedChat chat_that_differs(const Tokenizer& from, const Tokenizer& to);

/// Renders a conversation that ends with a question, like transformers'
/// apply_chat_template(add_generation_prompt=True). `eos_token`: its value for the template. Throws
/// UserError.
std::string rendered_prompt(const std::string& chat_template, const Tokenizer& tokenizer,
                            const std::optional<std::string>& eos_token,
                            const Conversation& conversation, const LocalTime& template_time);

/// Stage pt: returns the text of the token that ends a text. By LLaMA-Factory's rule it is the
/// token that ends a turn of the named template (for llama3 <|end_of_text|>), else the tokenizer's
/// eos_token. Throws UserError where the tokenizer lacks it.
std::string end_of_text(const std::string& template_name, const Tokenizer& tokenizer);

/// Divides `budget` tokens between a question and an answer. Does not cut a part of less than half
/// of the budget; cuts two longer ones in proportion. Reproduces LLaMA-Factory's results exactly.
struct TurnLengths {
  int64_t source, target;
};
TurnLengths fit_turn(int64_t source, int64_t target, int64_t budget);

}  // namespace longspan
