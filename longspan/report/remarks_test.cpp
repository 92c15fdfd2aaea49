#include "longspan/report/remarks.h"

#include <doctest/doctest.h>

namespace longspan {

namespace {

std::string all(const RemarkFacts& facts) {
  std::string text;
  for (const std::string& line : remarks_at_start(facts)) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("remarks: the period of grace that a pod needs") {
  CHECK(remark_on_grace(/*seconds_of_checkpoint=*/8, /*seconds_of_step=*/8) == "");
  CHECK(remark_on_grace(60, 25).starts_with(
      "note: give this pod a terminationGracePeriodSeconds of at least 130:"));
}

TEST_CASE("remarks: a patience of years, as LLaMA-Factory's examples set it") {
  CHECK(warning_of_timeout(180000000) ==
        "warning: ddp_timeout: 180000000 waits 2,083 days for a process that hangs. A process that "
        "ends, or is silent for minutes, is found sooner.");
  CHECK(warning_of_timeout(86400) == "");
}

TEST_CASE("remarks: none where nothing is odd") {
  const MethodSettings method;
  const ModelConfig model;
  CHECK(all({.notes = {},
             .method = method,
             .adapters = "",
             .model = model,
             .plan_warning = {},
             .num_rows = 8,
             .rows_per_step = 8,
             .local_world_size = 2,
             .num_cores = 2}) == "");
}

TEST_CASE("remarks: more workers than cores, more rows a step than there are, with the numbers") {
  const std::vector<std::string> notes{"a word about a key."};
  const MethodSettings method;
  const std::string adapters;
  const ModelConfig model;
  RemarkFacts facts{.notes = notes,
                    .method = method,
                    .adapters = adapters,
                    .model = model,
                    .plan_warning = "shards cross machines",
                    .ddp_timeout = 180000000,
                    .num_rows = 1,
                    .rows_per_step = 64,
                    .local_world_size = 8,
                    .num_cores = 2};
  const std::string text = all(facts);
  CHECK_MESSAGE(text.starts_with("note: a word about a key.\n"), text);
  CHECK(text.find("\nwarning: ddp_timeout: ") != std::string::npos);
  CHECK(text.find("warning: shards cross machines\n") != std::string::npos);
  CHECK(text.find("8 processes run on this machine, which has 2 cores") != std::string::npos);
  CHECK(text.find("a step would take 64 rows, and the training set has 1 row:") !=
        std::string::npos);
  CHECK(text.find("further tokens") == std::string::npos);
  facts.left_out = {{LeftOut::kFurtherTokens, 7}, {LeftOut::kFrequencies, 1}};
  CHECK(all(facts).find("7 tensors of the files are not read: layers that predict") !=
        std::string::npos);
  CHECK(all(facts).find("1 tensor of the files is not read: rotary frequencies") !=
        std::string::npos);
  facts.cuda = true;  // the GPU computes
  CHECK(all(facts).find("cores") == std::string::npos);
}

}  // namespace longspan
