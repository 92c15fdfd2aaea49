#include "longspan/config/fsdp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "longspan/base/names.h"
#include "longspan/config/config.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

struct FsdpWord {
  std::string_view word;
  std::optional<int64_t> stage = {};  // zero_stage
  bool offloads = false;
};

constexpr FsdpWord kFsdpWords[] = {
    {"full_shard", 3}, {"shard_grad_op", 2}, {"no_shard", 0}, {"offload", {}, true}, {"auto_wrap"}};

}  // namespace

std::vector<std::string> apply_fsdp(Config& config) {
  std::string words = config.memory.fsdp;
  std::ranges::replace(words, ' ', ',');
  std::vector<std::string> problems;
  MemorySettings& memory = config.memory;
  bool offloads = false;
  for (const std::string& word : split_names(words)) {
    const auto known = std::ranges::find(kFsdpWords, word, &FsdpWord::word);
    if (known == std::end(kFsdpWords)) {
      std::vector<std::string_view> names;
      for (const FsdpWord& one : kFsdpWords) names.push_back(one.word);
      problems.push_back(
          fmt::format("fsdp: {} is not supported; wanted is {}, or zero_stage and "
                      "zero_shard_size",
                      shortened(word, 60), fmt::join(names, ", ")));
      continue;
    }
    offloads = offloads || known->offloads;
    if (!known->stage) continue;
    if (memory.zero_stage && *memory.zero_stage != *known->stage) {
      problems.push_back(fmt::format("fsdp: {} means zero_stage {}, but zero_stage is {}; keep one",
                                     word, *known->stage, *memory.zero_stage));
    }
    memory.zero_stage = known->stage;
  }
  if (offloads) {
    memory.offload_optimizer = true;
    memory.offload_params = memory.zero_stage == 3;  // the others hold whole parameters
  }
  return problems;
}

}  // namespace longspan
