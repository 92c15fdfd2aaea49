#include "longspan/config/check_dealing.h"

#include <fmt/format.h>

#include "longspan/config/config.h"
#include "longspan/registers/stage.h"

namespace longspan {

void check_dealing(const Config& config,
                   const std::function<void(bool holds, std::string_view problem)>& demand) {
  const bool own = has_own_degrees(config.parallel);
  demand(own || !config.parallel.tokens_per_process,
         "tokens_per_process is for sequence_parallel_size: auto; remove it, or set auto");
  if (!deals_rows(config.parallel)) return;
  const Stage& stage = stage_of(config.method);
  demand(
      !own || !stage.deals_rows || !packs(config.data, stage),
      "packing fills all rows up to cutoff_len tokens, so that with sequence_parallel_size: auto "
      "each row would get all processes; set packing: false (short rows with the same processes "
      "are computed together), or give a number");
  demand(
      stage.deals_rows,
      fmt::format(
          "{} is for the stages {}; {}", own ? "sequence_parallel_size: auto" : "balance_batches",
          enumerated(names_of_stages_that([](const Stage& stage) { return stage.deals_rows; })),
          own ? "give a number" : "remove it"));
  demand(!own || !config.preferences.precompute_ref_log_probs,
         "sequence_parallel_size: auto and precompute_ref_log_probs are both given: the table is "
         "computed before rows are dealt, with one number of processes for all rows; remove "
         "precompute_ref_log_probs, or give a number");
  demand(!own || config.parallel.expert_parallel_size == 1,
         "sequence_parallel_size: auto and expert_parallel_size are both given: processes that "
         "divide experts take part in the same rows; give a number, or remove "
         "expert_parallel_size");
}

}  // namespace longspan
