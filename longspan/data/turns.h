// Conversations as question and answer pairs of token ids. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/ignore_label.h"
#include "longspan/text/moment.h"
#include "longspan/text/saved_chat.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// One question with its answer. `target_labels` is `target`, or kIgnoreLabel where the answer is
/// not to be trained (a tail of the conversation without an answer).
struct Turn {
  std::vector<int32_t> source, target, target_labels;
  bool is_trained = true;      // false: the row asks for no labels of the answer
  bool lost_thoughts = false;  // the template leaves the answer's thoughts out
  bool added_end = false;      // the last token is not of the template
};
/// Is the last label, white space aside, one of these tokens? True where nothing is labelled.
bool has_end(const Turn& turn, const std::set<int32_t>& ends, const Tokenizer& tokenizer);

/// How a conversation becomes tokens.
class TurnEncoder {
 public:
  virtual ~TurnEncoder() = default;
  /// Laid one after the other, the turns are the whole conversation. Throws UserError naming the
  /// conversation's source.
  virtual std::vector<Turn> turns(const Conversation& conversation) const = 0;
  /// The tokens of a conversation that ends with a question, and of what opens its answer. Throws
  /// UserError as above.
  virtual std::vector<int32_t> question(const Conversation& conversation) const = 0;
  /// The tokens that end an answer: the one that the template writes behind it, or the markers of
  /// the next message where it writes none. Empty where these are no special tokens.
  virtual std::vector<int32_t> turn_ends() const = 0;
  /// The token that is added behind the last answer of a template that writes nothing there.
  virtual std::optional<int32_t> added_end() const { return std::nullopt; }
  /// A token that is to be added after the last turn, and is the label of the first token of each
  /// turn but the first; nullopt: none.
  virtual std::optional<int32_t> last_end() const { return std::nullopt; }
};

/// The tokens by which generation stops: those of the model's folder and those of the template.
std::set<int32_t> ends_of(const Tokenizer& tokenizer, const TurnEncoder& encoder);

/// The first of these tokens, if it is a special one.
std::optional<int32_t> leading_special(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

/// How templates of models that think before they answer (qwen3) treat thoughts. A trained answer
/// without thoughts gets empty ones.
struct Thinking {
  bool enabled = true;  // else thoughts are removed, and empty ones belong to the question
  bool last_answer_only = false;  // the answers before it lose their thoughts
};

/// A template of LLaMA-Factory's by its name (see named_templates). Each message is tokenized for
/// itself, as LLaMA-Factory does. Throws UserError when the tokenizer lacks one of the template's
/// tokens.
std::unique_ptr<TurnEncoder> make_named_template(const std::string& name,
                                                 const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 const Thinking& thinking);

std::vector<std::string> named_templates();

/// The model's own chat_template. The tokens of a conversation are those of transformers'
/// apply_chat_template; where it writes nothing behind the last answer, an end token is added. An
/// answer is what {% generation %} marks, where the template does; otherwise it lies between the
/// generation prompt and the token by which generation stops. `moment`: of its strftime_now.
/// Throws UserError when the tokenizer has no chat_template.
std::unique_ptr<TurnEncoder> make_model_template(const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 bool enable_thinking, const Moment& moment);

/// The encoder that the configuration asks for: of its named template, else of the model's own.
std::unique_ptr<TurnEncoder> make_turn_encoder(const DataSettings& config, const Stage& stage,
                                               const Tokenizer& tokenizer, const Moment& moment);

/// How the stage trains thoughts.
Thinking thinking_of(const DataSettings& config, const Stage& stage);

/// What a model that is trained by the configuration's named template needs beside its weights, as
/// LLaMA-Factory saves it: a chat_template that gives the prompts of training (token for token, as
/// far as no token would join two messages), the end token, a pad token. The model's own template
/// stays where it gives the same prompts. Without a named template: the tokens that end an answer
/// and that the model's files do not name; nullopt where there are none.
std::optional<SavedChat> saved_chat(const DataSettings& config, const Stage& stage,
                                    const Tokenizer& tokenizer, const Moment& moment);

/// What one tokenizer says of chats that the other does not, in tokens that both have.
SavedChat chat_that_differs(const Tokenizer& from, const Tokenizer& to);

/// What transformers' apply_chat_template(add_generation_prompt=True) renders of a conversation
/// that ends with a question; `eos_token` is the tokenizer's then. Throws UserError.
std::string rendered_prompt(const std::string& chat_template, const Tokenizer& tokenizer,
                            const std::optional<std::string>& eos_token,
                            const Conversation& conversation, const Moment& moment);

/// Stage pt: the token that ends a text, as text. LLaMA-Factory's rule: the one that ends a turn of
/// the named template (for llama3 <|end_of_text|> instead), else the tokenizer's eos_token. Throws
/// UserError when the tokenizer does not have it.
std::string end_of_text(const std::string& template_name, const Tokenizer& tokenizer);

/// Shares `budget` tokens between a question and an answer: neither is cut while the other, cut,
/// leaves it room; two long ones are cut in proportion. Returns the two lengths. (LLaMA-Factory's
/// rule; its results are reproduced exactly.)
struct TurnLengths {
  int64_t source, target;
};
TurnLengths fit_turn(int64_t source, int64_t target, int64_t budget);

}  // namespace longspan
