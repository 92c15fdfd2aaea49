// The forms in which LLaMA-Factory's templates print function calls, tools and tool results. No
// torch.
#pragma once

#include <string_view>

#include "longspan/data/template_format.h"

namespace longspan {

inline constexpr CallFormat kActionCalls{.before_name = "Action: ",
                                         .before_arguments = "\nAction Input: ",
                                         .after = "",
                                         .quotes_name = false,
                                         .between = "\n"};
inline constexpr CallFormat kQwenCalls{.before_name = "<tool_call>\n{\"name\": ",
                                       .before_arguments = ", \"arguments\": ",
                                       .after = "}\n</tool_call>",
                                       .between = "\n"};
inline constexpr CallFormat kLlama3Calls{.before_name = "{\"name\": ",
                                         .before_arguments = ", \"parameters\": ",
                                         .after = "}",
                                         .between = ", ",
                                         .brackets = CallFormat::Brackets::kOfSeveral};
inline constexpr CallFormat kMistralCalls{.before_name = "{\"name\": ",
                                          .before_arguments = ", \"arguments\": ",
                                          .after = "}",
                                          .between = ", ",
                                          .brackets = CallFormat::Brackets::kAll};

inline constexpr ToolFormat kQwenTools{
    .before =
        "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
    .before_each = "\n",
    .after =
        "\n</tools>\n\nFor each function call, return a json object with function name and "
        "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
        "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>"};
inline constexpr ToolFormat kQwen35Tools{
    .before = "\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>",
    .before_each = "\n",
    .after =
        "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO "
        "suffix:\n\n<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"
        "\n"
        "value_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second "
        "parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
        "<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner "
        "<function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
        "- Required parameters MUST be specified\n- You may provide optional reasoning for your "
        "function call in natural language BEFORE the function call, but NOT after\n- If there is "
        "no function call available, answer the question like normal with your current knowledge "
        "and do not tell the user about function calls\n</IMPORTANT>",
    .body = ToolFormat::Body::kFunction};
inline constexpr ToolFormat kMistralTools{
    .before = "[AVAILABLE_TOOLS] [", .between = ", ", .after = "][/AVAILABLE_TOOLS]"};
inline constexpr ToolFormat kLlama3Tools{
    .before =
        "Cutting Knowledge Date: December 2023\nToday Date: {{date}}\n\nYou have access to the "
        "following functions. To call a function, please respond with JSON for a function call. "
        "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument "
        "name and its value}. Do not use variables.\n\n",
    .after_each = "\n\n",
    .indented = true};
inline constexpr ToolFormat kGlm4Tools{
    .before =
        "你是一个名为 ChatGLM 的人工智能助手。你是基于智谱 AI 公司训练的语言模型 GLM-4 模型开发的，"
        "你的任务是针对用户的问题和要求提供适当的答复和支持。\n\n# 可用工具",
    .before_each = "\n\n## {{name}}\n\n",
    .after_each = "\n在调用上述函数时，请使用 Json 格式表示调用的参数。",
    .body = ToolFormat::Body::kFunction,
    .indented = true};
inline constexpr ToolFormat kGlm4MoeTools{
    .before =
        "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
    .before_each = "\n",
    .after =
        "\n</tools>\n\nFor each function call, output the function name and arguments within the "
        "following XML format:\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n"
        "<arg_value>{arg-value-1}</arg_value>\n<arg_key>{arg-key-2}</arg_key>\n"
        "<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>\n"};
inline constexpr std::string_view kBetweenQwenResults = "\n</tool_response>\n<tool_response>\n";
inline constexpr CallFormat kGlm4Calls{.before_name = "",
                                       .before_arguments = "\n",
                                       .after = "",
                                       .quotes_name = false,
                                       .between = "",
                                       .brackets = CallFormat::Brackets::kOneCall};
inline constexpr CallFormat kGlm4MoeCalls{.before_name = "\n<tool_call>",
                                          .before_arguments = "",
                                          .after = "",
                                          .quotes_name = false,
                                          .between = "\n",
                                          .before_key = "\n<arg_key>",
                                          .before_value = "</arg_key>\n<arg_value>",
                                          .after_value = "</arg_value>"};
inline constexpr CallFormat kQwen35Calls{.before_name = "<tool_call>\n<function=",
                                         .before_arguments = ">",
                                         .after = "\n</function>\n</tool_call>",
                                         .quotes_name = false,
                                         .between = "\n",
                                         .before_key = "\n<parameter=",
                                         .before_value = ">\n",
                                         .after_value = "\n</parameter>"};

}  // namespace longspan
