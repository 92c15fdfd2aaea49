// Conversations as turns in token ids. A turn is a question with its answer. No torch.
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

/// One question (`source`) with its answer (`target`). `target_labels` equals `target`, except
/// kIgnoreLabel for tokens that are not trained (untrained answers, the end of a conversation
/// without a further answer).
struct Turn {
  std::vector<int32_t> source, target, target_labels;
  /// For each token of source and target, the index of the token's feature among the features of
  /// the row's pictures; -1: no feature. Empty: the row has no pictures.
  std::vector<int64_t> source_features = {}, target_features = {};
  bool is_trained = true;      // false: the row excludes this answer from training
  bool lost_thoughts = false;  // the template drops the answer's thoughts
  bool added_end = false;      // the last token was added, and is not from the template
};
/// True if the last label, apart from white space, is in `ends`. True if the turn has no labels.
bool has_end(const Turn& turn, const std::set<int32_t>& ends, const Tokenizer& tokenizer);

/// Encodes conversations as tokens.
class TurnEncoder {
 public:
  virtual ~TurnEncoder() = default;
  /// Returns the turns, whose concatenation is the whole conversation. Throws UserError with the
  /// conversation's source.
  virtual std::vector<Turn> turns(const Conversation& conversation) const = 0;
  /// Returns the tokens of a conversation that ends with a question, and of the generation prompt.
  /// Throws UserError with the conversation's source.
  virtual std::vector<int32_t> question(const Conversation& conversation) const = 0;
  /// Returns the tokens that end an answer: the token that the template prints after an answer or,
  /// if the template prints no such token, the markers of the next message. Empty if these tokens
  /// are not special tokens.
  virtual std::vector<int32_t> turn_ends() const = 0;
  /// Returns the token that is added after the last answer if the template prints no end token
  /// there.
  virtual std::optional<int32_t> added_end() const { return std::nullopt; }
  /// Returns the token to add after the last turn. The token is also the label of the first token
  /// of each turn but the first. nullopt: none.
  virtual std::optional<int32_t> last_end() const { return std::nullopt; }
};

/// Returns the tokens that stop generation: the tokens of the model's folder and the tokens of the
/// template.
std::set<int32_t> ends_of(const Tokenizer& tokenizer, const TurnEncoder& encoder);
/// Returns the token that ends the last answer of a conversation: the end token of the template,
/// otherwise the tokenizer's eos_token. nullopt: both are missing. Throws as turns().
std::optional<int32_t> end_of_answers(const Tokenizer& tokenizer, const TurnEncoder& encoder);

/// Returns the first token of `ids` if it is a special token, otherwise nullopt.
std::optional<int32_t> leading_special(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

/// The treatment of thoughts in templates of thinking models (qwen3). A trained answer without
/// thoughts gets empty thoughts.
struct Thinking {
  bool enabled = true;  // false: answers lose their thoughts, and questions end with empty thoughts
  bool last_answer_only = false;  // earlier answers lose their thoughts
  bool marks_last_only = false;   // earlier answers keep their thoughts, and get no empty ones
  bool marks_all() const { return !last_answer_only && !marks_last_only; }
};

/// Makes the encoder of a template of LLaMA-Factory by name (see named_templates). The encoder
/// tokenizes each message separately, as LLaMA-Factory does. `template_time`: the day that some
/// formats of tools print. Throws UserError if the tokenizer lacks one of the template's tokens.
std::unique_ptr<TurnEncoder> make_named_template(const std::string& name,
                                                 const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 const Thinking& thinking,
                                                 const LocalTime& template_time);

std::vector<std::string> named_templates();

/// Variables of the model's own chat_template; one that is not set is not passed, and the template
/// has its own default.
struct TemplateSwitches {
  std::optional<bool> enable_thinking = {};
  bool preserve_thinking = false;  // true: passed
};

/// Makes the encoder of the model's own chat_template. A conversation's tokens are the tokens of
/// transformers' apply_chat_template, plus an end token if the template prints no end token after
/// the last answer. An answer is the text that {% generation %} marks; without such marks, the text
/// between the generation prompt and the token that stops generation. `template_time`: for
/// strftime_now. Throws UserError if the tokenizer has no chat_template.
std::unique_ptr<TurnEncoder> make_model_template(const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 const TemplateSwitches& switches,
                                                 const LocalTime& template_time);

/// Returns the configuration's encoder: of the named template, or, without a named template, of the
/// model's own template.
std::unique_ptr<TurnEncoder> make_turn_encoder(const DataSettings& config, const Stage& stage,
                                               const Tokenizer& tokenizer,
                                               const LocalTime& template_time);

/// Returns the treatment of thoughts in the stage.
Thinking thinking_of(const DataSettings& config, const Stage& stage);

/// Returns the chat settings that are saved with a model trained by the configured template, as in
/// LLaMA-Factory: a chat_template, the end token and a pad token. The chat_template renders the
/// prompts of training, with the same tokens except if a token joins two messages. Keeps the
/// model's own template if it renders the same prompts. Without a named template: returns the
/// answers' end tokens that are missing in the model's files; nullopt if no end token is missing.
std::optional<SavedChat> saved_chat(const DataSettings& config, const Stage& stage,
                                    const Tokenizer& tokenizer, const LocalTime& template_time);

/// Returns the chat settings of `to` that differ from the chat settings of `from`. The result has
/// token ids of `from`. Omits tokens that `from` lacks.
SavedChat chat_that_differs(const Tokenizer& from, const Tokenizer& to);

/// Renders a conversation that ends with a question, like transformers'
/// apply_chat_template(add_generation_prompt=True). `eos_token`: value of eos_token in the
/// template. Throws UserError.
std::string rendered_prompt(const std::string& chat_template, const Tokenizer& tokenizer,
                            const std::optional<std::string>& eos_token,
                            const Conversation& conversation, const LocalTime& template_time);

/// Stage pt: returns the text of the token that ends a text. By LLaMA-Factory's rule, the text ends
/// with the named template's Format::end_of_text (for llama3 <|end_of_text|>), or, if there is
/// none, with the tokenizer's eos_token. Throws UserError if the tokenizer lacks the token.
std::string end_of_text(const std::string& template_name, const Tokenizer& tokenizer);

/// The division of `budget` tokens between a question and an answer (fit_turn). A part of less than
/// half of the budget is not cut; two longer parts are cut in proportion to their lengths. The
/// results are exactly LLaMA-Factory's results.
struct TurnLengths {
  int64_t source, target;
};
TurnLengths fit_turn(int64_t source, int64_t target, int64_t budget);

}  // namespace longspan
