#include "longspan/data/dataset.h"

#include <doctest/doctest.h>

#include <set>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

using Texts = std::vector<std::string>;

const char* kTags =
    R"("tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                "assistant_tag": "assistant", "system_tag": "system"})";

}  // namespace

TEST_CASE("alpaca: prompt and query, history, system") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.json", "columns": {"prompt": "instruction", "query": "input",
                  "response": "output", "system": "system", "history": "history"}})");
  folder.write("d.json", R"([
    {"instruction": "a", "input": "b", "output": "c", "system": "s", "history": [["p", "q"]]},
    {"instruction": "a", "input": "", "output": "c", "system": "", "history": []},
    {"instruction": "", "input": "b", "output": "c", "system": null, "history": null},
    {"input": "b", "output": "c"}])");
  CHECK(flat(folder.rows()) ==
        Texts{"s=s;u=p;a=q;u=a\nb;a=c;", "u=a;a=c;", "u=b;a=c;", "u=b;a=c;"});
  CHECK(has(folder.rows()[2].source, "d.json, row 3"));
}

TEST_CASE("alpaca: default columns; a columns block resets what it does not list") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.jsonl"})");
  folder.write("d.jsonl",
               "\xef\xbb\xbf{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}\n\n"
               "{\"instruction\": \"d\", \"output\": \"e\"}\r\n");
  CHECK(flat(folder.rows()) == Texts{"u=a\nb;a=c;", "u=d;a=e;"});
  CHECK(has(folder.rows()[1].source, "d.jsonl, line 3"));
  folder.info(
      R"({"file_name": "d.jsonl", "columns": {"prompt": "instruction", "response": "output"}})");
  CHECK(flat(folder.rows()) == Texts{"u=a;a=c;", "u=d;a=e;"});
}

TEST_CASE("sharegpt: default tags, OpenAI's tags, system message or column, observations") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.json", "formatting": "sharegpt",
                  "columns": {"messages": "conversations", "system": "sys"}})");
  folder.write("d.json", R"([
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "sys": "s"},
    {"conversations": [{"from": "system", "value": "t"}, {"from": "human", "value": "a"},
                       {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
                       {"from": "observation", "value": "o"},
                       {"from": "gpt", "value": "b"}], "sys": "s"}])");
  CHECK(flat(folder.rows()) == Texts{"s=s;u=a;a=b;", "s=t;u=a;a=;o=o;a=b;"});

  folder.info(std::string(R"({"file_name": "d.json", "formatting": "sharegpt",
                              "columns": {"messages": "messages"}, )") +
              kTags + "}");
  folder.write("d.json", R"([{"messages": [{"role": "system", "content": "s"},
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}])");
  CHECK(flat(folder.rows()) == Texts{"s=s;u=a;a=b;"});
  // An empty system message stays, for templates with a default.
  folder.write("d.json", R"([{"messages": [{"role": "system", "content": ""},
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}])");
  CHECK(flat(folder.rows()) == Texts{"s=;u=a;a=b;"});
}

TEST_CASE(
    "files: folders in the order of names, several datasets, absolute paths, json lines in .json") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "parts"})");
  folder.write("parts/2.json", R"([{"instruction": "c", "output": "C"}])");
  folder.write("parts/1.jsonl", R"({"instruction": "a", "output": "A"})");
  CHECK(flat(folder.rows()) == Texts{"u=a;a=A;", "u=c;a=C;"});
  CHECK(read_conversations(folder.config().data, stage_of(folder.config().method), 42, "d, d")
            .size() == 4);
  folder.write(
      "lines.json",
      "{\"instruction\": \"x\", \"output\": \"X\"}\n{\"instruction\": \"y\", \"output\": \"Y\"}\n");
  folder.info("{\"file_name\": \"" + folder.config().data.dataset_dir + "/lines.json\"}");
  CHECK(flat(folder.rows()) == Texts{"u=x;a=X;", "u=y;a=Y;"});
}

TEST_CASE("max_samples, num_samples, val_size") {
  const DatasetFolder folder;
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += "{\"instruction\": \"" + std::to_string(i) + "\", \"output\": \"x\"}\n";
  }
  folder.write("d.jsonl", lines + "broken\n");
  folder.info(R"({"file_name": "d.jsonl"})");
  Config config = folder.config();
  config.data.max_samples = 3;
  CHECK(flat(read_conversations(config.data, stage_of(config.method), config.optimization.seed,
                                "d")) == Texts{"u=0;a=x;", "u=1;a=x;", "u=2;a=x;"});

  folder.write("d.jsonl", lines);
  config.data.max_samples.reset();
  folder.info(R"({"file_name": "d.jsonl", "num_samples": 50})");
  const Texts sampled =
      flat(read_conversations(config.data, stage_of(config.method), config.optimization.seed, "d"));
  CHECK(sampled.size() == 50);
  CHECK(std::set(sampled.begin(), sampled.begin() + 20).size() == 20);
  CHECK(std::set(sampled.begin() + 20, sampled.begin() + 40).size() == 20);
  CHECK(sampled == flat(read_conversations(config.data, stage_of(config.method),
                                           config.optimization.seed, "d")));

  folder.info(R"({"file_name": "d.jsonl"})");
  for (double val_size : {0.11, 3.0}) {
    config.data.val_size = val_size;
    const RunRows rows =
        read_run_rows(config.data, stage_of(config.method), config.optimization.seed);
    CHECK(rows.eval.size() == 3);
    CHECK(rows.train.size() == 17);
    Texts all = flat(rows.train), eval = flat(rows.eval);
    all.insert(all.end(), eval.begin(), eval.end());
    CHECK(std::set(all.begin(), all.end()).size() == 20);
  }
  config.data.val_size = 20;
  CHECK_THROWS_AS(read_run_rows(config.data, stage_of(config.method), config.optimization.seed),
                  UserError);
  config.data.val_size = 0;
  config.data.eval_dataset = "d";
  CHECK(read_run_rows(config.data, stage_of(config.method), config.optimization.seed).eval.size() ==
        20);
}

TEST_CASE("dataset_info.json: what is wrong is said") {
  const DatasetFolder folder;
  CHECK_SAYS(folder.complaint(), "there is no ");
  folder.write("dataset_info.json", "{\"d\":\n  {\"file_name\" \"x\"}}");
  CHECK_SAYS(folder.complaint(), "dataset_info.json, line 2: broken JSON");
  folder.write("dataset_info.json", R"({"dd": {"file_name": "x.json"}, "other": {}})");
  CHECK_SAYS(folder.complaint(), "there is no dataset d; the nearest is dd");
  folder.info(R"({"file_name": "gone.json"})");
  CHECK_SAYS(folder.complaint(), "gone.json");
  folder.write("d.parquet", "PAR1");
  folder.info(R"({"file_name": "d.parquet"})");
  CHECK_SAYS(folder.complaint(), "d.parquet: the file is broken");
  folder.write("d.orc", "ORC");
  folder.info(R"({"file_name": "d.orc"})");
  CHECK_SAYS(folder.complaint(), "d.orc: such files are not read; json, jsonl, csv and txt files");
  folder.write("d.json", "[]");
  const auto entry = [&](const std::string& extra) {
    folder.info("{\"file_name\": \"d.json\", " + extra + "}");
    return folder.complaint();
  };
  CHECK_SAYS(entry(R"("ranking": true)"), "ranking: true is for pairs of answers");
  CHECK_SAYS(entry(R"("hf_hub_url": "a/b")"),
             "hf download a/b --repo-type dataset --local-dir " + folder.path() + "/b");
  CHECK_SAYS(entry(R"("hf_hub_url": "a/b")"), R"("d": {"file_name":"b/data/train-*.parquet"})");
  CHECK_SAYS(entry(R"("hf_hub_url": "a; b")"), "fetch the files before");
  CHECK_SAYS(entry(R"("ms_hub_url": "a/b")"), "modelscope download --dataset a/b");
  CHECK_SAYS(entry(R"("om_hub_url": "a/b")"), "get('a/b', repo_type='dataset'");
  CHECK_SAYS(entry(R"("script_url": "s")"), "trust_remote_code=True).to_parquet");
  CHECK_SAYS(entry(R"("cloud_file_name": "s3://a/b.json")"), "aws s3 cp s3://a/b.json");
  CHECK_SAYS(entry(R"("cloud_file_name": "gs://a/b.json")"), "gcloud storage cp gs://a/b.json");
  CHECK_SAYS(entry(R"("subset": "s")"), "subset is known but not supported");
  CHECK_SAYS(entry(R"("formatting": "chatml")"), "wanted is alpaca, sharegpt or openai");
  CHECK_SAYS(entry(R"("split": "test")"), "only train");
  CHECK_SAYS(entry(R"("colums": {})"), "the nearest known key is columns");
  CHECK_SAYS(entry(R"("columns": {"audios": "i"})"), "audios is known but not supported");
  CHECK_SAYS(entry(R"("columns": {"prompts": "i"})"), "the nearest known key is prompt");
  CHECK_SAYS(entry(R"("columns": {"prompt": "i"})"), "no response");
  CHECK_SAYS(entry(R"("tags": {"role_tag": "role"})"), "must be there");
  CHECK_SAYS(entry(R"("num_samples": 0)"), "at least 1");
  CHECK_SAYS(entry(R"("split": "train")"), "there are no rows");
}

TEST_CASE("rows: what is wrong is said, with file and row") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.json"})");
  const auto row = [&](const std::string& text) {
    folder.write("d.json", text);
    return folder.complaint();
  };
  CHECK_SAYS(row("[{\"instruction\": \"a\",\n\"output\": \"b\"},\n{\"instruction\" 3}]"),
             "d.json, line 3: broken JSON");
  CHECK_SAYS(row("{\"instruction\": \"a\", \"output\": \"b\"}\n{\"instr\n"),
             "d.json, line 2: broken");
  CHECK_SAYS(row(R"([{"instruction": "a", "output": "b"}, 7])"), "row 2: wanted is an object");
  for (const char* answer : {R"("output": "")", R"("output": null)", R"("x": 1)"}) {
    const std::string text =
        row(std::string(R"([{"instruction": "a", "output": "b"}, {"instruction": "a", )") + answer +
            "}]");
    CHECK_SAYS(text, "d.json, row 2: the row has no answer (output is empty)");
  }
  CHECK_SAYS(row(R"([{"instruction": "a", "output": 3}])"), "output is not text but number");
  const std::string wrong = row(R"([{"question": "a", "answer": "b"}])");
  CHECK_SAYS(wrong, "there is no column output; the row has: question, answer");
  CHECK_SAYS(wrong, R"("columns":{"prompt":"question","response":"answer"})");
  CHECK_SAYS(row(R"([{"question": "a", "output": "b"}])"), "no row has a column instruction");
  CHECK_SAYS(row(R"([{"messages": [{"role": "user", "content": "a"},
                                   {"role": "assistant", "content": "b"}]}])"),
             R"("formatting":"openai","columns":{"messages":"messages"}})");
  CHECK_SAYS(
      row(R"([{"messages": [{"role": "human", "content": "a"}], "tools": "[]"}])"),
      R"("formatting":"sharegpt","columns":{"messages":"messages","tools":"tools"},"tags":{"role_tag":"role")");
}

TEST_CASE("sharegpt rows: what is wrong is said") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.json", "formatting": "sharegpt"})");
  const auto row = [&](const std::string& messages) {
    folder.write("d.json", "[{\"conversations\": " + messages + "}]");
    return folder.complaint();
  };
  const std::string user = R"({"from": "human", "value": "a"})";
  const std::string gpt = R"({"from": "gpt", "value": "b"})";
  CHECK(row("[" + user + "," + gpt + "]") == "");
  CHECK_SAYS(row("[]"), "row 1: the row has no answer");
  CHECK_SAYS(row("[" + user + "]"), "the chat ends with a question (message 1 of conversations");
  CHECK_SAYS(row("[" + user + R"(, {"from": "gpt", "value": ""}])"), "no answer");
  CHECK_SAYS(row(R"([{"from": "system", "value": "s"}])"), "no answer");
  CHECK_SAYS(row("[" + gpt + "," + user + "]"), "message 1 of conversations is assistant's");
  CHECK_SAYS(row("[" + user + "," + user + "]"), "an answer is due");
  CHECK_SAYS(
      row("[" + user + R"(, {"from": "critic", "value": "b"}])"),
      "its from is \"critic\"; dataset d knows human, gpt, observation, function_call, system");
  CHECK_SAYS(row(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])"),
             "has no from; it has: role, content");
  CHECK_SAYS(row("[" + user + R"(, {"from": "gpt", "value": null}])"), "value is null");
  CHECK_SAYS(row("[" + user + R"(, {"from": "gpt", "value": 3}])"), "value is not text");
  CHECK_SAYS(row("\"text\""), "conversations is not a list of messages");
}

TEST_CASE("rows: a list of messages may hold anything") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.json", "formatting": "sharegpt"})");
  // The columns have other names, so an entry is suggested.
  for (const char* messages : {R"([{"role": "user", "content": "a"}, 3])", R"([{"role": 1}, null])",
                               R"([{}, [[]], "text"])"}) {
    folder.write("d.json", std::string(R"([{"messages": )") + messages + "}]");
    CHECK_SAYS(folder.complaint(), "there is no column conversations");
  }
}

}  // namespace longspan
