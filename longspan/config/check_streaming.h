// Demands of streamed data sets on other keys. No torch.
#pragma once

#include <functional>
#include <string_view>

namespace longspan {

struct Config;

/// Calls `demand` for each key that a stream of rows cannot have. `of_run`: the configuration is of
/// a run, not of a session. See checks.h.
void check_streaming(const Config& config, bool of_run,
                     const std::function<void(bool holds, std::string_view problem)>& demand);

}  // namespace longspan
