#include "longspan/data/known_columns.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

using Texts = std::vector<std::string>;

/// The rows of a data set that is named by its path, or the error.
Texts rows_of(const DatasetFolder& folder, const std::string& name, const std::string& text,
              Texts* notes = nullptr) {
  folder.write(name, text);
  Texts ignored;
  try {
    return flat(read_conversations(folder.config().data, stage_of(folder.config().method), 42, name,
                                   notes == nullptr ? ignored : *notes));
  } catch (const UserError& error) {
    return {error.what()};
  }
}

}  // namespace

TEST_CASE("a data set without an entry: its columns say how rows are read") {
  const DatasetFolder sft;
  Texts notes;
  CHECK(rows_of(sft, "a.jsonl", R"({"messages": [{"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"}], "id": 1})",
                &notes) == Texts{"u=a;a=b;"});
  REQUIRE(notes.size() == 2);
  CHECK_SAYS(notes[0],
             R"(dataset a.jsonl: there is no entry of that name; the columns messages are read as )"
             R"(by {"formatting":"openai","columns":{"messages":"messages","system":"system")");
  CHECK_SAYS(notes[1], "id (1 row)");
  CHECK(rows_of(sft, "a.csv", "prompt,completion\na,b\n") == Texts{"u=a;a=b;"});
  CHECK(rows_of(sft, "a.json", R"([{"instruction": "a", "output": "b"},
                                   {"instruction": "a", "input": "c", "output": "b"}])") ==
        Texts{"u=a;a=b;", "u=a\nc;a=b;"});
  const DatasetFolder pt("pt");
  CHECK(rows_of(pt, "a.txt", "x\ny") == Texts{"u=x;", "u=y;"});
  const DatasetFolder kto("kto");
  CHECK(rows_of(kto, "a.jsonl", R"({"prompt": "a", "completion": "b", "label": true})") ==
        Texts{"u=a;a=b;"});
}

TEST_CASE("a data set without an entry: lists of messages") {
  const DatasetFolder sft;
  const std::string chat = R"({"prompt": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b", "weight": 1}, {"role": "user", "content": "c"}],
      "completion": [{"role": "assistant", "content": "d"}]})";
  sft.write("a.json", "[" + chat + "]");
  const auto rows =
      read_conversations(sft.config().data, stage_of(sft.config().method), 42, "a.json");
  CHECK(flat(rows) == Texts{"u=a;a=b;u=c;a=d;"});
  CHECK(!rows[0].messages[1].is_trained);
  CHECK(rows[0].messages[3].is_trained);

  const DatasetFolder dpo("dpo");
  const std::string question = R"({"role": "user", "content": "a"})";
  const auto answer = [](const std::string& text) {
    return R"({"role": "assistant", "content": ")" + text + R"("})";
  };
  const auto pair = [&](const std::string& chosen, const std::string& rejected,
                        const std::string& more = "") {
    return rows_of(
               dpo, "a.json",
               R"([{"chosen": [)" + chosen + R"(], "rejected": [)" + rejected + "]" + more + "}]")
        .front();
  };
  const std::string first = question + "," + answer("b"), second = question + "," + answer("c");
  CHECK(pair(first, second) == "u=a;a=b;r=c;");
  CHECK(pair(first, first) == "u=a;a=b;r=b;");
  CHECK(pair(first, second, R"(, "prompt": "a")") == "u=a;a=b;r=c;");
  CHECK(pair(answer("b"), answer("c"), R"(, "prompt": [)" + question + "]") == "u=a;a=b;r=c;");
  CHECK_SAYS(pair(first, second, R"(, "prompt": "z")"), "row 1: prompt differs");
  CHECK_SAYS(pair(first + "," + first, second), "chosen has 3 messages after the question");
  CHECK_SAYS(pair(first, second, R"(}, {"chosen": 1, "rejected": 2)"),
             "row 2: chosen is number; wanted is a list of messages");
}

TEST_CASE("a data set without an entry: what is wrong is said") {
  const DatasetFolder sft;
  const std::string error = rows_of(sft, "b.jsonl", R"({"question": "a", "answer": "b"})").front();
  CHECK_SAYS(error,
             "dataset b.jsonl: its columns (question, answer) do not say how rows of stage sft");
  CHECK_SAYS(error, R"("b": {"file_name":")" + sft.path() + "/b.jsonl");
  CHECK_SAYS(error, R"("columns":{"prompt":"question","response":"answer"}})");
  CHECK_SAYS(rows_of(sft, "b.jsonl", "").front(), "there are no rows");
  CHECK_SAYS(rows_of(sft, "b.jsonl", R"({"text": "a"})").front(), "of stage sft are read");
  DataSettings config = sft.config().data;
  CHECK_THROWS_WITH_AS(read_conversations(config, stage_of(sft.config().method), 42, "gone.jsonl"),
                       doctest::Contains("there is no such file, neither here nor in"), UserError);
  // An entry of that name comes first.
  sft.write("dataset_info.json", R"({"b.jsonl": {"file_name": "b.jsonl",
      "columns": {"prompt": "question", "response": "answer"}}})");
  CHECK(rows_of(sft, "b.jsonl", R"({"question": "a", "answer": "b"})") == Texts{"u=a;a=b;"});
}

}  // namespace longspan
