// Checks of the keys by which rows are dealt to processes. No torch.
#pragma once

#include <functional>
#include <string_view>

namespace longspan {

struct Config;

/// Calls demand(holds, problem) for each requirement of balance_batches, tokens_per_process and
/// sequence_parallel_size: auto.
void check_dealing(const Config& config,
                   const std::function<void(bool holds, std::string_view problem)>& demand);

}  // namespace longspan
