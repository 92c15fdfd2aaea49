#include "longspan/data/template_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "longspan/base/user_error.h"
#include "longspan/data/call_formats.h"
#include "longspan/data/plain_formats.h"
#include "longspan/data/turns.h"

namespace longspan {

namespace {

constexpr std::string_view kChatmlGeneration = "<|im_start|>assistant\n";

/// Returns the format under another name, changed.
Format like(Format format, std::string_view name, const std::function<void(Format&)>& change) {
  format.name = name;
  change(format);
  return format;
}

void take_qwen_pictures(Format& format, VideoForm videos) {
  format.videos = videos;
  format.printed_picture = "<|vision_start|><|image_pad|><|vision_end|>";
  format.printed_video = "<|vision_start|><|video_pad|><|vision_end|>";
}

/// Families whose formats differ in a part or two.
std::vector<Format> formats_of_families() {
  const Format glm4 = {.name = "glm4",
                       .prefix = text("[gMASK]<sop>"),
                       .system = text("<|system|>\n{{content}}"),
                       .user = text("<|user|>\n{{content}}<|assistant|>"),
                       .assistant = text("\n{{content}}"),
                       .observation = text("<|observation|>\n{{content}}<|assistant|>"),
                       .default_system = "",
                       .calls = kGlm4Calls,
                       .tokens = {"[gMASK]", "<sop>", "<|user|>", "<|assistant|>"},
                       .function = text("{{content}}"),
                       .tools = kGlm4Tools,
                       .generation = "<|assistant|>",
                       .stop_words = {"<|user|>", "<|observation|>"},
                       .ends_once = true};
  const Format gemma = {
      .name = "gemma",
      .prefix = {{Slot::kBos}},
      .system = text("{{content}}\n\n"),
      .user = text("<start_of_turn>user\n{{content}}<end_of_turn>\n<start_of_turn>model\n"),
      .assistant = text("{{content}}<end_of_turn>\n"),
      .observation = text("<start_of_turn>tool\n{{content}}<end_of_turn>\n<start_of_turn>model\n"),
      .default_system = "",
      .calls = kActionCalls,
      .tokens = {"<start_of_turn>", "<end_of_turn>"},
      .end_of_text = "<end_of_turn>",
      .generation = "<start_of_turn>model\n",
      .stop_words = {"<end_of_turn>"},
      .replaces_eos = true,
      .system_in_question = true};
  const Format deepseek3 = {.name = "deepseek3",
                            .prefix = {{Slot::kBos}},
                            .system = text("{{content}}"),
                            .user = text("<｜User｜>{{content}}<｜Assistant｜>"),
                            .assistant = ended("{{content}}"),
                            .observation = text("<｜User｜>{{content}}<｜Assistant｜>"),
                            .default_system = "",
                            .calls = kActionCalls,
                            .tokens = {"<｜User｜>", "<｜Assistant｜>"},
                            .generation = "<｜Assistant｜>"};
  const Frame llama2_question = {{Slot::kBos}, {Slot::kText, "[INST] {{content}} [/INST]"}};
  const auto thinks = [](Format& format) { format.thinks = true; };
  return {
      glm4,
      like(glm4, "glmz1", thinks),
      like(glm4, "glm4_moe",
           [](Format& format) {
             format.thinks = true;
             format.calls = kGlm4MoeCalls;
             format.tools = kGlm4MoeTools;
           }),
      gemma,
      like(gemma, "gemma2",
           [](Format& format) {
             format.stop_words = {"<eos>", "<end_of_turn>"};
             format.end_of_text = {};
             format.replaces_eos = false;
             format.ends_once = true;
           }),
      like(gemma, "gemma3",
           [](Format& format) {
             format.videos = VideoForm::kNever;
             format.printed_picture = "<start_of_image>";
           }),
      deepseek3,
      like(deepseek3, "deepseekr1", thinks),
      {.name = "gpt_oss",
       .prefix = {},
       .system = text("<|start|>system<|message|>{{content}}<|end|>"),
       .user = text("<|start|>user<|message|>{{content}}<|end|><|start|>assistant"),
       .assistant = text("{{content}}"),
       .observation = text("<|start|>user<|message|>{{content}}<|end|><|start|>assistant"),
       .default_system = "You are ChatGPT, a large language model trained by OpenAI.",
       .calls = kActionCalls,
       .tokens = {"<|start|>", "<|message|>", "<|end|>", "<|channel|>"},
       .generation = "<|start|>assistant",
       .thinks = true,
       .thoughts_begin = "<|channel|>analysis<|message|>",
       .thoughts_close = "<|end|><|start|>assistant<|channel|>final<|message|>",
       .ends_once = true},
      {.name = "phi",
       .prefix = {},
       .system = text("<|system|>\n{{content}}<|end|>\n"),
       .user = text("<|user|>\n{{content}}<|end|>\n<|assistant|>\n"),
       .assistant = text("{{content}}<|end|>\n"),
       .observation = text("<|user|>\n{{content}}<|end|>\n<|assistant|>\n"),
       .default_system = "",
       .calls = kActionCalls,
       .tokens = {"<|user|>", "<|assistant|>", "<|end|>"},
       .end_of_text = "<|end|>",
       .generation = "<|assistant|>\n",
       .stop_words = {"<|end|>"},
       .replaces_eos = true},
      {.name = "phi4",
       .prefix = {},
       .system = text("<|im_start|>system<|im_sep|>{{content}}<|im_end|>"),
       .user =
           text("<|im_start|>user<|im_sep|>{{content}}<|im_end|><|im_start|>assistant<|im_sep|>"),
       .assistant = text("{{content}}<|im_end|>"),
       .observation =
           text("<|im_start|>user<|im_sep|>{{content}}<|im_end|><|im_start|>assistant<|im_sep|>"),
       .default_system = "",
       .calls = kActionCalls,
       .tokens = {"<|im_start|>", "<|im_sep|>", "<|im_end|>"},
       .end_of_text = "<|im_end|>",
       .generation = "<|im_start|>assistant<|im_sep|>",
       .stop_words = {"<|im_end|>"},
       .replaces_eos = true},
      {.name = "phi4_mini",
       .prefix = {},
       .system = text("<|system|>{{content}}<|end|>"),
       .user = text("<|user|>{{content}}<|end|><|assistant|>"),
       .assistant = text("{{content}}<|end|>"),
       .observation = text("<|user|>{{content}}<|end|><|assistant|>"),
       .default_system = "",
       .calls = kActionCalls,
       .tokens = {"<|user|>", "<|assistant|>", "<|end|>"},
       .end_of_text = "<|end|>",
       .tools = {},  // the text of the row's column, as it is
       .generation = "<|assistant|>",
       .stop_words = {"<|end|>"},
       .replaces_eos = true},
      {.name = "llama2",
       .prefix = {},
       .system = text("<<SYS>>\n{{content}}\n<</SYS>>\n\n"),
       .user = llama2_question,
       .assistant = ended("{{content}}"),
       .observation = llama2_question,
       .default_system = "",
       .calls = kActionCalls,
       .tokens = {},
       .system_in_question = true},
      {.name = "mistral_small",
       .prefix = {{Slot::kBos}},
       .system = text("[SYSTEM_PROMPT]{{content}}[/SYSTEM_PROMPT]"),
       .user = text("[INST]{{content}}[/INST]"),
       .assistant = ended("{{content}}"),
       .observation = text("[TOOL_RESULTS]{\"content\": {{content}}}[/TOOL_RESULTS]"),
       .default_system = "",
       .calls = kMistralCalls,
       .tokens = {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
       .function = ended("[TOOL_CALLS]{{content}}"),
       .tools = kMistralTools}};
}

}  // namespace

std::string no_thoughts(const Format& format) {
  return std::string(format.thoughts_begin) + std::string(format.thoughts_close);
}

std::vector<std::string> marks_of_thoughts(const Format& format) {
  std::vector<std::string> marks;
  for (const std::string_view mark : {format.thoughts_begin, format.thoughts_close}) {
    const size_t begin = mark.find_first_not_of('\n'), end = mark.find_last_not_of('\n');
    marks.emplace_back(mark.substr(begin, end + 1 - begin));
  }
  return marks;
}

namespace {

std::vector<Format> make_formats() {
  const Frame chatml_system = text("<|im_start|>system\n{{content}}<|im_end|>\n");
  const Frame chatml_user =
      text("<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n");
  const Frame chatml_assistant = text("{{content}}<|im_end|>\n");
  const Frame qwen_observation = text(
      "<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n");
  std::vector<Format> all = {
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
       .prefix = {{Slot::kBos}},
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
       .tools = kLlama3Tools,
       .between_results = "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n",
       .generation = "<|start_header_id|>assistant<|end_header_id|>\n\n",
       .stop_words = {"<|eot_id|>", "<|eom_id|>"},
       .replaces_eos = true},
      {.name = "mistral",
       .prefix = {{Slot::kBos}},
       .system = text("{{content}}\n\n"),
       .user = text("[INST] {{content}}[/INST]"),
       .assistant = {{Slot::kText, " {{content}}"}, {Slot::kEos}},
       .observation = text("[TOOL_RESULTS] {\"content\": {{content}}}[/TOOL_RESULTS]"),
       .default_system = "",
       .calls = kMistralCalls,
       .tokens = {},
       .function = {{Slot::kText, "[TOOL_CALLS] {{content}}"}, {Slot::kEos}},
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
  };
  const auto called = [&all](std::string_view name) {
    return *std::ranges::find(all, name, &Format::name);
  };
  for (const char* name : {"qwen3", "qwen3_nothink"}) {
    const std::string_view of_next =
        name == std::string_view("qwen3") ? "qwen3_5" : "qwen3_5_nothink";
    all.push_back(like(called(name), of_next, [](Format& format) {
      format.calls = kQwen35Calls;
      format.tools = kQwen35Tools;
      take_qwen_pictures(format, VideoForm::kFrames);
    }));
  }
  all.push_back(like(called("qwen"), "qwen2_vl", [](Format& format) {
    format.default_system = "You are a helpful assistant.";
    format.mistaken_for = format.mistake = {};
    take_qwen_pictures(format, VideoForm::kWhole);
  }));
  for (const char* name : {"qwen3", "qwen3_nothink"}) {
    const bool thinks = name == std::string_view("qwen3");
    all.push_back(
        like(called(name), thinks ? "qwen3_vl" : "qwen3_vl_nothink", [thinks](Format& format) {
          if (thinks) {
            format.without_thoughts =
                "template: qwen3_vl sets thoughts before each answer, and the tokenizer of this "
                "model has no <think>: take qwen3_vl_nothink for a model that does not think.";
          }
          take_qwen_pictures(format, VideoForm::kFrames);
        }));
  }
  for (Format& format : formats_of_families()) all.push_back(std::move(format));
  for (Format& format : plain_formats()) all.push_back(std::move(format));
  return all;
}

}  // namespace

const std::vector<Format>& template_formats() {
  static const std::vector<Format> all = make_formats();
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
