// CUDA C++ source of the kernels over rows (cuda/rows/*.cu), which the build embeds as text. No
// torch.
#pragma once

#include <string>

namespace longspan::cuda {

/// Kernels that are compiled together at the first use of any of them.
enum class Part {
  kNorm,
  kNormBackward,
  kRotary,
  kNormRotary,
  kGated,
  kCrossEntropy,
  kDropOut,
  kPacked,
  kAdamW8bit,
  kGroupedGemm,
  kGroupedRows,
  kDeltaChunks,
  kDeltaScan,
  kCausalConv
};
inline constexpr Part kParts[] = {Part::kNorm,        Part::kNormBackward, Part::kRotary,
                                  Part::kNormRotary,  Part::kGated,        Part::kCrossEntropy,
                                  Part::kDropOut,     Part::kPacked,       Part::kAdamW8bit,
                                  Part::kGroupedGemm, Part::kGroupedRows,  Part::kDeltaChunks,
                                  Part::kDeltaScan,   Part::kCausalConv};

/// Returns the least compute capability (80 for 8.0) with the instructions of the part.
int least_capability_of(Part part);
/// Returns the part's file name, for messages.
const char* name_of(Part part);
/// Returns the whole source for NVRTC.
std::string source_of(Part part);

}  // namespace longspan::cuda
