#include "longspan/data/jinja_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>
#include <vector>

namespace longspan {

namespace {

/// Returns the text as a Jinja string literal.
std::string jinja_text(std::string_view text) {
  std::string literal = "'";
  for (const char c : text) {
    if (c == '\n') {
      literal += "\\n";
    } else if (c == '\'' || c == '\\') {
      literal += {'\\', c};
    } else {
      literal += c;
    }
  }
  return literal + "'";
}

/// Roles of messages with a tool's result.
constexpr std::string_view kToolRoles = "['tool', 'observation']";

/// Writes a format as a Jinja template: expressions and statements without white space between
/// them.
class JinjaWriter {
 public:
  JinjaWriter(const Format& format, std::string bos, std::string eos, std::string default_system,
              const Thinking& thinking)
      : format_(format),
        bos_(std::move(bos)),
        eos_(std::move(eos)),
        default_system_(std::move(default_system)),
        thinking_(thinking) {}

  std::string text() {
    begin();
    line("for message in turns");
    line("if message['role'] == 'user'");
    question();
    line(fmt::format("elif message['role'] in {}", kToolRoles));
    results();
    line("elif message['role'] == 'assistant'");
    answer();
    line("else");
    print("raise_exception('the chat template knows no role ' + message['role'])");
    line("endif");
    line("endfor");
    return text_;
  }

 private:
  void line(std::string_view statement) {
    text_ += fmt::format("{}{{%- {} -%}}", text_.empty() ? "" : "\n", statement);
  }
  void print(const std::string& expression) {
    if (!expression.empty()) text_ += fmt::format("\n{{{{- {} -}}}}", expression);
  }

  /// Returns a frame as an expression, without its ending. `content` is the expression of its text.
  std::string expression(const Frame& frame, const std::string& content,
                         std::string_view ending = {}) const {
    std::vector<std::string> parts;
    const auto add = [&parts](std::string_view text) {
      if (!text.empty()) parts.push_back(jinja_text(text));
    };
    for (size_t i = 0; i < frame.size(); ++i) {
      if (frame[i].kind != Slot::kText) {
        add(frame[i].kind == Slot::kBos ? bos_ : eos_);
        continue;
      }
      std::string_view slot_text = frame[i].text;
      if (i + 1 == frame.size()) slot_text.remove_suffix(ending.size());
      const size_t at = slot_text.find(kContent);
      add(slot_text.substr(0, at));
      if (at == std::string_view::npos) continue;
      parts.push_back(content);
      add(slot_text.substr(at + kContent.size()));
    }
    return fmt::format("{}", fmt::join(parts, " + "));
  }

  void begin() {
    line(fmt::format("set system_message = {}", jinja_text(default_system_)));
    line("set turns = messages");
    line("if messages and messages[0]['role'] == 'system'");
    line("set turns = messages[1:]");
    line("if messages[0]['content']");
    line("set system_message = messages[0]['content']");
    line("endif");
    line("endif");
    tools();
    print(expression(format_.prefix, ""));
    line("set results = namespace(text='')");
    if (format_.system_in_question) return;
    line("if system_message");
    print(expression(format_.system, "system_message"));
    line("endif");
  }

  /// As written_tool_list().
  void tools() {
    line("if tools");
    const ToolFormat& format = format_.tools;
    if (format.empty()) {
      print(fmt::format("raise_exception('template {} prints no tools')", format_.name));
    } else {
      line(fmt::format("set listed = namespace(text={}, names='')",
                       with_parts(format.before, {{kDate, "strftime_now('%d %b %Y')"}})));
      line("for tool in tools");
      line("set function = tool['function'] or tool");
      add_to_tools(
          with_parts(format.before_each, {{kToolName, "function['name']"},
                                          {kToolDescription, "(function['description'] or '')"}}));
      tool_body(format);
      add_to_tools(jinja_text(format.after_each));
      line("if not loop.last");
      add_to_tools(jinja_text(format.between));
      line("endif");
      line("set listed.names = listed.names + (', ' if listed.names else '') + function['name']");
      line("endfor");
      line(fmt::format("set system_message = system_message + listed.text + {}",
                       with_parts(format.after, {{kToolNames, "listed.names"}})));
    }
    line("endif");
  }

  void add_to_tools(const std::string& expression) {
    if (expression == "''") return;
    line(fmt::format("set listed.text = listed.text + {}", expression));
  }

  void tool_body(const ToolFormat& format) {
    if (format.body != ToolFormat::Body::kArguments) {
      const bool alone = format.body == ToolFormat::Body::kFunction;
      return add_to_tools(fmt::format("({} | tojson{})", alone ? "function" : "tool",
                                      format.indented ? "(indent=4)" : ""));
    }
    line("for name, argument in function['parameters']['properties'].items()");
    line("set needed = name in (function['parameters']['required'] or [])");
    add_to_tools(
        "'  - ' + name + ' (' + (argument['type'] or '') + (', required' if needed else '') + "
        "'): ' + (argument['description'] or '')");
    line("if argument['enum']");
    add_to_tools("', should be one of [' + (argument['enum'] | join(', ')) + ']'");
    line("endif");
    // A subscript of a missing key is the dictionary's method of that name.
    line("if 'items' in argument and argument['items']");
    add_to_tools("', where each item should be ' + (argument['items']['type'] or '')");
    line("endif");
    add_to_tools("'\\n'");
    line("endfor");
  }

  using Parts = std::vector<std::pair<std::string_view, std::string_view>>;

  /// Returns a text as an expression, with expressions in its places.
  static std::string with_parts(std::string_view text, const Parts& parts) {
    for (const auto& [place, expression] : parts) {
      const size_t at = text.find(place);
      if (at == std::string_view::npos) continue;
      return fmt::format("{} + {} + {}", jinja_text(text.substr(0, at)), expression,
                         with_parts(text.substr(at + place.size()), parts));
    }
    return jinja_text(text);
  }

  void question() {
    set_content();
    if (format_.system_in_question) {
      line("if loop.first and system_message");
      line(fmt::format("set content = {} + content", expression(format_.system, "system_message")));
      line("endif");
    }
    asked(format_.user);
  }

  /// Consecutive results of tools form one question.
  void results() {
    set_content();
    line("set results.text = results.text + content");
    line(fmt::format("if not loop.last and turns[loop.index]['role'] in {}", kToolRoles));
    if (format_.between_results.empty()) {
      print(fmt::format("raise_exception('template {} has no place for several results in a row')",
                        format_.name));
    } else {
      line(
          fmt::format("set results.text = results.text + {}", jinja_text(format_.between_results)));
    }
    line("else");
    line("set content = results.text");
    line("set results.text = ''");
    asked(format_.observation);
    line("endif");
  }

  void asked(const Frame& frame) {
    print(expression(frame, "content", format_.generation));
    // The text that asks for an answer is printed where an answer follows or is to be generated.
    if (!format_.generation.empty()) {
      line(
          "if add_generation_prompt and loop.last or not loop.last and "
          "turns[loop.index]['role'] == 'assistant'");
      print(jinja_text(format_.generation));
      line("endif");
    }
    if (!format_.thinks) return;
    line(fmt::format("if loop.last and add_generation_prompt and {}",
                     thinking_.enabled ? "enable_thinking is defined and not enable_thinking"
                                       : "not (enable_thinking is defined and enable_thinking)"));
    print(jinja_text(no_thoughts(format_)));
    line("endif");
  }

  /// As NamedTemplate::append_answer: removes thoughts, and adds empty ones.
  void answer() {
    set_content();
    line("set written = namespace(calls='')");
    thoughts();
    if (format_.thinks) {
      line("set is_last = loop.last");
      const bool strips_all = !thinking_.enabled;
      if (strips_all || thinking_.last_answer_only) {
        if (!strips_all) line("if not is_last");
        strip_thoughts();
        if (!strips_all) line("endif");
      }
      const std::vector<std::string> marks = marks_of_thoughts(format_);
      line(fmt::format("set thinks_nothing = {}{} not in content and {} not in content",
                       thinking_.marks_all() ? "" : "is_last and ", jinja_text(marks[0]),
                       jinja_text(marks[1])));
    }
    line("if message['tool_calls']");
    calls();
    // The end of thoughts is already a line break.
    line(fmt::format("if content{}",
                     format_.thinks
                         ? fmt::format(" and content[-{}:] != {}", format_.thoughts_close.size(),
                                       jinja_text(format_.thoughts_close))
                         : ""));
    line("set content = content + '\\n'");
    line("endif");
    line("set content = content + written.calls");
    line("endif");
    if (format_.thinks) {
      line("if thinks_nothing");
      print(jinja_text(no_thoughts(format_)));
      line("endif");
    }
    if (format_.function.empty()) {
      print(expression(format_.assistant, "content"));
      return;
    }
    line("if message['tool_calls']");
    print(expression(format_.function, "content"));
    line("else");
    print(expression(format_.assistant, "content"));
    line("endif");
  }

  /// As NamedTemplate::with_thoughts.
  void thoughts() {
    line("if message['reasoning_content']");
    if (format_.thinks) {
      const std::vector<std::string> marks = marks_of_thoughts(format_);
      line(fmt::format("if {} not in content and {} not in content", jinja_text(marks[0]),
                       jinja_text(marks[1])));
      line(fmt::format("set content = {} + message['reasoning_content'] + {} + content",
                       jinja_text(format_.thoughts_begin), jinja_text(format_.thoughts_close)));
      line(fmt::format("elif not content.startswith({} + message['reasoning_content'] + {})",
                       jinja_text(format_.thoughts_begin), jinja_text(format_.thoughts_close)));
      print("raise_exception('an answer has thoughts in its text and other ones beside it')");
      line("endif");
    } else {
      print(fmt::format("raise_exception('template {} has no place for thoughts')", format_.name));
    }
    line("endif");
  }

  /// A message with only calls may have no content; one with pictures may be a list of parts.
  void set_content() {
    line("set content = message['content'] or ''");
    if (format_.videos == VideoForm::kNone) return;
    // A processor repeats the tokens in the middle, and stamps the frames of videos.
    line("if content is not string");
    line("set whole = namespace(text='')");
    line("for part in content");
    line("if part['type'] in ['image', 'image_url']");
    line(fmt::format("set whole.text = whole.text + {}", jinja_text(format_.printed_picture)));
    if (!format_.printed_video.empty()) {
      line("elif part['type'] == 'video'");
      line(fmt::format("set whole.text = whole.text + {}", jinja_text(format_.printed_video)));
    }
    line("else");
    line("set whole.text = whole.text + part['text']");
    line("endif");
    line("endfor");
    line("set content = whole.text");
    line("endif");
  }

  /// Sets written.calls from message['tool_calls'], in the form of training (NamedTemplate).
  void calls() {
    line("for call in message['tool_calls']");
    line("set function = call['function'] or call");
    line("set arguments = function['arguments']");
    const CallFormat& format = format_.calls;
    if (format.brackets == CallFormat::Brackets::kOneCall) {
      line("if not loop.first");
      print("raise_exception('the chat template writes one function call to an answer')");
      line("endif");
    }
    if (format.before_key.empty()) {
      line("if arguments is not string");
      line("set arguments = arguments | tojson");
      line("endif");
    } else {
      write_each_argument(format);
    }
    const std::string after =
        format.after.empty() ? "" : fmt::format(" + {}", jinja_text(format.after));
    line("if not loop.first");
    line(fmt::format("set written.calls = written.calls + {}", jinja_text(format.between)));
    line("endif");
    line(fmt::format(
        "set written.calls = written.calls + {} + function['name']{} + {} + arguments{}",
        jinja_text(format.before_name), format.quotes_name ? " | tojson" : "",
        jinja_text(format.before_arguments), after));
    line("endfor");
    using enum CallFormat::Brackets;
    if (format.brackets == kNone || format.brackets == kOneCall) return;
    const bool only_several = format.brackets == kOfSeveral;
    if (only_several) line("if message['tool_calls'] | length > 1");
    line("set written.calls = '[' + written.calls + ']'");
    if (only_several) line("endif");
  }

  void write_each_argument(const CallFormat& format) {
    line("if arguments is string");
    print("raise_exception('the arguments of a function call must be an object, not text')");
    line("endif");
    line("set each = namespace(text='')");
    line("for key, value in arguments.items()");
    line("if value is not string");
    line("set value = value | tojson");
    line("endif");
    line(fmt::format("set each.text = each.text + {} + key + {} + value + {}",
                     jinja_text(format.before_key), jinja_text(format.before_value),
                     jinja_text(format.after_value)));
    line("endfor");
    line("set arguments = each.text");
  }

  void strip_thoughts() {
    const std::string open = jinja_text(format_.thoughts_begin),
                      close = jinja_text(format_.thoughts_close);
    line("set kept = namespace(text='')");
    line(fmt::format("for part in content.split({})", close));
    line("if loop.last");
    line("set kept.text = kept.text + part");
    line(fmt::format("elif {} in part", open));
    line(fmt::format("set kept.text = kept.text + part.split({})[0]", open));
    line("else");
    line(fmt::format("set kept.text = kept.text + part + {}", close));
    line("endif");
    line("endfor");
    line("set content = kept.text.lstrip('\\n')");
  }

  const Format& format_;
  std::string bos_, eos_, default_system_;
  Thinking thinking_;
  std::string text_;
};

}  // namespace

std::string jinja_template(const Format& format, const std::string& bos, const std::string& eos,
                           const std::string& default_system, const Thinking& thinking) {
  return JinjaWriter(format, bos, eos, default_system, thinking).text();
}

}  // namespace longspan
