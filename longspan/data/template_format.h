// LLaMA-Factory's templates by name, in the formats of its release 0.9.5. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

inline constexpr std::string_view kContent = "{{content}}";

/// Marks around the thoughts before an answer.
inline constexpr std::string_view kThoughts = "<think>", kThoughtsEnd = "</think>";
inline constexpr std::string_view kThoughtsBegin = "<think>\n", kThoughtsClose = "\n</think>\n\n";

/// The text of an answer's function calls: each call's name and arguments between these texts.
struct CallFormat {
  /// Brackets around lists of calls: around no list, lists of several calls, all lists; or only one
  /// call is allowed.
  enum class Brackets { kNone, kOfSeveral, kAll, kOneCall };

  std::string_view before_name, before_arguments, after;
  bool quotes_name = true;   // as a JSON string
  std::string_view between;  // between two calls
  Brackets brackets = Brackets::kNone;
  // Texts around each argument's name and value; empty: arguments are one JSON object.
  std::string_view before_key = {}, before_value = {}, after_value = {};
};

/// The text that tells the model its tools, after the system text: JSON of each tool between these.
struct ToolFormat {
  std::string_view before, before_each, between, after;
  bool empty() const { return before.empty(); }
};

/// A slot of a message's frame: text (which may hold {{content}}), or the bos or eos token. Each
/// slot of text is tokenized separately.
struct Slot {
  enum Kind { kText, kBos, kEos } kind;
  std::string_view text = {};
};
using Frame = std::vector<Slot>;

/// How a template writes a video.
enum class VideoForm {
  kNone,    ///< the template takes no pictures
  kNever,   ///< pictures, but no videos
  kWhole,   ///< as one picture
  kFrames,  ///< a picture for each temporal patch, after its time
};

struct Format {
  std::string_view name;
  Frame prefix, system, user, assistant, observation;
  std::string_view default_system;
  CallFormat calls;
  std::vector<std::string_view> tokens;  // must be single tokens of the tokenizer
  std::string_view end_of_text = {};     // for stage pt; empty: the tokenizer's eos_token
  Frame function = {};                   // empty: same as assistant
  ToolFormat tools = {};                 // empty: the template prints no tools
  // Text between several tools' results in one message; empty: the frame holds one result.
  std::string_view between_results = {};
  std::string_view generation = {};  // end of user and observation, which asks for an answer
  // Tokens that end an answer in other programs. The first replaces eos_token where replaces_eos.
  std::vector<std::string_view> stop_words = {};
  bool replaces_eos = false;
  bool system_in_question = false;  // the system message is part of the first question's text
  bool thinks = false;              // each trained answer begins with its thoughts
  std::string_view thoughts_begin = kThoughtsBegin, thoughts_close = kThoughtsClose;
  // Only the last answer has an end token. After each earlier answer, the next turn's first token
  // stands in its place, and its label is the end token. (efficient_eos)
  bool ends_once = false;
  // Warnings to the user: of a template chosen by mistake for a thinking model of this model_type,
  // and of a tokenizer without tokens for thoughts.
  std::string_view mistaken_for = {}, mistake = {};
  std::string_view without_thoughts = {};
  VideoForm videos = VideoForm::kNone;
  /// What the saved Jinja template prints for a picture and for a video; a processor writes the
  /// rest.
  std::string_view printed_picture = {}, printed_video = {};
};

/// Returns empty thoughts; and the two marks without white space around them.
std::string no_thoughts(const Format& format);
std::vector<std::string> marks_of_thoughts(const Format& format);

/// Returns all templates.
const std::vector<Format>& template_formats();

/// Returns the template of this name. Throws UserError for an unknown name.
const Format& template_format(const std::string& name);

}  // namespace longspan
