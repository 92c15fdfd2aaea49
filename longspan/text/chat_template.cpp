#include "longspan/text/chat_template.h"

#include <nlohmann/json.hpp>

#include "longspan/input/json_text.h"
#include "longspan/text/rust_call.h"

namespace longspan {

RenderedChat render_chat_template(std::string_view chat_template, std::string_view variables_json) {
  LsrString text{}, spans{};
  rust_call(lsr_render_chat_template, rust_view(chat_template), rust_view(variables_json), &text,
            &spans);
  RenderedChat rendered{take_rust_string(text), {}};
  for (const auto& span : parse_json(take_rust_string(spans), "chat template")) {
    rendered.generation.push_back({span[0].get<size_t>(), span[1].get<size_t>()});
  }
  return rendered;
}

}  // namespace longspan
