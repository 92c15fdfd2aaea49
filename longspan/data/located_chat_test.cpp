#include "longspan/data/located_chat.h"

#include <doctest/doctest.h>

#include "longspan/data/bad_rows.h"
#include "longspan/data/template_messages.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

/// A chat of user and assistant in turn.
ordered_json chat_of(const std::vector<std::string>& contents) {
  ordered_json messages = ordered_json::array();
  for (const std::string& content : contents) {
    messages.push_back(
        {{"role", messages.size() % 2 == 0 ? "user" : "assistant"}, {"content", content}});
  }
  return messages;
}

/// `num_bytes`, if not null, gets the bytes of all renderings.
LocatedChat locate(const std::string& chat_template, const ordered_json& messages,
                   bool generation_prompt = false, size_t* num_bytes = nullptr) {
  const auto render = [chat_template, num_bytes](const ordered_json& rendered, bool prompt) {
    const ordered_json variables = {{"messages", rendered}, {"add_generation_prompt", prompt}};
    try {
      RenderedChat chat = render_chat_template(chat_template, variables.dump());
      if (num_bytes != nullptr) *num_bytes += chat.text.size();
      return chat;
    } catch (const UserError& error) {
      throw RowError(error.what());
    }
  };
  return {render, messages, generation_prompt, "row 7"};
}

std::string complaint(const std::string& chat_template, const ordered_json& messages) {
  try {
    locate(chat_template, messages);
  } catch (const RowError& error) {
    return error.what();
  }
  return "";
}

/// The text from an answer's begin to the end of its texts.
std::string answer(const LocatedChat& chat, size_t message) {
  const size_t begin = chat.begins_of_answers({message}).front();
  return chat.text().substr(begin, chat.place_of(message)->end - begin);
}

/// [user]...[assistant]..., with an expression for the content.
std::string frames(const std::string& content, const std::string& prompt = "[assistant]") {
  return "{% for m in messages %}[{{ m.role }}]" + content +
         "{% endfor %}{% if add_generation_prompt %}" + prompt + "{% endif %}";
}

const std::string kPlain = frames("{{ m.content }};");
// Like Qwen3's: takes thoughts out of the content, and prints those of the last answer.
const std::string kThinks = frames(
    "{% set c = m.content %}{% set t = m.reasoning_content or '' %}"
    "{% if '</think>' in c %}{% set t = c.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{% if m.role == 'assistant' and loop.last %}<think>{{ t }}</think>{% endif %}{{ c }};");

}  // namespace

TEST_CASE("a chat's texts are found in one rendering") {
  const LocatedChat chat = locate(kPlain, chat_of({"a", " b ", "c[assistant]", "d"}));
  CHECK(chat.text() == "[user]a;[assistant] b ;[user]c[assistant];[assistant]d;");
  CHECK(answer(chat, 1) == " b");
  CHECK(answer(chat, 3) == "d");
  CHECK(chat.surroundings_of(1).begin == 7);
  CHECK(chat.text().substr(chat.surroundings_of(1).end) == "c[assistant];[assistant]d;");
  // Repeated texts, an empty answer, and a template that strips.
  CHECK(answer(locate(frames("{{ m.content | trim }};"), chat_of({"x", "x", "x", "\n x \n"})), 3) ==
        "x");
  const LocatedChat empty = locate(kPlain, chat_of({"a", "", "b", "c"}));
  CHECK(!empty.place_of(1));
  CHECK(empty.text().substr(empty.begins_of_answers({1}).front()) == ";[user]b;[assistant]c;");
}

TEST_CASE("private-use characters of a chat are no marks") {
  const std::string mark = "\U000F0000", wide = "\U000F0003\u00a0";
  const LocatedChat chat = locate(kPlain, chat_of({mark + "a" + mark, wide, "b", mark}));
  CHECK(chat.text() == "[user]" + mark + "a" + mark + ";[assistant]" + wide + ";[user]b;" +
                           "[assistant]" + mark + ";");
  CHECK(answer(chat, 3) == mark);
}

TEST_CASE(
    "thoughts that a template leaves out are told, other text that it leaves out is refused") {
  const ordered_json messages =
      chat_of({"a", "<think>\nhm\n</think>\n\nb", "c", "<think>well</think>d"});
  const LocatedChat chat = locate(kThinks, messages);
  CHECK(chat.text() == "[user]a;[assistant]b;[user]c;[assistant]<think>well</think>d;");
  CHECK(chat.lost_thoughts(1));
  CHECK(!chat.lost_thoughts(3));
  CHECK(answer(chat, 1) == "b");
  CHECK(answer(chat, 3) == "<think>well</think>d");
  // Separate thoughts.
  ordered_json own = chat_of({"a", "b"});
  own[1]["reasoning_content"] = "hm";
  CHECK(answer(locate(kThinks, own), 1) == "<think>hm</think>b");
  CHECK(locate(kPlain, own).lost_thoughts(1));

  CHECK_SAYS(complaint(frames("{{ m.content.split(' ')[0] }};"), chat_of({"a", "b c"})),
             "row 7: the model's chat_template cannot be used for this row: the text of message 2 "
             "(assistant) is not in what it prints (\"b c\")");
  CHECK_SAYS(complaint(frames("{{ m.content if m.role == 'user' else '' }};"), chat_of({"a", "b"})),
             "message 2 (assistant) is not in what it prints");
  CHECK_SAYS(complaint(frames("{{ m.content | upper }};"), chat_of({"a", "b"})),
             "message 1 (user) is not in what it prints");
  CHECK_SAYS(complaint(frames("{{ m.content }} {{ m.content }};"), chat_of({"a", "b"})),
             "it prints message 2 (assistant) twice");
}

TEST_CASE("the generation prompt says where an answer begins, as far as the chat has it") {
  // R1's prompt opens thoughts, which its chats lack.
  const std::string opens = frames("{{ m.content }};", "[assistant]<think>\n");
  CHECK(answer(locate(opens, chat_of({"a", "b", "c", "<d"})), 1) == "b");
  CHECK(answer(locate(opens, chat_of({"a", "b", "c", "<d"})), 3) == "<d");
  // The prompt's empty thoughts belong to the question, other thoughts to the answer.
  const std::string none = frames(
      "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }};",
      "[assistant]<think></think>");
  CHECK(answer(locate(none, chat_of({"a", "b", "c", "d"})), 1) == "b");
  CHECK(answer(locate(none, chat_of({"a", "b", "c", "d"})), 3) == "d");
  // A whole chat ends differently from a prompt.
  const std::string phi = kPlain + "{% if not add_generation_prompt %}[end]{% endif %}";
  CHECK(answer(locate(phi, chat_of({"a", "b", "c", "d"})), 1) == "b");
}

TEST_CASE("a long chat: its answers begin where whole prompts say, and the work is linear") {
  const std::string counts =
      frames("{{ m.content }};", "{{ '[bot]' if messages | length > 100 else '[assistant]' }}");
  const std::string looks = frames("{{ '!' if m.role == 'assistant' }}{{ m.content }};",
                                   "[assistant]{{ '!' if '9' in messages[-1].content }}");
  const std::string needs =
      "{% if messages | length > 2 and 'answer 0' not in messages[1].content %}"
      "{{ raise_exception('the first answer is missing') }}{% endif %}" +
      kPlain;
  for (const std::string& chat_template : {kPlain, kThinks, counts, looks, needs}) {
    CAPTURE(chat_template);
    const auto bytes_of = [&](size_t num_answers) {
      size_t num_bytes = 0;
      std::vector<std::string> contents;
      std::vector<size_t> answers;
      for (size_t i = 0; i < num_answers; ++i) {
        contents.push_back("question " + std::to_string(i) + std::string(i == 0 ? 1500 : 10, '.'));
        contents.push_back("answer " + std::to_string(i));
        answers.push_back(2 * i + 1);
      }
      const LocatedChat chat = locate(chat_template, chat_of(contents), false, &num_bytes);
      const std::vector<size_t> begins = chat.begins_of_answers(answers);
      const std::vector<std::string> endings = chat.endings_alone(answers);
      const size_t sum = num_bytes;
      REQUIRE(begins.size() == num_answers);
      for (size_t k = 0; k < num_answers; k += 11) {
        CHECK(begins[k] == chat.begins_of_answers({answers[k]}).front());
        CHECK(endings[k] == chat.endings_alone({answers[k]}).front());
      }
      return static_cast<double>(sum);
    };
    const double few = bytes_of(60), many = bytes_of(240);
    // Prompts that depend on all messages are rendered as a whole.
    if (chat_template == counts || chat_template == needs) {
      CHECK(many > 6 * few);
    } else {
      CHECK(many < 5 * few);
    }
  }
}

TEST_CASE("a text that the template compares is searched for") {
  const std::string compares = frames(
      "{% if m.content.startswith('x') %}X:{% endif %}"
      "{% if m.content.endswith('z') %}:Z{% endif %}{{ m.content }};");
  const LocatedChat chat = locate(compares, chat_of({"x", "yz", "u", "v"}));
  CHECK(chat.text() == "[user]X:x;[assistant]:Zyz;[user]u;[assistant]v;");
  CHECK(answer(chat, 1) == ":Zyz");
  CHECK(answer(chat, 3) == "v");
}

TEST_CASE("a message that the template compares takes the marks off no other") {
  const std::string compares =
      frames("{% if m.content.startswith('x') %}X:{% endif %}{{ m.content }};");
  const LocatedChat chat = locate(compares, chat_of({"x", "b", "user", "d"}));
  CHECK(!chat.is_marked(0));
  CHECK(chat.is_marked(2));
  // The second question's text is not taken from its header.
  CHECK(chat.text().substr(chat.surroundings_of(1).end) == "user;[assistant]d;");
}

TEST_CASE("a call is printed when its name, keys and texts are") {
  ordered_json messages = chat_of({"a", "I call f for a x."});
  messages[1]["tool_calls"] = {
      {{"function", {{"name", "f"}, {"arguments", {{"a", "x"}, {"n", 3}}}}}}};
  const auto prints = [&](const std::string& calls) {
    return locate(frames("{{ m.content }}" + calls + ";"), messages).prints_calls(1);
  };
  const std::string each = "{% for c in m.tool_calls or [] %}", end = "{% endfor %}";
  // The text beside the call has all of its words.
  CHECK(!prints(""));
  CHECK(!prints(each + "{{ c.function.name }}" + end));
  CHECK(prints(each + "{{ c.function | tojson }}" + end));
  CHECK(!prints(each + "{{ c.function.name }}({{ c.function.arguments }})" + end));
  const LocatedChat items =
      locate(frames("{{ m.content }}" + each +
                    "<{{ c.function.name }}{% for k, v in "
                    "c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}>" +
                    end),
             messages);
  CHECK(items.prints_calls(1));
  // The call's end is found although its last argument is no text.
  CHECK(items.text().substr(items.place_of(1)->end) == "=3>");
}

TEST_CASE("a call that is searched for") {
  const FunctionCall call{.name = "f", .arguments = R"({"a": "x\"y", "b": [1, true, null]})"};
  CHECK(is_printed_in(R"(f {"a": "x\"y", "b": [1, true, null]})", call));
  CHECK(is_printed_in(R"(f {"a":"x\"y","b":[1,true,null]})", call));
  CHECK(is_printed_in("f a=x\"y b=1 True None", call));
  CHECK(!is_printed_in("f a=x\"y b=1 True", call));
  CHECK(!is_printed_in(R"({"a": "x\"y", "b": [1, true, null]})", call));
  CHECK(!is_printed_in("f {'a': 'x\"y', 'b': [1, True, None]}", call));
  CHECK(is_printed_in("f", {.name = "f", .arguments = "{}"}));
}

}  // namespace longspan
