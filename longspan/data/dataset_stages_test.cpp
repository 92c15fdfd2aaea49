// Rows of stages other than sft.
#include <doctest/doctest.h>

#include "longspan/config/config.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

using Texts = std::vector<std::string>;

const char* kPairs = R"({"file_name": "d.json", "ranking": true,
  "columns": {"prompt": "p", "query": "q", "chosen": "good", "rejected": "bad",
              "history": "h", "system": "s"}})";
const char* kPairChats = R"({"file_name": "d.json", "ranking": true, "formatting": "sharegpt",
  "columns": {"messages": "conversations", "chosen": "good", "rejected": "bad"}})";
const char* kUnpaired = R"({"file_name": "d.json",
  "columns": {"prompt": "p", "response": "r", "kto_tag": "ok"}})";

}  // namespace

TEST_CASE("pairs: alpaca has texts, sharegpt one message each") {
  for (const char* stage : {"dpo", "rm"}) {
    const DatasetFolder folder(stage);
    folder.info(kPairs);
    folder.write("d.json", R"([
      {"p": "a", "q": "b", "good": "c", "bad": "d", "h": [["e", "f"]], "s": "g"},
      {"p": "a", "q": "", "good": "c", "bad": "", "h": [], "s": null}])");
    CHECK(flat(folder.rows()) == Texts{"s=g;u=e;a=f;u=a\nb;a=c;r=d;", "u=a;a=c;r=;"});
    folder.info(kPairChats);
    folder.write("d.json", R"([
      {"conversations": [{"from": "human", "value": "a"}],
       "good": {"from": "gpt", "value": "c"}, "bad": {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"}},
      {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"},
                         {"from": "gpt", "value": "b"}, {"from": "observation", "value": "o"}],
       "good": {"from": "gpt", "value": "c"}, "bad": {"from": "gpt", "value": "d"}}])");
    const auto rows = folder.rows();
    CHECK(flat(rows) == Texts{"u=a;a=c;r=;", "s=s;u=a;a=b;o=o;a=c;r=d;"});
    REQUIRE(rows[0].rejected->calls.size() == 1);
    CHECK(rows[0].rejected->calls[0].name == "f");
  }
}

TEST_CASE("pairs in a csv file") {
  const DatasetFolder folder("dpo");
  folder.info(R"({"file_name": "d.csv", "ranking": true,
                  "columns": {"prompt": "p", "chosen": "good", "rejected": "bad"}})");
  folder.write("d.csv", "p,good,bad\na,b,5\nc,d,e\n");
  CHECK(flat(folder.rows()) == Texts{"u=a;a=b;r=5;", "u=c;a=d;r=e;"});
  folder.write("d.csv", "p,good,bad\na,b,5\nc,d,6\n");
  CHECK_SAYS(folder.complaint(),
             "d.csv, line 2: bad is the number 5; wanted is text (a message "
             "belongs to \"formatting\": \"sharegpt\"); a csv column whose cells");
}

TEST_CASE("unpaired answers: true and false") {
  const DatasetFolder folder("kto");
  folder.info(kUnpaired);
  folder.write("d.json",
               R"([{"p": "a", "r": "b", "ok": true}, {"p": "c", "r": "d", "ok": false}])");
  const auto rows = folder.rows();
  CHECK(flat(rows) == Texts{"u=a;a=b;", "u=c;a=d;"});
  CHECK(rows[0].desirable);
  CHECK_FALSE(rows[1].desirable);
  folder.info(R"({"file_name": "d.json", "formatting": "sharegpt",
                  "columns": {"messages": "m", "kto_tag": "ok"}})");
  folder.write("d.json", R"([{"m": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
                              "ok": false}])");
  CHECK_FALSE(folder.rows()[0].desirable);
  folder.info(
      R"({"file_name": "d.csv", "columns": {"prompt": "p", "response": "r", "kto_tag": "ok"}})");
  folder.write("d.csv", "p,r,ok\na,b,True\nc,d,FALSE\n");
  CHECK(flat(folder.rows()) == Texts{"u=a;a=b;", "u=c;a=d;"});
  CHECK(folder.rows()[0].desirable);
  CHECK_FALSE(folder.rows()[1].desirable);
  folder.write("d.csv", "p,r,ok\na,b,1\nc,d,0\n");
  CHECK_SAYS(folder.complaint(), "d.csv, line 2: ok is the number 1; wanted is true");
}

TEST_CASE("texts: prompt, prompt and query, empty ones, lines of a text file") {
  const DatasetFolder folder("pt");
  folder.info(R"({"file_name": "d.jsonl", "columns": {"prompt": "text"}})");
  folder.write("d.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n{\"text\": null}\n");
  CHECK(flat(folder.rows()) == Texts{"u=a;", "u=;", "u=;"});
  folder.info(R"({"file_name": "d.jsonl"})");
  folder.write("d.jsonl", R"({"instruction": "a", "input": "b", "output": "c"})");
  CHECK(flat(folder.rows()) == Texts{"u=a\nb;"});

  folder.info(R"({"file_name": "d.txt", "columns": {"prompt": "text"}})");
  // Python's "a\n\nb \r\nc\rd\n\n".splitlines(); no line follows the last line end.
  folder.write("d.txt",
               "\xef\xbb\xbf"
               "a\n\nb \r\nc\rd\n\n");
  CHECK(flat(folder.rows()) == Texts{"u=a;", "u=;", "u=b ;", "u=c;", "u=d;", "u=;"});
  CHECK(has(folder.rows()[2].source, "d.txt, line 3"));
  for (const char* end : {"", "\n", "\r", "\r\n"}) {
    folder.write("d.txt", std::string("a\nb") + end);
    CHECK(flat(folder.rows()) == Texts{"u=a;", "u=b;"});
  }
  folder.write("d.txt", "a\n\xff\n");
  CHECK_SAYS(folder.complaint(), "d.txt, line 2: this is not UTF-8 text");
  folder.info(R"({"file_name": "d.csv", "columns": {"prompt": "text"}})");
  folder.write("d.csv", "text\na\n\nNA\n\"b\nc\"\n");
  CHECK(flat(folder.rows()) == Texts{"u=a;", "u=;", "u=b\nc;"});
}

TEST_CASE("val_size and max_samples work on pairs") {
  const DatasetFolder folder("dpo");
  std::string lines;
  for (int i = 0; i < 10; ++i) {
    lines += R"({"p": ")" + std::to_string(i) + R"(", "c": "x", "r": "y"})" + "\n";
  }
  folder.write("d.jsonl", lines);
  folder.info(R"({"file_name": "d.jsonl", "ranking": true,
                  "columns": {"prompt": "p", "chosen": "c", "rejected": "r"}})");
  Config config = folder.config();
  config.data.max_samples = 8;
  config.data.val_size = 2;
  const RunRows rows =
      read_run_rows(config.data, stage_of(config.method), config.optimization.seed);
  CHECK(rows.train.size() == 6);
  CHECK(rows.eval.size() == 2);
  CHECK(rows.eval[0].rejected->content == "y");
}

TEST_CASE("an entry for another stage: what is wrong is said") {
  const auto complaint = [](const char* stage, const std::string& rest) {
    const DatasetFolder folder(stage);
    folder.write("d.json", "[]");
    folder.info("{\"file_name\": \"d.json\", " + rest + "}");
    return folder.complaint();
  };
  const char* both = R"("columns": {"prompt": "p", "chosen": "c", "rejected": "r"})";
  const std::string ranking = std::string(R"("ranking": true, )") + both;
  for (const char* stage : {"sft", "pt", "kto"}) {
    CHECK_SAYS(complaint(stage, ranking),
               "ranking: true is for pairs of answers (stages dpo and rm), the stage is " +
                   std::string(stage));
  }
  CHECK_SAYS(complaint("sft", ranking), R"("response": "chosen")");
  CHECK_SAYS(complaint("dpo", both), "the entry must say \"ranking\": true");
  CHECK_SAYS(complaint("rm", R"("formatting": "sharegpt")"), R"("columns": {"messages": ...)");
  CHECK_SAYS(complaint("dpo", R"("ranking": true)"), "columns lists no chosen");
  CHECK_SAYS(complaint("dpo", R"("ranking": true, "columns": {"prompt": "p", "chosen": "c"})"),
             "columns lists no rejected");
  CHECK_SAYS(complaint("dpo", R"("ranking": "yes")"), "wanted is true or false");
  CHECK_SAYS(complaint("sft", both), "columns lists chosen, but stage sft has one answer a row");
  CHECK_SAYS(complaint("kto", R"("columns": {"prompt": "p", "response": "r"})"),
             "columns lists no kto_tag");
  CHECK_SAYS(complaint("sft", R"("columns": {"prompt": "p", "response": "r", "kto_tag": "k"})"),
             "kto_tag, which is for stage kto");
  CHECK_SAYS(complaint("pt", R"("formatting": "sharegpt")"), "stage pt reads one text a row");
  CHECK_SAYS(complaint("pt", R"("columns": {"response": "r"})"), "columns lists no prompt");
  CHECK_SAYS(complaint("pt", R"("columns": {"prompt": "p", "response": "r"})"),
             "the text of prompt (and query) alone");
}

TEST_CASE("rows of pairs, unpaired answers and texts: what is wrong is said, with file and row") {
  const auto complaint = [](const char* stage, const char* entry, const std::string& rows) {
    const DatasetFolder folder(stage);
    folder.info(entry);
    folder.write("d.json", rows);
    return folder.complaint();
  };
  const char* pairs = R"({"file_name": "d.json", "ranking": true,
                          "columns": {"prompt": "p", "chosen": "c", "rejected": "r"}})";
  CHECK_SAYS(
      complaint("dpo", pairs, R"([{"p": "a", "c": "b", "r": {"from": "gpt", "value": "x"}}])"),
      "d.json, row 1: r is an object {\"from\":\"gpt\",\"value\":\"x\"}; wanted is text");
  CHECK_SAYS(complaint("dpo", pairs, R"([{"p": "a", "c": "b", "r": "d"}, {"p": "a", "r": "d"}])"),
             "d.json, row 2: c is missing; wanted is text");
  CHECK_SAYS(complaint("dpo", pairs, R"([{"p": "a", "c": null, "r": "d"}])"), "c is null");
  const std::string wrong =
      complaint("dpo", pairs, R"([{"question": "a", "chosen": "b", "rejected": "d"}])");
  CHECK_SAYS(wrong, "there is no column c; the row has: question, chosen, rejected");
  CHECK_SAYS(
      wrong,
      R"("ranking":true,"columns":{"prompt":"question","chosen":"chosen","rejected":"rejected"})");

  const auto chat = [&](const std::string& messages, const std::string& good) {
    return complaint("dpo", kPairChats,
                     "[{\"conversations\": [" + messages + "], \"good\": " + good +
                         R"(, "bad": {"from": "gpt", "value": "x"}}])");
  };
  const std::string user = R"({"from": "human", "value": "a"})",
                    gpt = R"({"from": "gpt", "value": "b"})";
  CHECK(chat(user, gpt) == "");
  CHECK_SAYS(chat(user, "\"b\""),
             "good is text \"b\"; wanted is one message, {\"from\": ..., \"value\": ...}");
  CHECK_SAYS(chat(user, "[" + user + "," + gpt + "]"), "good is a list ");
  CHECK_SAYS(chat(user, user), "good is user's; wanted is an answer");
  CHECK_SAYS(chat(user, R"({"role": "gpt"})"), "good has no from; it has: role");
  CHECK_SAYS(
      chat(user + "," + gpt, gpt),
      "the last message of conversations must be the question that good and bad answer; it is "
      "assistant's");
  CHECK_SAYS(chat("", gpt), "the row has no question (conversations is empty)");

  for (const char* tag : {"\"true\"", "1", "null"}) {
    const std::string rows = std::string(R"([{"p": "a", "r": "b", "ok": )") + tag + "}]";
    CHECK_SAYS(complaint("kto", kUnpaired, rows), "d.json, row 1: ok is ");
    CHECK_SAYS(complaint("kto", kUnpaired, rows), "wanted is true (the answer is good) or false");
  }
  CHECK_SAYS(complaint("kto", kUnpaired, R"([{"p": "a", "r": "b", "good": true}])"),
             R"("columns":{"prompt":"<column>","response":"<column>","kto_tag":"good"})");
  CHECK_SAYS(complaint("kto", kUnpaired, R"([{"p": "a", "r": "", "ok": true}])"), "no answer");
  const char* texts = R"({"file_name": "d.json", "columns": {"prompt": "p"}})";
  CHECK_SAYS(complaint("pt", texts, R"([{"text": "a"}])"), R"("columns":{"prompt":"text"})");
  CHECK_SAYS(complaint("pt", texts, R"([{"p": 3}])"), "row 1: p is not text but number");
}

}  // namespace longspan
