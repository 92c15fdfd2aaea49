// Parts of messages and rows beside their text.
#include <doctest/doctest.h>

#include "longspan/config/config.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

const char* kOpenAi = R"({"file_name": "d.jsonl", "formatting": "openai"})";

/// Rows in OpenAI's format, one a line.
class Chats {
 public:
  explicit Chats(const std::string& stage = "sft") : folder(stage) { folder.info(kOpenAi); }

  /// The row with these messages, and with other columns after them.
  Conversation row(const std::string& messages, const std::string& columns = "") const {
    write(messages, columns);
    const std::vector<Conversation> rows = folder.rows();
    REQUIRE(rows.size() == 1);
    return rows[0];
  }
  std::string complaint(const std::string& messages, const std::string& columns = "") const {
    write(messages, columns);
    return folder.complaint();
  }
  /// The complaint about an answer with these keys.
  std::string complaint_at(const std::string& answer) const {
    return complaint(R"([{"role": "user", "content": "a"}, {"role": "assistant", )" + answer +
                     "}]");
  }
  Message answer(const std::string& keys) const {
    return row(R"([{"role": "user", "content": "a"}, {"role": "assistant", )" + keys + "}]")
        .messages.back();
  }

  DatasetFolder folder;

 private:
  void write(const std::string& messages, const std::string& columns) const {
    folder.write("d.jsonl", "{\"messages\": " + messages + columns + "}");
  }
};

const char* kCall = R"("tool_calls": [{"id": "1", "type": "function",
  "function": {"name": "f", "arguments": "{\"y\":1,\"x\":[2.5,null]}"}}])";

}  // namespace

TEST_CASE("openai: roles, calls with null content, results of tools, tools") {
  const Chats chats;
  const Conversation row = chats.row(
      std::string(R"([{"role": "developer", "content": "s"}, {"role": "user", "content": "a"},
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"y\":1,\"x\":2}"}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
      {"role": "tool", "tool_call_id": "1", "name": "f", "content": "r"},
      {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "t"},
                                                        {"type": "text", "text": "u"}]},
      {"role": "assistant", "content": "b"}])"),
      R"(, "tools": [{"name": "f", "parameters": {"b": 1, "a": 2}}])");
  CHECK(flat(row) == "s=s;u=a;a=;o=r;o=tu;a=b;");
  const std::vector<FunctionCall>& calls = row.messages[2].calls;
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].name == "f");
  CHECK(calls[0].arguments == R"({"y": 1, "x": 2})");  // in the row's order
  CHECK(calls[0].id == "1");
  CHECK(calls[1].arguments == "{}");
  CHECK(row.messages[3].name == "f");
  CHECK(row.messages[3].call_id == "1");
  CHECK(row.messages[4].call_id == "2");
  CHECK(row.tools ==
        R"([{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}])");
}

TEST_CASE("messages: calls in each shape") {
  const Chats chats;
  for (
      const char* keys :
      {R"("content": "c", "tool_calls": [{"name": "f", "arguments": {"y": 1, "x": [2.5, null]}}])",
       R"("content": "c", "function_call": {"name": "f", "arguments": "{\"y\":1,\"x\":[2.5,null]}"})",
       R"("content": "c", "tool_calls": [{"type": "function", "function":
             {"name": "f", "arguments": {"y": 1, "x": [2.5, null]}}}], "function_call": null)"}) {
    const Message answer = chats.answer(keys);
    CHECK(answer.content == "c");
    REQUIRE(answer.calls.size() == 1);
    CHECK(answer.calls[0].arguments == R"({"y": 1, "x": [2.5, null]})");
  }
  CHECK(chats.answer(kCall).content == "");
  CHECK(chats.answer(R"("content": "c", "tool_calls": [], "function_call": null)").calls.empty());
  CHECK_SAYS(chats.complaint_at(R"("content": null, "tool_calls": [])"), "content is null");
  CHECK_SAYS(chats.complaint_at(R"("tool_calls": "f")"), "is not a list of calls but string");
  // Integers of 64 bits are exact; larger ones would lose digits.
  CHECK(chats.answer(R"("tool_calls": [{"name": "f", "arguments": {"x": 18446744073709551615}}])")
            .calls[0]
            .arguments == R"({"x": 18446744073709551615})");
  for (const char* arguments :
       {R"({"x": [18446744073709551616]})", R"("{\"x\": -9223372036854775809}")"}) {
    CHECK_SAYS(chats.complaint_at(
                   fmt::format(R"("tool_calls": [{{"name": "f", "arguments": {}}}])", arguments)),
               "beyond 64 bits");
  }
  CHECK_SAYS(chats.complaint_at(R"("tool_calls": [{"name": "f", "arguments": "[1]"}])"),
             "message 2 of messages: tool_calls, call 1: the arguments of f must be a JSON object");
  CHECK_SAYS(chats.complaint_at(R"("tool_calls": [{"name": "f"}])"), "they are missing");
  CHECK_SAYS(chats.complaint_at(R"("tool_calls": [{"arguments": {}}])"), "wanted is {\"name\"");
  CHECK_SAYS(chats.complaint_at(R"("tool_calls": [{"type": "custom", "function": {}}])"),
             "is of type \"custom\"");
  CHECK_SAYS(chats.complaint_at(R"("tool_calls": [{"id": 1, "function": {"name": "f",
                                   "arguments": {}}}])"),
             "id is not text");
  CHECK_SAYS(chats.complaint_at(std::string(kCall) +
                                R"(, "function_call": {"name": "f", "arguments": {}})"),
             "keep one of them");
  CHECK_SAYS(chats.complaint(std::string(R"([{"role": "user", "content": "a", )") + kCall +
                             R"(}, {"role": "assistant", "content": "b"}])"),
             "tool_calls stands in a message of the user's");
}

TEST_CASE("messages: text in parts; other parts are refused by name") {
  const Chats chats;
  CHECK_SAYS(chats.complaint_at(R"("content": [{"type": "text", "text": "b"},
                                   {"type": "input_audio", "input_audio": {}}])"),
             "part 2 of content is of type \"input_audio\"");
  CHECK_SAYS(chats.complaint_at(R"("content": ["b"])"), "part 1 of content is of type \"b\"");
  CHECK_SAYS(chats.complaint_at(R"("content": [{"type": "text", "text": 1}])"), "is not text");
}

TEST_CASE("messages: thoughts under each of their names") {
  const Chats chats;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    const std::string thoughts = std::string("\"content\": \"b\", \"") + key + "\": ";
    CHECK(chats.answer(thoughts + "\"hm\"").thoughts == "hm");
    CHECK(chats.answer(thoughts + "null").thoughts == "");
    CHECK_SAYS(chats.complaint_at(thoughts + "3"), std::string(key) + " is not text");
  }
  CHECK(chats.answer(R"("content": "b", "reasoning": "hm", "reasoning_content": "hm")").thoughts ==
        "hm");
  CHECK_SAYS(chats.complaint_at(R"("content": "b", "reasoning": "hm", "thinking": "oh")"),
             "thinking and reasoning hold different thoughts");
  CHECK_SAYS(chats.complaint(R"([{"role": "user", "content": "a", "thinking": "hm"},
                                 {"role": "assistant", "content": "b"}])"),
             "thinking stands in a message of the user's");
  // LLaMA-Factory's role of calls takes thoughts before the JSON.
  chats.folder.info(R"({"file_name": "d.jsonl", "formatting": "sharegpt"})");
  chats.folder.write(
      "d.jsonl",
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "function_call",
                         "value": "<think>\nhm\n</think>\n\n{\"name\": \"f\", \"arguments\": {}}"}]})");
  const Message call = chats.folder.rows().at(0).messages.back();
  CHECK(call.thoughts == "hm");
  CHECK(call.calls.size() == 1);
}

TEST_CASE("messages: weight and train") {
  const Chats chats;
  CHECK(chats.answer(R"("content": "b", "weight": 1, "train": true)").is_trained);
  CHECK(chats.answer(R"("content": "b", "weight": null)").is_trained);
  CHECK_FALSE(chats.answer(R"("content": "b", "weight": 0)").is_trained);
  CHECK_FALSE(chats.answer(R"("content": "b", "weight": 0.0, "train": false)").is_trained);
  for (const char* weight : {"0.5", "2", "true", "\"0\""}) {
    CHECK_SAYS(chats.complaint_at(std::string(R"("content": "b", "weight": )") + weight),
               std::string("weight is ") + weight);
  }
  CHECK_SAYS(chats.complaint_at(R"("content": "b", "train": 0)"), "train is 0; wanted is true");
  CHECK_SAYS(chats.complaint_at(R"("content": "b", "train": true, "weight": 0)"),
             "weight 0 and train true contradict each other");
  CHECK_SAYS(chats.complaint(R"([{"role": "user", "content": "a", "train": true},
                                 {"role": "assistant", "content": "b"}])"),
             "these keys are for answers");
}

TEST_CASE("pairs and unpaired answers: an answer that the row takes out of training is refused") {
  const std::string question = R"([{"role": "user", "content": "a"}])";
  for (const char* stage : {"dpo", "rm"}) {
    const Chats chats(stage);
    chats.folder.info(R"({"file_name": "d.jsonl", "formatting": "openai", "ranking": true,
      "columns": {"messages": "messages", "chosen": "good", "rejected": "bad"}})");
    const char* kSides = R"(, "good": {"role": "assistant", "content": "b"},
                              "bad": {"role": "assistant", "content": null, "tool_calls":
                                      [{"name": "f", "arguments": {}}]%s})";
    std::string sides = kSides, untrained = kSides;
    sides.replace(sides.find("%s"), 2, "");
    untrained.replace(untrained.find("%s"), 2, ", \"weight\": 0");
    CHECK(chats.row(question, sides).rejected->calls.size() == 1);
    CHECK_SAYS(chats.complaint(question, untrained), "takes an answer of the pair out of training");
  }
  const Chats chats("kto");
  chats.folder.info(R"({"file_name": "d.jsonl", "formatting": "openai",
    "columns": {"messages": "messages", "kto_tag": "ok"}})");
  CHECK_SAYS(chats.complaint(R"([{"role": "user", "content": "a"},
                                 {"role": "assistant", "content": "b", "train": false}])",
                             R"(, "ok": true)"),
             "takes the answer out of training");
}

TEST_CASE("tools: a list, or one as text, in each shape; others are refused") {
  const Chats chats;
  const std::string chat =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  const std::string f = R"([{"type": "function", "function": {"name": "f"}}])";
  CHECK(chats.row(chat, ", \"tools\": " + f).tools == f);
  CHECK(chats.row(chat, R"(, "tools": "[{\"name\": \"f\"}]")").tools == f);
  for (const char* none : {"null", "\"\"", "[]", "\"[]\""}) {
    CHECK(chats.row(chat, std::string(", \"tools\": ") + none).tools == "");
  }
  CHECK_SAYS(chats.complaint(chat, R"(, "tools": "f")"), "tools: tools are a list");
  CHECK_SAYS(chats.complaint(chat, R"(, "tools": [{"type": "function"}])"), "tool 1 is");
  CHECK_SAYS(chats.complaint(chat, R"(, "tools": [{"type": "web_search"}])"), "web_search");
}

TEST_CASE("turns: results of tools in a row, and nothing else") {
  const Chats chats;
  const auto said = [&](std::initializer_list<const char*> roles) {
    std::string messages;
    for (const char* role : roles) {
      messages += (messages.empty() ? "" : ", ") +
                  std::string("{\"content\": \"x\", \"role\": \"") + role + "\"}";
    }
    return chats.complaint("[" + messages + "]");
  };
  CHECK(said({"user", "assistant", "tool", "tool", "tool", "assistant"}) == "");
  CHECK(said({"system", "tool", "function", "assistant"}) == "");
  CHECK_SAYS(said({"user", "tool", "assistant"}), "message 2 of messages is observation's");
  CHECK_SAYS(said({"user", "assistant", "tool", "user", "assistant"}), "message 4");
  CHECK_SAYS(said({"user", "assistant", "assistant"}), "a question is due");
  CHECK_SAYS(said({"user", "assistant", "tool", "tool"}), "the chat ends with a question");
  CHECK_SAYS(said({"user", "assistant", "system"}), "message 3");
}

TEST_CASE("keys that nothing reads are named in one line, with counts") {
  const Chats chats;
  chats.folder.write("d.jsonl", R"(
    {"id": 1, "meta": {}, "messages": [{"role": "user", "content": "a", "name": "Ann"},
      {"role": "assistant", "content": "b", "tool_calls": [{"index": 0, "function":
        {"name": "f", "arguments": {}}}], "refusal": null, "audio": "x"}]}
    {"id": 2, "meta": {"x": 1}, "messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b", "audio": "x"}]}
    {"id": 3, "messages": []})");
  Config config = chats.folder.config();
  config.data.on_bad_row = "skip";
  const auto notes = [&] {
    return read_run_rows(config.data, stage_of(config.method), config.optimization.seed).notes;
  };
  REQUIRE(notes().size() == 2);  // one is on the row left out
  CHECK(notes()[1] ==
        "dataset d: 5 keys are not read: name (1 message), index (1 call), audio (2 messages), "
        "id (2 rows), meta (1 row)");
  // A column of alpaca rows that the entry does not name.
  chats.folder.info(R"({"file_name": "d.jsonl"})");
  chats.folder.write("d.jsonl",
                     R"({"instruction": "a", "output": "b", "input": "", "system": "s"})");
  CHECK(notes() == std::vector<std::string>{"dataset d: 1 key is not read: system (1 row)"});
  std::string row = R"({"instruction": "a", "output": "b")";
  for (int i = 10; i < 30; ++i) row += ", \"k" + std::to_string(i) + "\": 1";
  chats.folder.write("d.jsonl", row + "}");
  CHECK_SAYS(notes().at(0), "20 keys are not read: k10 (1 row)");
  CHECK_SAYS(notes().at(0), "k19 (1 row), and 10 more");
}

}  // namespace longspan
