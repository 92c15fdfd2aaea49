// Memory of tensors on the CPU, kept between uses within the limits of what a step needs anyhow.
#pragma once

#include <cstdint>

namespace c10 {
struct Allocator;
}

namespace longspan {

/// From here on, and for good, large tensors on the CPU get blocks of a pool of this process. What
/// is freed is kept for tensors of about that size, so that pages are not asked of the system and
/// cleared again and again, but never so much that used and kept blocks together are more than were
/// in use at once before: the resident set is that of the tensors at their fullest moment. The C
/// library's heap, which is shared with everything else, holds more (a sixth, in preference
/// training) because what lives long lies between what does not. Call it before the tensors.
void use_tensor_pool();

/// The pool's allocator, in use or not.
c10::Allocator& tensor_pool();

/// Bytes of the pool's blocks.
struct PoolBytes {
  int64_t used = 0, kept = 0, most_used = 0;
};
PoolBytes pool_bytes();

}  // namespace longspan
