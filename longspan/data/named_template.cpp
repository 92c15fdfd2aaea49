// LLaMA-Factory's templates by name; formats as of its release 0.9.5.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "longspan/config/user_error.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/turns.h"

namespace longspan {

namespace {

constexpr std::string_view kContent = "{{content}}";

// How function calls are written.
enum class CallStyle { kActions, kQwen, kLlama3 };

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
  CallStyle calls;
  std::vector<std::string_view> tokens;  // that the tokenizer must know as one token each
};

Frame text(std::string_view frame) { return {{Piece::kText, frame}}; }

const std::vector<Format>& formats() {
  static const Frame chatml_system = text("<|im_start|>system\n{{content}}<|im_end|>\n");
  static const Frame chatml_user =
      text("<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n");
  static const Frame chatml_assistant = text("{{content}}<|im_end|>\n");
  static const std::vector<Format> all = {
      {.name = "qwen",
       .prefix = {},
       .system = chatml_system,
       .user = chatml_user,
       .assistant = chatml_assistant,
       .observation = text("<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response>"
                           "<|im_end|>\n<|im_start|>assistant\n"),
       .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
       .calls = CallStyle::kQwen,
       .tokens = {"<|im_start|>", "<|im_end|>"}},
      {.name = "llama3",
       .prefix = {{Piece::kBos}},
       .system = text("<|start_header_id|>system<|end_header_id|>\n\n{{content}}<|eot_id|>"),
       .user = text("<|start_header_id|>user<|end_header_id|>\n\n{{content}}<|eot_id|>"
                    "<|start_header_id|>assistant<|end_header_id|>\n\n"),
       .assistant = text("{{content}}<|eot_id|>"),
       .observation = text("<|start_header_id|>ipython<|end_header_id|>\n\n{{content}}<|eot_id|>"
                           "<|start_header_id|>assistant<|end_header_id|>\n\n"),
       .default_system = "",
       .calls = CallStyle::kLlama3,
       .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {.name = "chatml",
       .prefix = {},
       .system = chatml_system,
       .user = chatml_user,
       .assistant = chatml_assistant,
       .observation = text("<|im_start|>tool\n{{content}}<|im_end|>\n<|im_start|>assistant\n"),
       .default_system = "",
       .calls = CallStyle::kActions,
       .tokens = {"<|im_start|>", "<|im_end|>"}},
      {.name = "default",
       .prefix = {},
       .system = {{Piece::kText, "System: {{content}}"}, {Piece::kEos}, {Piece::kText, "\n"}},
       .user = {{Piece::kText, "Human: {{content}}"},
                {Piece::kEos},
                {Piece::kText, "\nAssistant:"}},
       .assistant = {{Piece::kText, "{{content}}"}, {Piece::kEos}, {Piece::kText, "\n"}},
       .observation = {{Piece::kText, "Human: {{content}}"},
                       {Piece::kEos},
                       {Piece::kText, "\nAssistant:"}},
       .default_system = "",
       .calls = CallStyle::kActions,
       .tokens = {}},
  };
  return all;
}

std::string written_calls(CallStyle style, const std::vector<FunctionCall>& calls) {
  std::vector<std::string> lines;
  for (const FunctionCall& call : calls) {
    const std::string name = python_json_string(call.name);
    switch (style) {
      case CallStyle::kActions:
        lines.push_back(fmt::format("Action: {}\nAction Input: {}", call.name, call.arguments));
        break;
      case CallStyle::kQwen:
        lines.push_back(
            fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>", name,
                        call.arguments));
        break;
      case CallStyle::kLlama3:
        lines.push_back(fmt::format("{{\"name\": {}, \"parameters\": {}}}", name, call.arguments));
        break;
    }
  }
  if (style != CallStyle::kLlama3) return fmt::format("{}", fmt::join(lines, "\n"));
  return lines.size() == 1 ? lines[0] : fmt::format("[{}]", fmt::join(lines, ", "));
}

class NamedTemplate : public TurnEncoder {
 public:
  NamedTemplate(const Format& format, const Tokenizer& tokenizer,
                const std::optional<std::string>& default_system)
      : format_(format),
        tokenizer_(tokenizer),
        default_system_(default_system.value_or(std::string(format.default_system))) {
    for (std::string_view token : format.tokens) {
      if (!tokenizer.id_of(token)) {
        throw UserError(fmt::format(
            "template {}: the model's tokenizer has no token {}. Use the template that the model "
            "was made with, or leave template out to use the model's own chat_template.",
            format.name, token));
      }
    }
    if (tokenizer.bos_token()) bos_ = tokenizer.id_of(*tokenizer.bos_token());
    if (tokenizer.eos_token()) eos_ = tokenizer.id_of(*tokenizer.eos_token());
    const bool needs_eos =
        std::ranges::find(format.assistant, Piece::kEos, &Piece::kind) != format.assistant.end();
    if (needs_eos && !eos_) {
      throw UserError(fmt::format(
          "template {}: the model's tokenizer_config.json names no eos_token, which ends each turn",
          format.name));
    }
  }

  std::vector<Turn> turns(const Conversation& conversation) const override {
    auto message = conversation.messages.begin();
    const auto end = conversation.messages.end();
    std::string system = default_system_;
    if (message != end && message->role == "system") {
      if (!message->content.empty()) system = message->content;
      ++message;
    }
    std::vector<Turn> turns;
    for (; message != end; message += 2) {
      Turn turn;
      if (turns.empty()) {
        append(format_.prefix, "", turn.source);
        if (!system.empty()) append(format_.system, system, turn.source);
      }
      append(message->role == "observation" ? format_.observation : format_.user, message->content,
             turn.source);
      const Message& answer = message[1];
      append(format_.assistant,
             answer.role == "function"
                 ? written_calls(format_.calls,
                                 parse_function_calls(answer.content, conversation.source))
                 : answer.content,
             turn.target);
      turn.target_labels = turn.target;
      turns.push_back(std::move(turn));
    }
    return turns;
  }

 private:
  void append(const Frame& frame, const std::string& content, std::vector<int32_t>& ids) const {
    for (const Piece& piece : frame) {
      if (piece.kind != Piece::kText) {
        const std::optional<int32_t>& token = piece.kind == Piece::kBos ? bos_ : eos_;
        if (token) ids.push_back(*token);
        continue;
      }
      std::string text(piece.text);
      if (const size_t at = text.find(kContent); at != std::string::npos) {
        text.replace(at, kContent.size(), content);
      }
      const std::vector<int32_t> encoded = tokenizer_.encode(text);
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    }
  }

  const Format& format_;
  Tokenizer tokenizer_;
  std::string default_system_;
  std::optional<int32_t> bos_, eos_;
};

}  // namespace

std::vector<std::string> named_templates() {
  std::vector<std::string> names;
  for (const Format& format : formats()) names.emplace_back(format.name);
  return names;
}

std::unique_ptr<TurnEncoder> make_named_template(const std::string& name,
                                                 const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system) {
  const auto format = std::ranges::find(formats(), name, &Format::name);
  if (format == formats().end()) {
    throw UserError(fmt::format("there is no template {}; there are: {}", name,
                                fmt::join(named_templates(), ", ")));
  }
  return std::make_unique<NamedTemplate>(*format, tokenizer, default_system);
}

}  // namespace longspan
