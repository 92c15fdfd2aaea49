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
    .between = "",
    .after =
        "\n</tools>\n\nFor each function call, return a json object with function name and "
        "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
        "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>"};
inline constexpr ToolFormat kMistralTools{.before = "[AVAILABLE_TOOLS] [",
                                          .before_each = "",
                                          .between = ", ",
                                          .after = "][/AVAILABLE_TOOLS]"};
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
