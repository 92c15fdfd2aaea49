// Chat templates are foreign programs: their resources are limited, and errors name the limit.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/text/chat_template.h"

namespace longspan {
namespace {

std::string times(const std::string& text, size_t count) {
  std::string all;
  all.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string error_of(const std::string& chat_template, const std::string& variables = "{}") {
  try {
    render_chat_template(chat_template, variables);
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing thrown";
}

void check_refused(const std::vector<std::string>& templates, const std::string& part) {
  for (const std::string& one : templates) {
    CAPTURE(one.substr(0, 100));
    const std::string error = error_of(one);
    CAPTURE(error.substr(0, 300));
    CHECK(error.find(part) != std::string::npos);
    CHECK(error.size() < 1000);
  }
}

std::string conversation(size_t num_messages) {
  std::string messages;
  for (size_t i = 0; i < num_messages; ++i) {
    messages += std::string(i > 0 ? "," : "") + R"({"role": ")" + (i % 2 ? "assistant" : "user") +
                R"(", "content": "message )" + std::to_string(i) + R"("})";
  }
  return R"({"messages": [)" + messages + "]}";
}

}  // namespace

TEST_CASE("chat template bounds: what nests deep is refused before it is parsed") {
  const size_t many = 200'000;
  check_refused(
      {"{{ " + times("not ", many) + "x }}", "{{ x" + times("|trim", many) + " }}",
       "{{ x" + times(".a", many) + " }}", "{{ x" + times("[0]", many) + " }}",
       "{{ x" + times("()", many) + " }}", "{{ x" + times(" ~ x", many) + " }}",
       "{{ x" + times("+x", many) + " }}", "{{ x" + times(" is x", many) + " }}",
       "{{ " + times("- ", many) + "1 }}", "{{ " + times("1 if x else ", many / 4) + "1 }}",
       "{{ " + times("(", many) + times(")", many) + " }}",
       "{{ " + times("[", many) + times("]", many) + " }}",
       "{{ " + times("{1:", many / 2) + "1" + times("}", many / 2) + " }}",
       "{% set y = " + times("[", many),
       "{% if x %}" + times("{% elif x %}", 50'000) + "{% endif %}"},
      "512 levels");
  check_refused({times("{% if x %}", 20'000), times("{% for y in x %}", 20'000),
                 times("{% macro m() %}", 20'000), times("{% set y %}", 20'000),
                 times("{% filter trim %}", 20'000), times("{% call x() %}", 20'000)},
                "Chat template");
  check_refused({times(" ", (1 << 20) + 1)}, "1048576 are the most");
  // Real templates pass: 150 operators in a tag, many tags.
  CHECK(error_of("{{ ''" + times(" ~ x", 150) + " }}") == "nothing thrown");
  CHECK(error_of(times("{% if x == 'a' and y[0].z|trim %}{{ x }}{% elif y %}b{% endif %}", 500)) ==
        "nothing thrown");
  CHECK(error_of("{{ [" + times("['a', {'b': x}],", 3000) + "]|length }}") == "nothing thrown");
}

TEST_CASE("chat template bounds: messages nest 512 deep, and no deeper") {
  const auto nested = [](size_t depth) {
    return R"({"x": )" + times("[", depth) + times("]", depth) + "}";
  };
  CHECK(render_chat_template("{{ x|tojson }}", nested(500)).text ==
        times("[", 500) + times("]", 500));
  CHECK(error_of("{{ x }}", nested(600)).find("512 levels") != std::string::npos);
  CHECK(error_of("{{ x }}", nested(200'000)).find("512 levels") != std::string::npos);
  CHECK(error_of("{{ x }}", R"({"x": )" + times("[", 200'000)).find("512 levels") !=
        std::string::npos);
}

TEST_CASE("chat template bounds: broken tags are refused in time that grows with their length") {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string part :
       {"{%", "{{", "{#", "{% '", "{% generation", "{%- raw %}{%", "{", " "}) {
    CAPTURE(part);
    const std::string error = error_of(times(part, 1'000'000 / part.size()));
    CHECK((error == "nothing thrown" || error.find("hat template") != std::string::npos));
  }
  // A second or two; hours if each tag scanned all text after it.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::minutes(2));
  const std::string marks = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += "\xef\xa3\xb0" + std::to_string(i) + "<";
    return text;
  }();
  const std::string body = "{% generation %}{{ x }}{% endgeneration %}";
  CHECK(render_chat_template(body, R"({"x": ")" + marks + "\"}").text == marks);
}

TEST_CASE("chat template bounds: a program that does not end runs out of steps") {
  const std::string each = "{% for a in range(100000) %}";
  check_refused({each + each + "{% endfor %}{% endfor %}",
                 each + each + "{% set x = a %}{% endfor %}{% endfor %}"},
                "steps");
  check_refused({"{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}"}, "recursion");
}

TEST_CASE("chat template bounds: text and memory end before they are taken") {
  const std::string each = "{% for a in range(100000) %}{% for b in range(100000) %}";
  const std::string end = "{% endfor %}{% endfor %}";
  check_refused(
      {each + times("text", 100) + end, each + "{{ '" + times("text", 1000) + "' }}" + end,
       "{% set x %}" + each + times("text", 100) + end + "{% endset %}"},
      "64 MiB of text");
  const std::string doubled = "{% set ns = namespace(x='xx') %}" + each;
  check_refused(
      {"{% set y = 'x' %}{{ y * 1000000000 }}",
       "{% set y = 'x' %}{{ (y * 90000000) ~ (y * 90000000) ~ (y * 90000000) }}",
       "{% set y = [1] %}{{ y * 1000000000 }}", doubled + "{% set ns.x = ns.x + ns.x %}" + end,
       doubled + "{% set ns.x = ns.x ~ ns.x %}" + end,
       doubled + "{% set ns.x = ns.x|replace('x', ns.x) %}" + end,
       doubled + "{% set ns.x = ns.x.replace('x', ns.x) %}" + end,
       doubled + "{% set ns.x = ns.x|list|join(ns.x) %}" + end,
       doubled + "{% set ns.x = ns.x.join(ns.x|list) %}" + end,
       "{% set ns = namespace(x=[1]) %}" + each + "{% set ns.x = ns.x + ns.x %}" + end,
       "{% set ns = namespace(x=[]) %}" + each + "{% set ns.x = ns.x + ['x' * 1000000] %}" + end,
       "{{ [1]|batch(1000000000, 0)|list }}", "{{ [1]|slice(1000000000)|list }}"},
      "which is its bound");
  check_refused({"{{ 'x' * 1000000000 }}", "{{ 'x' * (10 ** 9) }}", "{{ 'x' * 1e9 }}",
                 "{{ (1, 2) * 1000000000 }}", "{{ 'x' * (1 / 0.000000001) }}"},
                "multiplies a constant");
  check_refused({"{{ 'a'|indent(1000000000) }}", "{{ 'a'|indent(width=1000000000, first=true) }}",
                 "{{ '%1000000000d'|format(1) }}", "{{ '%*d'|format(1000000000, 1) }}",
                 "{{ '{:>1000000000}'.format('x') }}"},
                "pads text");
  // One value, many times inside another: 2^60 parts to visit.
  const std::string shared =
      "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}"
      "{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  check_refused(
      {shared + "{{ ns.x }}", shared + "{{ ns.x|tojson }}", shared + "{{ ns.x == ns.x }}"},
      "which is its bound");
  // 512 levels of values are the limit too.
  check_refused({"{% set ns = namespace(x=[]) %}{% for a in range(100000) %}"
                 "{% set ns.x = [ns.x] %}{% endfor %}",
                 "{% set ns = namespace(x={}) %}{% for a in range(100000) %}"
                 "{% set ns.x = {'a': ns.x} %}{% endfor %}",
                 "{% set ns = namespace() %}{% for a in range(100000) %}"
                 "{% set ns.x = namespace(y=ns.x) %}{% endfor %}",
                 "{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = ns %}{{ ns }}",
                 "{% set x = [] %}" + times("{% set x = [x] %}", 5000)},
                "512 levels");
}

TEST_CASE("chat template bounds: long conversations are none") {
  const std::string gather =
      "{% set ns = namespace(list=[], text='') %}{% for m in messages %}"
      "{% set ns.list = ns.list + [m] %}{% set ns.text = ns.text ~ m['content'] %}{% endfor %}"
      "{{ ns.list|length }} {{ ns.list[-1].content }} {{ ns.list[1:][0].role }} "
      "{{ ns.list[::-1][0].content }} {{ ns.text|length > 5000 }}";
  CHECK(render_chat_template(gather, conversation(1500)).text ==
        "1500 message 1499 assistant message 1499 True");
  // Every message scans all messages: quadratic, as in some real templates.
  const std::string all_of_all =
      "{% for m in messages %}{% set ns = namespace(n=0) %}{% for o in messages %}"
      "{% if o.role == m.role %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
      "{{ ns.n }}{% endfor %}";
  CHECK(render_chat_template(all_of_all, conversation(600)).text == times("300", 600));
  // 8 MB of text in one message.
  const std::string large = times("word ", 1'600'000);
  const std::string one =
      "{% for m in messages %}{{ m.content|trim }}|{{ m.content.split(' ')|length }}"
      "|{{ m.content.replace('word', 'w')|length }}{% endfor %}";
  CHECK(render_chat_template(one, R"({"messages": [{"content": ")" + large + R"("}]})").text ==
        large.substr(0, large.size() - 1) + "|1600001|3200000");
}

TEST_CASE("chat template bounds: operators are Jinja's") {
  const auto render = [](const std::string& body) { return render_chat_template(body, "{}").text; };
  const std::string set =
      "{% set a = 3 %}{% set f = 1.5 %}{% set s = 'ab' %}{% set l = [1, 2] %}"
      "{% set t = (1, 2) %}{% set yes = true %}";
  CHECK(render(set + "{{ a + 4 }} {{ a + f }} {{ f + f }} {{ a * 2 }} {{ a * f }} {{ yes + 1 }}") ==
        "7 4.5 3.0 6 4.5 2");
  CHECK(render(set +
               "{{ s + 'c' }} {{ s * 2 }} {{ 2 * s }} {{ s ~ 1 ~ l }} {{ l + [3] }} {{ l * 2 }}") ==
        "abc abab abab ab1[1, 2] [1, 2, 3] [1, 2, 1, 2]");
  CHECK(render(set + "{{ t + t }} {{ l[1:] }} {{ l[::-1] }} {{ s[1:] }} {{ s[-1] }} {{ l[-1] }}") ==
        "(1, 2, 1, 2) [2] [2, 1] b b 2");
  CHECK(render(set + "{{ 1 < a < 5 }} {{ 1 < a < 2 }} {{ 'a' in s }} {{ 1 in l }} {{ 9 not in l }} "
                     "{{ l == [1, 2] }} {{ l != t }} {{ a >= 3 }} {{ s < 'b' }} {{ a is eq 3 }}") ==
        "True False True True True True True True True True");
  CHECK(error_of(set + "{{ a + s }}").find("unsupported types") != std::string::npos);
  CHECK(error_of(set + "{{ s * (0 - 1) }}").find("not negative") != std::string::npos);
  CHECK(error_of(set + "\n{{ l * s }}").find("line 2") != std::string::npos);
  // Loops, macros and calls still nest correctly.
  CHECK(render("{% macro m(x, y=2) %}[{{ x + y }}{{ caller() if caller }}]{% endmacro %}"
               "{% for i in range(3) if i != 1 %}{{ m(i) }}{% else %}none{% endfor %}"
               "{% call m(1, y=1) %}inside{% endcall %}"
               "{% for i in [[1], [2, [3]]] recursive %}"
               "{{ loop(i) if i is iterable else i + 1 }},{% endfor %}") ==
        "[2][4][2inside]2,,3,4,,,");
}

}  // namespace longspan
