#include "longspan/text/chat_template.h"

#include <doctest/doctest.h>

#include <string>

#include "longspan/base/user_error.h"

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

// tests/parity/test_text.py compares printing to transformers; the cases here have answers by
// definition.

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

TEST_CASE("chat template: the next round of a loop begins with what is open outside of it") {
  const auto rounds = [](const std::string& body) {
    // Far more iterations than blocks may nest.
    return render("{% set x = 'x' %}{% for i in range(3000) %}" + body +
                  "{% endfor %}{{ x }}{{ '<' }}");
  };
  for (const std::string tag : {"{% continue %}", "{% if i >= 0 %}{% continue %}{% endif %}"}) {
    CAPTURE(tag);
    CHECK(rounds("{% with x = i %}" + tag + "{% endwith %}a") == "x<");
    CHECK(rounds("{% filter upper %}a" + tag + "{% endfilter %}a") == "x<");
    CHECK(rounds("{% set y %}a" + tag + "{% endset %}a") == "x<");
    CHECK(rounds("{% autoescape true %}" + tag + "{% endautoescape %}a") == "x<");
    CHECK(rounds("{% set y %}{% with x = i %}{% filter upper %}a" + tag +
                 "{% endfilter %}{% endwith %}{% endset %}a") == "x<");
    CHECK(rounds("{% with x = i %}{% for j in [] %}{% else %}" + tag +
                 "{% endfor %}{% endwith %}a") == "x<");
  }
  CHECK(render("{% set x = 'x' %}{% for i in [1, 2, 3] %}{% with x = i %}{% filter upper %}"
               "{% if i == 2 %}{% break %}{% endif %}a{{ x }}{% endfilter %}{% endwith %};"
               "{% endfor %}{{ x }}") == "A1;x");
}

TEST_CASE("chat template: a loop that is left from inside of a function's tag is refused by name") {
  const auto refusal = [](const std::string& tag, const std::string& block) {
    return "Chat template, line 3: {% " + tag + " %} stands in no loop inside of {% " + block +
           " %}, which it cannot leave. Put the whole loop inside, or write {% if %} instead.";
  };
  const std::string loop = "{% for i in [1, 2] %}\n";
  for (const std::string tag : {"continue", "break"}) {
    const std::string leave = "a\n{% if true %}{% " + tag + " %}{% endif %}";
    CHECK(error_of(loop + "{% generation %}" + leave + "{% endgeneration %}{% endfor %}") ==
          refusal(tag, "generation"));
    CHECK(error_of(loop + "{% generation %}{% with %}" + leave +
                   "{% endwith %}{% endgeneration %}{% endfor %}") == refusal(tag, "generation"));
    CHECK(error_of(loop + "{% call f() %}" + leave + "{% endcall %}{% endfor %}") ==
          refusal(tag, "call"));
    CHECK(error_of(loop + "{% macro f() %}" + leave + "{% endmacro %}{% endfor %}") ==
          refusal(tag, "macro"));
    CHECK(error_of("\n{% for i in [] %}{% else %}" + leave + "{% endfor %}") ==
          "Chat template, line 3: {% " + tag +
              " %} stands in no loop. Put it into a {% for %}, or remove it.");
  }
  const RenderedChat inside = render_chat_template(
      "{% for i in [1] %}{% generation %}{% for j in [1, 2, 3] %}{% if j == 2 %}{% continue %}"
      "{% endif %}{{ j }}{% endfor %}{% endgeneration %};{% endfor %}",
      "{}");
  CHECK(inside.text == "13;");
  REQUIRE(inside.generation.size() == 1);
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
