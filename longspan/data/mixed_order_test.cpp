#include "longspan/data/mixed_order.h"

#include <doctest/doctest.h>

#include "longspan/testing/dataset_folder.h"

namespace longspan {

TEST_CASE("mix_strategy: data sets in turn") {
  using Places = std::vector<int64_t>;
  const auto order = [](MixStrategy strategy) { return mixed_order(strategy, {2, 3, 1}, {}, 42); };
  CHECK(order(MixStrategy::kConcat) == Places{0, 1, 2, 3, 4, 5});
  CHECK(order(MixStrategy::kInterleaveUnder) == Places{0, 2, 5});
  CHECK(order(MixStrategy::kInterleaveOver) == Places{0, 2, 5, 1, 3, 5, 0, 4, 5});
  CHECK(order(MixStrategy::kInterleaveOnce) == Places{0, 2, 5, 1, 3, 4});
}

TEST_CASE("interleave_probs: what is wrong is said") {
  DataSettings config;
  config.mix_strategy = "interleave_over";
  const auto complaint = [&](const std::string& probabilities) -> std::string {
    config.interleave_probs = probabilities;
    try {
      interleave_probs_of(config, 2);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(complaint("") == "");
  CHECK(complaint("0.25, 0.75") == "");
  CHECK_SAYS(complaint("0.25, x"), "x was given");
  CHECK_SAYS(complaint("1.5, -0.5"), "-0.5 was given");
  CHECK_SAYS(complaint("1"), "1 number for 2 data sets");
  CHECK_SAYS(complaint("0.5, 0.6"), "the sum is 1.1");
  CHECK_SAYS(complaint("1, 0"), "probability 0");
  config.mix_strategy = "interleave_under";
  CHECK(complaint("1, 0") == "");
}

TEST_CASE("mix_strategy: the rows of a run") {
  const DatasetFolder folder;
  folder.write("dataset_info.json",
               R"({"a": {"file_name": "a.json"}, "b": {"file_name": "b.json"}})");
  folder.write("a.json", R"([{"instruction": "1", "output": "x"}])");
  folder.write("b.json",
               R"([{"instruction": "2", "output": "x"}, {"instruction": "3", "output": "x"}])");
  DataSettings config = folder.config().data;
  const auto rows = [&](const std::string& strategy) {
    config.mix_strategy = strategy;
    return flat(read_conversations(config, stage_of(folder.config().method), 42, "a, b"));
  };
  using Texts = std::vector<std::string>;
  CHECK(rows("concat") == Texts{"u=1;a=x;", "u=2;a=x;", "u=3;a=x;"});
  CHECK(rows("interleave_under") == Texts{"u=1;a=x;", "u=2;a=x;"});
  CHECK(rows("interleave_over") == Texts{"u=1;a=x;", "u=2;a=x;", "u=1;a=x;", "u=3;a=x;"});
}

}  // namespace longspan
