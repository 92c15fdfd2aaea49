#include "longspan/data/streamed_examples.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/data/mixed_order.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {
namespace {

constexpr int kBuffer = 12;

std::string line_of(int number, bool is_text = false) {
  const std::string question = "question " + std::to_string(number);
  const std::string answer = std::string(number * 7 % 31 + 1, 'y') + "\"}\n";
  if (is_text) return R"({"text": ")" + question + answer;
  return R"({"instruction": ")" + question + R"(", "output": ")" + answer;
}

/// Rows of many lengths in two files of one data set.
struct Stream {
  explicit Stream(const std::string& stage, int num_rows = 40)
      : folder(stage), config(folder.config()) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "question " + std::to_string(i * 37) + " is answered.\n";
    train_byte_level_bpe({folder.write("text.txt", text)}, 300, folder.path() + "/tokenizer");
    tokenizer = Tokenizer::load(folder.path() + "/tokenizer");
    std::string first, second;
    for (int i = 0; i < num_rows; ++i) {
      (i < num_rows / 3 ? first : second) += line_of(i, stage == "pt");
    }
    config.data.dataset = folder.write("rows/a.jsonl", first);
    folder.write("rows/b.jsonl", second);
    config.data.dataset = folder.path() + "/rows";
    config.data.chat_template = "chatml";
    config.data.cutoff_len = 48;
    config.data.streaming = true;
    config.data.buffer_size = kBuffer;
  }

  StreamJob job() const {
    return {.config = config.data,
            .stage = stage_of(config.method),
            .tokenizer = tokenizer,
            .template_time = local_time_now(),
            .vocab_size = INT64_MAX,
            .seed = 3,
            .shuffles = true};
  }
  /// The numbers of an epoch's rows, in order.
  std::vector<int64_t> numbers(int64_t epoch, bool shuffles) const {
    const auto entries = streamed_datasets(config.data, stage_of(config.method));
    StreamedRows rows(config.data, entries, /*seed=*/3, shuffles, epoch);
    std::vector<int64_t> all;
    while (const auto row = rows.next()) all.push_back(row->number);
    return all;
  }

  DatasetFolder folder;
  Config config;
  Tokenizer tokenizer;
};

using Tokens = std::vector<std::vector<int32_t>>;

Tokens tokens_of(const Example& example) {
  Tokens tokens;
  for (const Sample& document : example.documents) {
    tokens.push_back(document.input_ids);
    tokens.push_back(document.labels);
  }
  tokens.emplace_back(example.position_restarts.begin(), example.position_restarts.end());
  return tokens;
}

}  // namespace

TEST_CASE("a stream: each epoch has each row once, in an order of its own") {
  constexpr int kRows = 40;
  const Stream stream("sft", kRows);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> order = stream.numbers(epoch, /*shuffles=*/true);
    REQUIRE(order.size() == kRows);
    orders.insert(order);
    // A row that is taken has been in the buffer.
    for (int64_t i = 0; i < kRows; ++i)
      CHECK(order[i] < i / (kBuffer / 2) * (kBuffer / 2) + kBuffer);
    std::ranges::sort(order);
    for (int64_t i = 0; i < kRows; ++i) CHECK(order[i] == i);
  }
  CHECK(orders.size() == 4);
  CHECK(std::ranges::is_sorted(stream.numbers(1, /*shuffles=*/false)));
}

TEST_CASE("a stream: it goes on from each place") {
  constexpr int kRows = 2100;  // three windows
  struct Way {
    const char* stage;
    bool packs, neat;
    const char* on_bad_row = "stop";
    const char* mix = "concat";
  };
  for (const Way& way :
       {Way{"pt", true, false}, Way{"sft", false, false}, Way{"sft", true, false},
        Way{"sft", true, true}, Way{"sft", false, false, "skip"}, Way{"sft", true, false, "skip"},
        Way{"sft", false, false, "stop", "interleave_over"}}) {
    CAPTURE(way.stage);
    CAPTURE(way.packs);
    CAPTURE(way.on_bad_row);
    CAPTURE(way.mix);
    Stream stream(way.stage, kRows);
    const bool skips = way.on_bad_row == std::string("skip");
    const bool mixes = way.mix != std::string("concat");
    stream.config.data.on_bad_row = way.on_bad_row;
    stream.config.data.mix_strategy = way.mix;
    if (skips) stream.folder.write("rows/aa.jsonl", line_of(0) + "{\n" + line_of(1) + "{\n");
    if (mixes) {  // a data set of 700 rows, and one of 1400
      const std::string rows = stream.folder.path() + "/rows/";
      stream.config.data.dataset = rows + "a.jsonl," + rows + "b.jsonl";
    }
    stream.config.data.packing = way.packs;
    stream.config.data.neat_packing = way.neat;
    stream.config.data.val_size = 3;
    const StreamJob job = stream.job();
    StreamedExamples whole(job, {});
    std::vector<Tokens> all;
    std::vector<StreamPlace> places;
    while (places.empty() || places.back().epoch < 2) {
      const StreamedExamples::Drawn drawn = whole.next();
      all.push_back(tokens_of(drawn.example));
      places.push_back(drawn.after);
    }
    for (size_t i = 0; i + 1 < all.size(); i += all.size() / 9) {
      StreamedExamples rest(job, StreamPlace::from(places[i].text()));
      for (size_t j = i + 1; j < std::min(all.size(), i + 4); ++j) {
        CHECK((tokens_of(rest.next().example) == all[j]));
      }
    }
    if (way.packs || skips || mixes) continue;
    // The rows of val_size are in no epoch.
    std::map<Tokens, int> counts;
    for (size_t i = 0; i < 2 * (kRows - 3); ++i) ++counts[all[i]];
    CHECK(counts.size() == kRows - 3);
    CHECK(std::ranges::all_of(counts, [](const auto& one) { return one.second == 2; }));
  }
  CHECK_THROWS_AS(StreamPlace::from(""), UserError);
  CHECK_THROWS_AS(StreamPlace::from("1 2"), UserError);
  CHECK_THROWS_AS(StreamPlace::from("1 -2 3"), UserError);
}

TEST_CASE("a stream: each answer of kto has the answer of another row beside it") {
  Stream stream("kto", 6);
  // Two long rows fill the first window of an epoch. The second window has one row, or two.
  const auto line = [](int number, size_t size) {
    return R"({"instruction": "question", "output": ")" + std::to_string(number) +
           R"(", "label": true, "unread": ")" + std::string(size, 'y') + "\"}\n";
  };
  stream.folder.info(R"({"file_name": "d.jsonl", "columns":
      {"prompt": "instruction", "response": "output", "kto_tag": "label"}})");
  stream.config.data.dataset = "d";
  stream.config.data.cutoff_len = 4096;
  for (const bool is_alone : {true, false}) {
    stream.folder.write("d.jsonl", line(0, 700'000) + line(1, 700'000) + line(2, 10) +
                                       (is_alone ? "" : line(3, 10)));
    StreamJob job = stream.job();
    job.shuffles = false;
    StreamedExamples whole(job, {});
    std::vector<std::vector<std::vector<int32_t>>> answers;  // own answer, answer for KL
    std::vector<StreamPlace> places;
    std::vector<Tokens> all;
    const auto labels_of = [](const Sample& sample) {
      std::vector<int32_t> labels;
      std::ranges::copy_if(sample.labels, std::back_inserter(labels),
                           [](int32_t label) { return label >= 0; });
      return labels;
    };
    while (places.empty() || places.back().epoch == 0) {
      const StreamedExamples::Drawn drawn = whole.next();
      const std::vector<Sample>& documents = drawn.example.documents;
      REQUIRE(documents.size() == 2);
      answers.push_back({labels_of(documents[0]), labels_of(documents[1])});
      places.push_back(drawn.after);
      all.push_back(tokens_of(drawn.example));
    }
    CHECK((answers[0][1] == answers[1][0]));
    CHECK((answers[1][1] == answers[0][0]));
    CHECK((answers[2][1] == answers[is_alone ? 1 : 3][0]));
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      StreamedExamples rest(job, places[i]);
      CHECK((tokens_of(rest.next().example) == all[i + 1]));
    }
  }
  stream.folder.write("d.jsonl", line(0, 10));
  const StreamJob job = stream.job();
  StreamedExamples one(job, {});
  CHECK_THROWS_WITH_AS(one.next(), doctest::Contains("at least two rows"), UserError);
}

TEST_CASE("a stream: kto gives no row the answer of a row that was left out") {
  Stream stream("kto", 6);
  // Two long rows fill a window. The question of row 3 leaves no token to its answer, and row 2 is
  // alone with it. Row 4 is alone in the last window.
  std::string rows;
  for (int number = 0; number < 5; ++number) {
    std::string question = "question", answer = std::to_string(number);
    for (int i = 0; number == 3 && i < 4000; ++i) question += " question";
    for (int i = 0; number == 3 && i < 40; ++i) answer += " 3";
    rows += R"({"instruction": ")" + question + R"(", "output": ")" + answer +
            R"(", "label": true, "unread": ")" + std::string(number < 4 ? 700'000 : 10, 'y') +
            "\"}\n";
  }
  stream.folder.info(R"({"file_name": "d.jsonl", "columns":
      {"prompt": "instruction", "response": "output", "kto_tag": "label"}})");
  stream.folder.write("d.jsonl", rows);
  stream.config.data.dataset = "d";
  stream.config.data.cutoff_len = 64;
  stream.config.data.on_bad_row = "skip";
  StreamJob job = stream.job();
  job.shuffles = false;
  StreamedExamples whole(job, {});
  std::vector<StreamedExamples::Drawn> drawn;
  while (drawn.empty() || drawn.back().after.epoch == 0) drawn.push_back(whole.next());
  REQUIRE(drawn.size() == 5);  // of rows 0, 1, 2, 4, and 0 again
  const auto answer = [&](size_t i, size_t document) {
    std::vector<int32_t> labels = drawn[i].example.documents.at(document).labels;
    std::erase(labels, kIgnoreLabel);
    return labels;
  };
  CHECK((answer(2, 1) == answer(1, 0)));
  CHECK((answer(3, 1) == answer(2, 0)));
  for (size_t i = 0; i + 1 < drawn.size(); ++i) {
    StreamedExamples rest(job, drawn[i].after);
    CHECK((tokens_of(rest.next().example) == tokens_of(drawn[i + 1].example)));
  }
}

TEST_CASE("a stream: bad rows end it, or are left out") {
  Stream stream("sft");
  stream.folder.write("rows/a.jsonl", line_of(0) + "{\"instruction\": \n" + line_of(1));
  {
    const StreamJob job = stream.job();
    StreamedExamples examples(job, {});
    CHECK_THROWS_WITH_AS(examples.next(), doctest::Contains("a.jsonl, line 2"), UserError);
  }
  stream.config.data.on_bad_row = "skip";
  const StreamJob job = stream.job();
  StreamedExamples examples(job, {});
  while (examples.next().after.epoch == 0) continue;
  CHECK(std::ranges::any_of(examples.report(), [](const std::string& line) {
    return line.find("1 of") != std::string::npos && line.find("left out") != std::string::npos;
  }));

  // An epoch without an example does not begin again for ever.
  stream.folder.write("rows/a.jsonl", "{\n{\n");
  stream.folder.write("rows/b.jsonl", "{\n{\n");
  const StreamJob broken = stream.job();
  StreamedExamples none(broken, {});
  CHECK_THROWS_AS(none.next(), UserError);
}

TEST_CASE("a stream: a run that a bad row stopped goes on without the row") {
  constexpr int kRows = 2100, kBad = 1500;  // in the second window
  Stream stream("sft", kRows);
  std::string rows;
  for (int i = 0; i < kRows; ++i) rows += i == kBad ? "{\n" : line_of(i);
  stream.config.data.dataset = stream.folder.write("bad.jsonl", rows);
  const StreamJob stops = stream.job();
  StreamedExamples before(stops, {});
  StreamPlace place;
  int64_t num_before = 0;
  const auto take_all = [&] {
    for (;; ++num_before) place = before.next().after;
  };
  CHECK_THROWS_WITH_AS(take_all(), doctest::Contains("bad.jsonl, line 1501"), UserError);
  REQUIRE(num_before > 0);
  stream.config.data.on_bad_row = "skip";
  const StreamJob skips = stream.job();
  StreamedExamples whole(skips, {}), rest(skips, place);
  for (int64_t i = 0; i < num_before; ++i) whole.next();
  StreamedExamples::Drawn on = rest.next();
  for (; on.after.epoch == 0; on = rest.next()) {
    CHECK((tokens_of(on.example) == tokens_of(whole.next().example)));
  }
  CHECK((tokens_of(on.example) == tokens_of(whole.next().example)));
}

TEST_CASE("a stream: bad rows of val_size are told") {
  Stream stream("sft");
  stream.config.data.val_size = 40;
  stream.config.data.on_bad_row = "skip";
  stream.folder.write("rows/aa.jsonl", line_of(0) + "{\n" + line_of(1));
  const Stage& stage = stage_of(stream.config.method);
  const auto entries = streamed_datasets(stream.config.data, stage);
  const HeldOutRows held_out = held_out_rows(stream.config.data, entries, 3, /*shuffles=*/false);
  CHECK(held_out.names.size() == 40);
  CHECK(held_out.rows.size() == 39);
  CHECK_SAYS(held_out.note, "aa.jsonl, line 2");
}

TEST_CASE("a stream: its first rows may lack a column, and may be bad") {
  Stream stream("sft");
  stream.folder.info(R"({"file_name": "d.jsonl", "columns":
      {"prompt": "instruction", "response": "output", "system": "system"}})");
  std::string rows;
  for (int i = 0; i < 9; ++i) rows += i == 3 ? "{\n" : line_of(i);
  stream.folder.write("d.jsonl", rows);
  stream.config.data.dataset = "d";
  const Stage& stage = stage_of(stream.config.method);
  const auto entries = streamed_datasets(stream.config.data, stage);
  std::vector<std::string> notes;
  CHECK_THROWS_WITH_AS(first_rows(stream.config.data, entries, 8, notes),
                       doctest::Contains("d.jsonl, line 4"), UserError);
  stream.config.data.on_bad_row = "skip";
  CHECK(first_rows(stream.config.data, entries, 8, notes).size() == 7);
  CHECK(first_rows(stream.config.data, entries, 3, notes).size() == 3);
}

TEST_CASE("a stream: draws end where a data set is nearly never drawn, or nobody waits") {
  Stream stream("sft", 9);
  const std::string rows = stream.folder.path() + "/rows/";
  stream.config.data.dataset = rows + "a.jsonl," + rows + "b.jsonl";
  stream.config.data.mix_strategy = "interleave_once";
  stream.config.data.interleave_probs = "0.999999999999,1e-12";
  const auto entries = streamed_datasets(stream.config.data, stage_of(stream.config.method));
  struct Unwanted {};
  int64_t num_looks = 0;
  StreamedRows unwanted(stream.config.data, entries, 3, /*shuffles=*/true, 0, [&] {
    if (++num_looks == 1000) throw Unwanted();
  });
  CHECK_THROWS_AS(unwanted.next(), Unwanted);
  CHECK_NOTHROW(require_few_draws(1000));
  CHECK_THROWS_WITH_AS(require_few_draws(1'000'000'000), doctest::Contains("interleave_probs"),
                       UserError);
}

}  // namespace longspan
