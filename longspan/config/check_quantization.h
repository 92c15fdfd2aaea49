// Checks of the keys of quantized weights. No torch.
#pragma once

#include <functional>
#include <string_view>

namespace longspan {

struct Config;

/// Calls `demand` for each rule: whether it holds, and the problem otherwise.
void check_quantization(const Config& config,
                        const std::function<void(bool holds, std::string_view problem)>& demand);

/// The same for the rules of any quantized weights. `weights`: the key or folder, for messages.
void check_packed_weights(const Config& config, std::string_view weights,
                          const std::function<void(bool holds, std::string_view problem)>& demand);

}  // namespace longspan
