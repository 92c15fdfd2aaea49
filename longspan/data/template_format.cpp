#include "longspan/data/template_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "longspan/config/user_error.h"
#include "longspan/data/turns.h"

namespace longspan {

namespace {

constexpr std::string_view kChatmlGeneration = "<|im_start|>assistant\n";

constexpr CallFormat kActionCalls{.before_name = "Action: ",
                                  .before_arguments = "\nAction Input: ",
                                  .after = "",
                                  .quotes_name = false,
                                  .between = "\n"};
constexpr CallFormat kQwenCalls{.before_name = "<tool_call>\n{\"name\": ",
                                .before_arguments = ", \"arguments\": ",
                                .after = "}\n</tool_call>",
                                .between = "\n"};
constexpr CallFormat kLlama3Calls{.before_name = "{\"name\": ",
                                  .before_arguments = ", \"parameters\": ",
                                  .after = "}",
                                  .between = ", ",
                                  .brackets = CallFormat::Brackets::kOfSeveral};
constexpr CallFormat kMistralCalls{.before_name = "{\"name\": ",
                                   .before_arguments = ", \"arguments\": ",
                                   .after = "}",
                                   .between = ", ",
                                   .brackets = CallFormat::Brackets::kAll};

constexpr ToolFormat kQwenTools{
    .before =
        "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
    .before_each = "\n",
    .between = "",
    .after =
        "\n</tools>\n\nFor each function call, return a json object with function name and "
        "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
        "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>"};
constexpr ToolFormat kMistralTools{.before = "[AVAILABLE_TOOLS] [",
                                   .before_each = "",
                                   .between = ", ",
                                   .after = "][/AVAILABLE_TOOLS]"};
constexpr std::string_view kBetweenQwenResults = "\n</tool_response>\n<tool_response>\n";

Frame text(std::string_view frame) { return {{Piece::kText, frame}}; }

}  // namespace

const std::vector<Format>& template_formats() {
  static const Frame chatml_system = text("<|im_start|>system\n{{content}}<|im_end|>\n");
  static const Frame chatml_user =
      text("<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n");
  static const Frame chatml_assistant = text("{{content}}<|im_end|>\n");
  static const Frame qwen_observation = text(
      "<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n");
  static const std::vector<Format> all = {
      {.name = "qwen",
       .prefix = {},
       .system = chatml_system,
       .user = chatml_user,
       .assistant = chatml_assistant,
       .observation = qwen_observation,
       .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
       .calls = kQwenCalls,
       .tokens = {"<|im_start|>", "<|im_end|>"},
       .end_of_text = "<|im_end|>",
       .tools = kQwenTools,
       .between_results = kBetweenQwenResults,
       .generation = kChatmlGeneration,
       .stop_words = {"<|im_end|>"},
       .replaces_eos = true,
       .mistaken_for = "qwen3",
       .mistake =
           "template: qwen is that of Qwen2.5, with its system message; the model is a "
           "Qwen3. Its templates are qwen3 (answers begin with thoughts, if only empty ones) "
           "and qwen3_nothink (the models without thoughts)."},
      {.name = "qwen3",
       .prefix = {},
       .system = chatml_system,
       .user = chatml_user,
       .assistant = chatml_assistant,
       .observation = qwen_observation,
       .default_system = "",
       .calls = kQwenCalls,
       .tokens = {"<|im_start|>", "<|im_end|>"},
       .end_of_text = "<|im_end|>",
       .tools = kQwenTools,
       .between_results = kBetweenQwenResults,
       .generation = kChatmlGeneration,
       .stop_words = {"<|im_end|>"},
       .replaces_eos = true,
       .thinks = true,
       .without_thoughts =
           "template: qwen3 sets thoughts before each answer, and the tokenizer of this model has "
           "no <think>: take qwen3_nothink for a model that does not think."},
      {.name = "qwen3_nothink",
       .prefix = {},
       .system = chatml_system,
       .user = chatml_user,
       .assistant = chatml_assistant,
       .observation = qwen_observation,
       .default_system = "",
       .calls = kQwenCalls,
       .tokens = {"<|im_start|>", "<|im_end|>"},
       .end_of_text = "<|im_end|>",
       .tools = kQwenTools,
       .between_results = kBetweenQwenResults,
       .generation = kChatmlGeneration,
       .stop_words = {"<|im_end|>"},
       .replaces_eos = true},
      {.name = "llama3",
       .prefix = {{Piece::kBos}},
       .system = text("<|start_header_id|>system<|end_header_id|>\n\n{{content}}<|eot_id|>"),
       .user = text("<|start_header_id|>user<|end_header_id|>\n\n{{content}}<|eot_id|>"
                    "<|start_header_id|>assistant<|end_header_id|>\n\n"),
       .assistant = text("{{content}}<|eot_id|>"),
       .observation = text("<|start_header_id|>ipython<|end_header_id|>\n\n{{content}}<|eot_id|>"
                           "<|start_header_id|>assistant<|end_header_id|>\n\n"),
       .default_system = "",
       .calls = kLlama3Calls,
       .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       .end_of_text = "<|end_of_text|>",
       .between_results = "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n",
       .generation = "<|start_header_id|>assistant<|end_header_id|>\n\n",
       .stop_words = {"<|eot_id|>", "<|eom_id|>"},
       .replaces_eos = true},
      {.name = "mistral",
       .prefix = {{Piece::kBos}},
       .system = text("{{content}}\n\n"),
       .user = text("[INST] {{content}}[/INST]"),
       .assistant = {{Piece::kText, " {{content}}"}, {Piece::kEos}},
       .observation = text("[TOOL_RESULTS] {\"content\": {{content}}}[/TOOL_RESULTS]"),
       .default_system = "",
       .calls = kMistralCalls,
       .tokens = {},
       .function = {{Piece::kText, "[TOOL_CALLS] {{content}}"}, {Piece::kEos}},
       .tools = kMistralTools,
       .between_results = "}[/TOOL_RESULTS][TOOL_RESULTS] {\"content\": ",
       .system_in_question = true},
      {.name = "chatml",
       .prefix = {},
       .system = chatml_system,
       .user = chatml_user,
       .assistant = chatml_assistant,
       .observation = text("<|im_start|>tool\n{{content}}<|im_end|>\n<|im_start|>assistant\n"),
       .default_system = "",
       .calls = kActionCalls,
       .tokens = {"<|im_start|>", "<|im_end|>"},
       .end_of_text = "<|im_end|>",
       .between_results = "<|im_end|>\n<|im_start|>tool\n",
       .generation = kChatmlGeneration,
       .stop_words = {"<|im_end|>", "<|im_start|>"},
       .replaces_eos = true},
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
       .calls = kActionCalls,
       .tokens = {},
       .generation = "\nAssistant:"},
      {.name = "empty",
       .prefix = {},
       .system = text("{{content}}"),
       .user = text("{{content}}"),
       .assistant = text("{{content}}"),
       .observation = text("{{content}}"),
       .default_system = "",
       .calls = kActionCalls,
       .tokens = {}},
  };
  return all;
}

const Format& template_format(const std::string& name) {
  const auto format = std::ranges::find(template_formats(), name, &Format::name);
  if (format != template_formats().end()) return *format;
  throw UserError(fmt::format("there is no template {}; there are: {}", name,
                              fmt::join(named_templates(), ", ")));
}

std::vector<std::string> named_templates() {
  std::vector<std::string> names;
  for (const Format& format : template_formats()) names.emplace_back(format.name);
  return names;
}

}  // namespace longspan
