// LLaMA-Factory's templates by name; formats as of its release 0.9.5. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

inline constexpr std::string_view kContent = "{{content}}";

/// What marks thoughts before an answer.
inline constexpr std::string_view kThoughts = "<think>", kThoughtsEnd = "</think>";
inline constexpr std::string_view kThoughtsBegin = "<think>\n", kThoughtsClose = "\n</think>\n\n";

/// How the function calls of an answer are written: each one's name and arguments between these
/// texts.
struct CallFormat {
  /// Which lists of calls have brackets around them; or are there none, but only one call?
  enum class Brackets { kNone, kOfSeveral, kAll, kOneCall };

  std::string_view before_name, before_arguments, after;
  bool quotes_name = true;   // the name is a JSON string
  std::string_view between;  // two calls
  Brackets brackets = Brackets::kNone;
  // Around each argument's name, and between it and its value; empty: arguments are one JSON
  // object.
  std::string_view before_key = {}, before_value = {}, after_value = {};
};

/// How tools are told to the model: behind the system text, a JSON of each.
struct ToolFormat {
  std::string_view before, before_each, between, after;
  bool empty() const { return before.empty(); }
};

/// A message's frame: text (with {{content}} in it), or "eos"/"bos" for those tokens. Every piece
/// of text is tokenized for itself.
struct Piece {
  enum Kind { kText, kBos, kEos } kind;
  std::string_view text = {};
};
using Frame = std::vector<Piece>;

struct Format {
  std::string_view name;
  Frame prefix, system, user, assistant, observation;
  std::string_view default_system;
  CallFormat calls;
  std::vector<std::string_view> tokens;  // that the tokenizer must know as one token each
  std::string_view end_of_text = {};     // stage pt; empty: the tokenizer's eos_token
  Frame function = {};                   // empty: that of the assistant
  ToolFormat tools = {};                 // empty: the template prints no tools
  // Between the results of several tools in one message; empty: the frame holds no more than one.
  std::string_view between_results = {};
  std::string_view generation = {};  // how user and observation end: what asks for an answer
  // What ends an answer where others generate. The first takes eos_token's place if replaces_eos.
  std::vector<std::string_view> stop_words = {};
  bool replaces_eos = false;
  bool system_in_question = false;  // the system message is part of the first question's text
  bool thinks = false;              // each trained answer begins with its thoughts
  std::string_view thoughts_begin = kThoughtsBegin, thoughts_close = kThoughtsClose;
  // An end token follows the last answer alone. That the next turn's first token stands in its
  // place after the others is trained there, with the end token as its label. (efficient_eos)
  bool ends_once = false;
  // What a user is told who takes it for a model that thinks, of this model_type, by mistake; and
  // who takes it for one whose tokenizer has no thoughts.
  std::string_view mistaken_for = {}, mistake = {};
  std::string_view without_thoughts = {};
};

/// Empty thoughts; and the two marks without white space around them.
std::string no_thoughts(const Format& format);
std::vector<std::string> marks_of_thoughts(const Format& format);

/// All of them.
const std::vector<Format>& template_formats();

/// Throws UserError when there is none of this name.
const Format& template_format(const std::string& name);

}  // namespace longspan
