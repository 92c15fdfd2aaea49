#include "longspan/data/plain_formats.h"

#include "longspan/data/call_formats.h"

namespace longspan {

std::vector<Format> plain_formats() {
  return {
      {.name = "default",
       .prefix = {},
       .system = {{Slot::kText, "System: {{content}}"}, {Slot::kEos}, {Slot::kText, "\n"}},
       .user = {{Slot::kText, "Human: {{content}}"}, {Slot::kEos}, {Slot::kText, "\nAssistant:"}},
       .assistant = {{Slot::kText, "{{content}}"}, {Slot::kEos}, {Slot::kText, "\n"}},
       .observation = {{Slot::kText, "Human: {{content}}"},
                       {Slot::kEos},
                       {Slot::kText, "\nAssistant:"}},
       .default_system = "",
       .calls = kActionCalls,
       .tokens = {},
       .generation = "\nAssistant:"},
      {.name = "alpaca",
       .prefix = {},
       .system = text("{{content}}"),
       .user = text("### Instruction:\n{{content}}\n\n### Response:\n"),
       .assistant = {{Slot::kText, "{{content}}"}, {Slot::kEos}, {Slot::kText, "\n\n"}},
       .observation = text("### Instruction:\n{{content}}\n\n### Response:\n"),
       .default_system =
           "Below is an instruction that describes a task. Write a response that appropriately "
           "completes the request.\n\n",
       .calls = kActionCalls,
       .tokens = {},
       .generation = "### Response:\n"},
      {.name = "vicuna",
       .prefix = {},
       .system = text("{{content}}"),
       .user = text("USER: {{content}} ASSISTANT:"),
       .assistant = ended("{{content}}"),
       .observation = text("USER: {{content}} ASSISTANT:"),
       .default_system =
           "A chat between a curious user and an artificial intelligence assistant. The assistant "
           "gives helpful, detailed, and polite answers to the user's questions.",
       .calls = kActionCalls,
       .tokens = {},
       .generation = " ASSISTANT:"},
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
}

}  // namespace longspan
