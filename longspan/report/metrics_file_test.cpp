#include "longspan/report/metrics_file.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

TEST_CASE("metrics file: the last entry, earlier evaluations, and the ranks' times") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path + "/longspan.prom";
  MetricsFile file(path);
  const auto read = [&] {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const Progress progress{.step = 4, .total_steps = 9, .num_tokens = 80, .elapsed_seconds = 2.0};
  const EvaluationResult evaluation{.loss = 0.5};
  CHECK(file.add({progress, evaluation, {{"eval_loss", 0.5}, {"step", int64_t{2}}}}).empty());
  CHECK(file.add({progress,
                  LoggedStep{},
                  {{"rewards/chosen", -1.5}, {"step", int64_t{4}}},
                  {{.rank = 1, .host = "a\"b", .step = 3.0, .waited = 1.25}}})
            .empty());
  const std::string text = read();
  for (const char* line :
       {"longspan_eval_loss 0.5\n", "longspan_rewards_chosen -1.5\n", "longspan_step 4\n",
        "longspan_total_steps 9\n", "longspan_tokens 80\n", "longspan_tokens_per_second 40\n",
        "longspan_rank_step_seconds{rank=\"1\",host=\"a\\\"b\"} 3\n",
        "longspan_rank_wait_seconds{rank=\"1\",host=\"a\\\"b\"} 1.25\n"}) {
    CHECK(text.find(line) != std::string::npos);
  }
}

TEST_CASE("metrics file: a failure is told once, until a file is written again") {
  const testing::TemporaryFolder folder;
  MetricsFile file(folder.path + "/missing/longspan.prom");
  const Logged logged{{}, LoggedStep{}, {}};
  CHECK(file.add(logged).find("missing/longspan.prom") != std::string::npos);
  CHECK(file.add(logged).empty());
}

}  // namespace
}  // namespace longspan
