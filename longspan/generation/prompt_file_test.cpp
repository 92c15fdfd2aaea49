#include "longspan/generation/prompt_file.h"

#include <doctest/doctest.h>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

std::string error_of(const std::string& path) {
  try {
    read_prompt_file(path);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// "role: content" of all messages.
std::string said(const PromptRow& row) {
  std::string text;
  for (const Message& message : row.conversation.messages) {
    text += (text.empty() ? "" : " | ") + name_of(message.role) + ": " + message.content;
  }
  return text;
}

}  // namespace

TEST_CASE("prompt file: each format gives the conversation up to its last question") {
  const testing::TemporaryFolder folder;
  const auto rows = read_prompt_file(folder.write("rows.jsonl", R"(
{"prompt": "a"}
{"instruction": "b", "input": "c", "output": "not seen", "system": "s"}
{"conversations": [{"from": "human", "value": "d"}, {"from": "gpt", "value": "not seen"}]}
{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}, {"role": "user", "content": "g"}]}
{"instruction": "h", "history": [["i", "j"]]}
{"prompt": [{"role": "user", "content": "k"}], "chosen": "x", "rejected": "y"}
)"));
  REQUIRE(rows.size() == 6);
  CHECK(said(rows[0]) == "user: a");
  CHECK(said(rows[1]) == "system: s | user: b\nc");
  CHECK(said(rows[2]) == "user: d");
  CHECK(said(rows[3]) == "system: s | user: e | assistant: f | user: g");
  CHECK(said(rows[4]) == "user: i | assistant: j | user: h");
  CHECK(said(rows[5]) == "user: k");
  CHECK(answered_row(rows[0], "x", "stop") ==
        R"({"prompt":"a","predict":"x","finish_reason":"stop"})");

  // Columns keep their order, also in rows of a list.
  CHECK(
      answered_row(rows[1], "x", "stop") ==
      R"({"instruction":"b","input":"c","output":"not seen","system":"s","predict":"x","finish_reason":"stop"})");
  const auto list = read_prompt_file(
      folder.write("list.json", R"([{"prompt": [{"role": "user", "content": "k"}], "id": 1}])"));
  CHECK(
      answered_row(list[0], "x", "stop") ==
      R"({"prompt":[{"role":"user","content":"k"}],"id":1,"predict":"x","finish_reason":"stop"})");

  const auto lines = read_prompt_file(folder.write("lines.txt", "one\n\n two \n"));
  REQUIRE(lines.size() == 2);
  CHECK(said(lines[1]) == "user:  two ");
  CHECK(read_prompt_file(folder / "rows.jsonl", 2).size() == 2);
}

TEST_CASE("prompt file: csv") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("rows.csv", "id,instruction,input\n1,\"a, b\",c\n2,d,NA\n");
  std::vector<std::string> notes;
  const auto rows = read_prompt_file(path, INT64_MAX, nullptr, &notes);
  REQUIRE(rows.size() == 2);
  CHECK(said(rows[0]) == "user: a, b\nc");
  CHECK(said(rows[1]) == "user: d");
  CHECK(answered_row(rows[1], "x", "stop") ==
        R"({"id":2,"instruction":"d","input":null,"predict":"x","finish_reason":"stop"})");
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("input (1 cell, first in line 3)") != std::string::npos);
  CHECK(read_prompt_file(path, 1).size() == 1);
  CHECK(error_of(folder.write("numbers.csv", "id,prompt\na,1\nb,2\n"))
            .find("line 2: prompt is not text but number; a csv column") != std::string::npos);
  CHECK(error_of(folder.write("broken.csv", "prompt\na,1\n")).find("line 2: the row has 2 cells") !=
        std::string::npos);
}

TEST_CASE("prompt file: what cannot be asked is named with its place") {
  const testing::TemporaryFolder folder;
  const auto error = [&](const std::string& row) {
    return error_of(folder.write("rows.jsonl", "{\"prompt\": \"a\"}\n" + row));
  };
  CHECK(error(R"({"question": "a"})").find("line 2: no prompt in the row; it has: question") !=
        std::string::npos);
  CHECK(error(R"({"instruction": ""})").find("line 2: the row has no question") !=
        std::string::npos);
  CHECK(error(R"({"messages": [{"role": "boss", "content": "a"}]})").find("\"boss\"") !=
        std::string::npos);
  CHECK(error_of(folder.write("empty.jsonl", "\n")).find("no prompts") != std::string::npos);
}

TEST_CASE("prompt file: calls, thoughts, results and tools; unread keys are counted") {
  const testing::TemporaryFolder folder;
  UnreadKeys unread;
  const auto rows = read_prompt_file(folder.write("calls.jsonl", R"(
{"id": 1, "tools": [{"name": "f"}], "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}], "score": 1}, {"role": "tool", "tool_call_id": "1", "content": "r"}, {"role": "function", "name": "g", "content": "s"}, {"role": "assistant", "content": null}]}
)"),
                                     INT64_MAX, &unread);
  REQUIRE(rows.size() == 1);
  CHECK(said(rows[0]) == "user: a | assistant:  | observation: r | observation: s");
  const std::vector<Message>& messages = rows[0].conversation.messages;
  CHECK(messages[1].thoughts == "hm");
  CHECK(messages[1].calls.at(0).name == "f");
  CHECK(messages[3].name == "g");
  CHECK(rows[0].conversation.tools == R"([{"type": "function", "function": {"name": "f"}}])");
  CHECK(unread.text() == "1 key is not read: score (1 message)");
  CHECK(error_of(folder.write("bad.jsonl", R"({"instruction": "a", "history": "b"})"))
            .find("history must be a list") != std::string::npos);
}

}  // namespace longspan
