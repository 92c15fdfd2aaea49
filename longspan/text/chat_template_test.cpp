#include "longspan/text/chat_template.h"

#include <doctest/doctest.h>

#include <string>

#include "longspan/config/user_error.h"

namespace longspan {
namespace {

std::string render(const std::string& chat_template, const std::string& variables = "{}") {
  return render_chat_template(chat_template, variables).text;
}

std::string error_of(const std::string& chat_template, const std::string& variables = "{}") {
  try {
    render(chat_template, variables);
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing thrown";
}

}  // namespace

// What Python prints is checked against transformers itself in tests/parity/test_text.py; the
// cases here are the ones whose answer is a definition.

TEST_CASE("chat template: block tags take their line with them, one last line end goes") {
  CHECK(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n") == "a\nb\nc");
  CHECK(render("{{ 'x' }}\n\n") == "x\n");
}

TEST_CASE("chat template: variables that transformers always passes are defined") {
  CHECK(render("{{ tools is defined }} {{ tools is none }} {{ documents is none }} "
               "{{ add_generation_prompt }} {{ enable_thinking is defined }}") ==
        "True True True False False");
}

TEST_CASE("chat template: generation blocks become byte spans and leave the text alone") {
  const std::string chat = R"({"messages": [{"role": "user", "content": "é"},
                                            {"role": "assistant", "content": "日本"},
                                            {"role": "assistant", "content": ""}]})";
  const std::string body =
      "{% for m in messages %}\n[{{ m.role[0] }}]{% if m.role == 'assistant' %}\n"
      "  {%- generation -%}\n  <{{ m.content }}>\n  {%- endgeneration -%}\n"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}";
  const RenderedChat rendered = render_chat_template(body, chat);
  CHECK(rendered.text == "[u]é[a]<日本>[a]<>");
  REQUIRE(rendered.generation.size() == 2);
  const auto spanned = [&](const GenerationSpan& span) {
    return rendered.text.substr(span.begin, span.end - span.begin);
  };
  CHECK(spanned(rendered.generation[0]) == "<日本>");
  CHECK(spanned(rendered.generation[1]) == "<>");
}

TEST_CASE("chat template: tags inside strings, comments and raw blocks are text") {
  const RenderedChat rendered = render_chat_template(
      "{# {% generation %} #}{{ '{% generation %}' }}{% raw %}{% generation %}{% endraw %}{", "{}");
  CHECK(rendered.text == "{% generation %}{% generation %}{");
  CHECK(rendered.generation.empty());
}

TEST_CASE("chat template: errors say the template's own words, or the line") {
  CHECK(error_of("{{ raise_exception('Roles must alternate') }}") ==
        "The chat template refuses this chat: Roles must alternate");
  CHECK(error_of("a\n\n{% if %}").find("line 3") != std::string::npos);
  CHECK(error_of("{{ a.b.c }}").find("undefined") != std::string::npos);
  CHECK(error_of("{{ a }}", "[]").find("no JSON object") != std::string::npos);
}

TEST_CASE("chat template: changing the template changes the result") {
  CHECK(render("one") == "one");
  CHECK(render("two") == "two");
  CHECK(render("one") == "one");
}

}  // namespace longspan
