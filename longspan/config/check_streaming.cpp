#include "longspan/config/check_streaming.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "longspan/config/config.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"

namespace longspan {

namespace {

bool can_stream(const Stage& stage) { return stage.rollouts == RolloutUse::kNone; }

}  // namespace

void check_streaming(const Config& config, bool of_run,
                     const std::function<void(bool holds, std::string_view problem)>& demand) {
  const DataSettings& data = config.data;
  if (!data.streaming) {
    demand(data.buffer_size == DataSettings().buffer_size,
           "buffer_size is for streaming: true; remove it, or set that");
    return;
  }
  const auto refuse = [&](bool is_given, std::string_view key, std::string_view reason) {
    demand(!is_given, fmt::format("{} and streaming: true are both given: {}", key, reason));
  };
  demand(!data.dataset.empty(), "streaming reads the rows of dataset, which is missing; remove it");
  const Stage& stage = stage_of(config.method);
  demand(can_stream(stage), fmt::format("streaming is for the stages {}; remove it",
                                        enumerated(names_of_stages_that(can_stream))));
  demand(!of_run || config.optimization.max_steps > 0,
         "max_steps is missing: with streaming: true the number of rows is not known in advance; "
         "give max_steps");
  demand(data.val_size == 0 || data.val_size >= 1,
         "val_size: with streaming: true the number of rows is not known in advance; give a whole "
         "number of rows");
  refuse(data.max_samples.has_value(), "max_samples", "max_steps ends the run; remove max_samples");
  refuse(!data.tokenized_path.empty(), "tokenized_path",
         "streamed rows are not kept; remove one of them");
  refuse(data.overwrite_cache, "overwrite_cache", "streamed rows are not kept; remove one of them");
  refuse(deals_rows(config.parallel), "sequence_parallel_size: auto or balance_batches",
         "they deal the rows of a step by lengths, and streamed rows are not dealt; remove one of "
         "them");
  refuse(config.preferences.precompute_ref_log_probs, "precompute_ref_log_probs",
         "it computes a table for all rows before training; remove one of them");
  if (!of_run) return;
  for (const auto& [key, strategy] :
       {std::pair{"eval_strategy", &config.optimization.eval_strategy},
        {"save_strategy", &config.output.save_strategy},
        {"logging_strategy", &config.output.logging_strategy}}) {
    refuse(interval_of(*strategy) == Interval::kEpoch, fmt::format("{}: epoch", key),
           "a stream has no known end; set it to steps");
  }
}

}  // namespace longspan
