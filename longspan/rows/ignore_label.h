// The label of an untrained token. No torch.
#pragma once

#include <cstdint>

namespace longspan {

inline constexpr int64_t kIgnoreLabel = -100;

}  // namespace longspan
