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

/// The form of an answer's function calls: texts before, between and after each call's name and
/// arguments.
struct CallFormat {
  /// Brackets around the list of calls. kNone: never; kOfSeveral: around two or more calls; kAll:
  /// always; kOneCall: never, and an answer may have only one call.
  enum class Brackets { kNone, kOfSeveral, kAll, kOneCall };

  std::string_view before_name, before_arguments, after;
  bool quotes_name = true;   // the name is printed as a JSON string
  std::string_view between;  // between two calls
  Brackets brackets = Brackets::kNone;
  // Texts around each argument's name and value; empty: arguments are one JSON object.
  std::string_view before_key = {}, before_value = {}, after_value = {};
};

/// Places in the texts of a ToolFormat: the day of the run ("28 Nov 2026"), a tool's name, its
/// description, the names of all tools.
inline constexpr std::string_view kDate = "{{date}}", kToolName = "{{name}}",
                                  kToolDescription = "{{description}}", kToolNames = "{{names}}";

/// The description of the tools, which follows the system text: the body of each tool, with these
/// texts before, between and after the tools.
struct ToolFormat {
  /// kOpenAi: JSON in OpenAI's shape; kFunction: JSON of the function alone; kArguments: a line of
  /// text for each argument.
  enum class Body { kOpenAi, kFunction, kArguments };

  std::string_view before;  // may contain kDate
  // Before each tool; may contain kToolName and kToolDescription.
  std::string_view before_each = {};
  std::string_view between = {};
  std::string_view after_each = {};
  std::string_view after = {};  // may contain kToolNames
  Body body = Body::kOpenAi;
  bool indented = false;  // JSON in lines, indented by four blanks
  bool empty() const { return before.empty(); }
  bool has_date() const { return before.find(kDate) != std::string_view::npos; }
};

/// LLaMA-Factory's default.
inline constexpr ToolFormat kActionTools{
    .before = "You have access to the following tools:\n",
    .before_each = "> Tool Name: {{name}}\nTool Description: {{description}}\nTool Args:\n",
    .after_each = "\n",
    .after =
        "Use the following format if using a tool:\n```\nAction: tool name (one of [{{names}}])\n"
        "Action Input: the input to the tool, in a JSON format representing the kwargs (e.g. "
        "```{\"input\": \"hello world\", \"num_beams\": 5}```)\n```\n",
    .body = ToolFormat::Body::kArguments};

/// A slot of a message's frame: text (which may contain {{content}}), or the bos or eos token. Each
/// slot of text is tokenized separately.
struct Slot {
  enum Kind { kText, kBos, kEos } kind;
  std::string_view text = {};
};
using Frame = std::vector<Slot>;

/// The form in which a template prints a video.
enum class VideoForm {
  kNone,    ///< the template takes no pictures
  kNever,   ///< pictures, but no videos
  kWhole,   ///< one picture
  kFrames,  ///< a picture for each temporal patch, after the patch's time
};

struct Format {
  std::string_view name;
  Frame prefix, system, user, assistant, observation;
  std::string_view default_system;
  CallFormat calls;
  std::vector<std::string_view> tokens;  // must be single tokens of the tokenizer
  std::string_view end_of_text = {};     // for pt; empty: the tokenizer's eos_token
  Frame function = {};                   // empty: same as assistant
  ToolFormat tools = kActionTools;       // empty: the template prints no tools
  // Text between several tools' results in one message; empty: the frame takes one result.
  std::string_view between_results = {};
  std::string_view generation = {};  // generation prompt: the end of `user` and `observation`
  // Tokens that end an answer in other programs. If replaces_eos, the first token replaces
  // eos_token.
  std::vector<std::string_view> stop_words = {};
  bool replaces_eos = false;
  bool system_in_question = false;  // the system message is part of the first question's text
  bool thinks = false;              // each trained answer begins with its thoughts
  std::string_view thoughts_begin = kThoughtsBegin, thoughts_close = kThoughtsClose;
  // Only the last answer has an end token. After each earlier answer, the next turn's first token
  // takes the place of the end token, and has the end token as its label. (efficient_eos)
  bool ends_once = false;
  // Warnings to the user. mistake: a model of model_type mistaken_for is a thinking model, for
  // which this template is wrong. without_thoughts: the tokenizer has no tokens for thoughts.
  std::string_view mistaken_for = {}, mistake = {};
  std::string_view without_thoughts = {};
  VideoForm videos = VideoForm::kNone;
  /// Texts that the saved Jinja template prints for a picture and for a video; a processor writes
  /// the rest.
  std::string_view printed_picture = {}, printed_video = {};
};

/// no_thoughts() returns empty thoughts between their two marks. marks_of_thoughts() returns the
/// two marks without white space around the marks.
std::string no_thoughts(const Format& format);
std::vector<std::string> marks_of_thoughts(const Format& format);

/// Returns all templates.
const std::vector<Format>& template_formats();

/// Returns the template of this name. Throws UserError for an unknown name.
const Format& template_format(const std::string& name);

}  // namespace longspan
