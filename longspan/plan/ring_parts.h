// The parts in which keys and values travel around a ring. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

/// Returns the number of parts of `num_kv_heads` kv heads of a rank: on a CPU up to four, so that a
/// slow link sends while the rank attends to earlier parts. On a GPU one, because a kernel call of
/// few heads may not fill the GPU.
inline int64_t num_ring_parts(int64_t num_kv_heads, bool cuda) {
  return cuda ? 1 : std::clamp<int64_t>(num_kv_heads, 1, 4);
}

}  // namespace longspan
