// Jinja chat templates as transformers renders them. No torch. (Backed by the `minijinja` crate,
// see rust/.)
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// A range that a template marked by {% generation %} ... {% endgeneration %}, as byte offsets in
/// the rendering.
struct GenerationSpan {
  size_t begin, end;
};

struct RenderedChat {
  std::string text;
  std::vector<GenerationSpan> generation;
};

/// Renders like transformers' apply_chat_template(messages, tokenize=False). `variables_json`: a
/// JSON object with the template's variables: messages, tools, add_generation_prompt, bos_token,
/// eos_token, enable_thinking, ... Defaults as in transformers: tools and documents are none,
/// add_generation_prompt is false. The variable strftime_now is the time (text/local_time.h) that
/// the template's function strftime_now formats. A call of the function without the variable is an
/// error. Two known differences to Python: a loop over none is an empty loop, and a float below
/// 1e-4 inside a printed list or after ~ is printed without exponent. Throws UserError with the
/// template's own message for raise_exception and for syntax errors.
RenderedChat render_chat_template(std::string_view chat_template, std::string_view variables_json);

}  // namespace longspan
